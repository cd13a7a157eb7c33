import assert from "node:assert/strict";
import { test } from "node:test";
import { diagnoseCommand, probeCommand, profileCommand, profileInPython, tuneCommand } from "../src/commands.ts";

test("commands name the files that the run was made from, where those are files, and its name as a shell takes it", () => {
  const meta = { reference: "models/fp32.onnx", quantized: "my int8.onnx" };
  assert.equal(
    diagnoseCommand("a b's", meta),
    `inc-tb diagnose models/fp32.onnx 'my int8.onnx' --data samples.npz --logdir LOGDIR --run 'a b'"'"'s'`,
  );
  assert.ok(probeCommand("trial-1", meta).endsWith("--run trial-1 --probe 60"));
  assert.ok(profileCommand("trials/trial-1", meta).startsWith("inc-tb profile models/fp32.onnx 'my int8.onnx' --data"));
  assert.ok(profileInPython("a b's").includes(`SummaryWriter("LOGDIR/a b's")`));
});

test("any suffix is that of a file, and what is left in Python and of a tuning has the names, too", () => {
  const meta = { reference: "a/model.gguf", quantized: "b/model-q4.safetensors" };
  assert.ok(diagnoseCommand("x", meta).startsWith("inc-tb diagnose a/model.gguf b/model-q4.safetensors --data"));
  assert.ok(diagnoseCommand("x", { reference: "m.py:fp32", quantized: "m.py:int8" }).includes(" m.py:fp32 m.py:int8 "));
  assert.ok(
    diagnoseCommand("x", { reference: "version 1.5", quantized: "ResNet(...)" }).includes(" fp32.onnx int8.onnx "),
  );
  assert.ok(
    diagnoseCommand("x", { reference: "a torch.nn.Linear", quantized: "a b.C" }).includes(" fp32.onnx int8.onnx "),
  );
  assert.ok(
    profileInPython("x", meta).includes('inc_tb.profile("a/model.gguf", batches, quantized="b/model-q4.safetensors")'),
  );
  assert.ok(tuneCommand(meta).startsWith("inc-tb tune a/model.gguf --data"));
});

test("models that are no files stand as placeholders", () => {
  for (const meta of [undefined, { reference: "ResNet", quantized: "GraphModule" }]) {
    assert.ok(profileCommand("x", meta).startsWith("inc-tb profile fp32.onnx int8.onnx --data"));
  }
});

import assert from "node:assert/strict";
import { test } from "node:test";
import { diagnoseCommand, probeCommand, profileCommand, profileInPython } from "../src/commands.ts";

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

test("models that are no files stand as placeholders", () => {
  for (const meta of [undefined, { reference: "ResNet", quantized: "GraphModule" }]) {
    assert.ok(profileCommand("x", meta).startsWith("inc-tb profile fp32.onnx int8.onnx --data"));
  }
});

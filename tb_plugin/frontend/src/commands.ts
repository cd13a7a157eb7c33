// Commands that fill what a run lacks, with the files that it was made from where the log names them.

import type { Meta } from "./records.ts";

const FILE = /\.(onnx|tflite|pb|pbtxt|keras|h5|json|py:\w+)$/i;

/** The two models as a shell takes them. */
function modelsOf(meta: Meta | undefined): string {
  const [reference = "", quantized = ""] = [meta?.reference, meta?.quantized];
  const known = FILE.test(reference) && FILE.test(quantized) && reference !== quantized;
  return (known ? [reference, quantized] : ["fp32.onnx", "int8.onnx"]).map(shellQuoted).join(" ");
}

/** A diagnosis of the two models, as a run of this name. */
export function diagnoseCommand(run: string, meta?: Meta): string {
  return `inc-tb diagnose ${modelsOf(meta)} --data samples.npz --logdir LOGDIR --run ${shellQuoted(run)}`;
}

/** Goes on with the diagnosis of the run. */
export function probeCommand(run: string, meta?: Meta): string {
  return `${diagnoseCommand(run, meta)} --probe 60`;
}

export function profileCommand(run: string, meta?: Meta): string {
  return `inc-tb profile ${modelsOf(meta)} --data samples.npz --logdir LOGDIR --run ${shellQuoted(run)}`;
}

/** The same as profileCommand() in Python. */
export function profileInPython(run: string): string {
  return `import inc_tb

profile = inc_tb.profile("fp32.onnx", batches, quantized="int8.onnx")
with inc_tb.SummaryWriter(${JSON.stringify(`LOGDIR/${run}`)}) as writer:
    writer.add_profile(profile)`;
}

function shellQuoted(text: string): string {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`;
}

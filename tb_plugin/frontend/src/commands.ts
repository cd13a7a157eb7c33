// Commands that fill what a run lacks, with the files that it was made from where the log names them.

import type { Meta } from "./records.ts";

/** A name with a suffix, whatever it is, or a function in a file. */
const FILE = /[^\s/\\]\.[a-z]\w*(:\w+)?$/i;

/** As a log names what is no file: "a torch.nn.Linear". */
const OBJECT = /^an? [\w.]+$/;

/** The two models of a run, where the log names files, and else what stands for them. */
export function modelsOf(meta: Meta | undefined): [string, string] {
  const [reference = "", quantized = ""] = [meta?.reference, meta?.quantized];
  const isFile = (name: string) => FILE.test(name) && !OBJECT.test(name);
  const known = isFile(reference) && isFile(quantized) && reference !== quantized;
  return known ? [reference, quantized] : ["fp32.onnx", "int8.onnx"];
}

function shellModels(meta: Meta | undefined): string {
  return modelsOf(meta).map(shellQuoted).join(" ");
}

/** Trials until the accuracy holds. */
export function tuneCommand(meta?: Meta): string {
  return `inc-tb tune ${shellQuoted(modelsOf(meta)[0])} --data samples.npz --eval evaluate.py:accuracy --logdir LOGDIR`;
}

/** A diagnosis of the two models, as a run of this name. */
export function diagnoseCommand(run: string, meta?: Meta): string {
  return `inc-tb diagnose ${shellModels(meta)} --data samples.npz --logdir LOGDIR --run ${shellQuoted(run)}`;
}

/** Goes on with the diagnosis of the run. */
export function probeCommand(run: string, meta?: Meta): string {
  return `${diagnoseCommand(run, meta)} --probe 60`;
}

export function profileCommand(run: string, meta?: Meta): string {
  return `inc-tb profile ${shellModels(meta)} --data samples.npz --logdir LOGDIR --run ${shellQuoted(run)}`;
}

/** The same as profileCommand() in Python. */
export function profileInPython(run: string, meta?: Meta): string {
  const [reference, quantized] = modelsOf(meta).map((name) => JSON.stringify(name));
  return `import inc_tb

profile = inc_tb.profile(${reference}, batches, quantized=${quantized})
with inc_tb.SummaryWriter(${JSON.stringify(`LOGDIR/${run}`)}) as writer:
    writer.add_profile(profile)`;
}

function shellQuoted(text: string): string {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`;
}

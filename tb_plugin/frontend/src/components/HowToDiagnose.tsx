import { modelsOf } from "../commands.ts";
import { readyValue } from "../loadable.ts";
import * as state from "../state.ts";

/** The lines that put a diagnosis into a run, of its own models where it names them. */
export function HowToDiagnose({ run }: { run: string }) {
  const [reference, quantized] = modelsOf(readyValue(state.headerOf(run))?.meta).map((name) => JSON.stringify(name));
  return (
    <>
      <pre>
        {`import inc_tb

with inc_tb.SummaryWriter(${JSON.stringify(`LOGDIR/${run}`)}) as writer:
    writer.add_diagnosis(inc_tb.diagnose(${reference}, ${quantized}, batches))`}
      </pre>
      <p>LOGDIR is the folder that TensorBoard watches.</p>
    </>
  );
}

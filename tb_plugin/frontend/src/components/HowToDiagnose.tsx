/** The lines that put a diagnosis into a run. */
export function HowToDiagnose({ run }: { run: string }) {
  return (
    <>
      <pre>
        {`import inc_tb

with inc_tb.SummaryWriter("LOGDIR/${run}") as writer:
    writer.add_diagnosis(inc_tb.diagnose("fp32.onnx", "int8.onnx", batches))`}
      </pre>
      <p>LOGDIR is the folder that TensorBoard watches.</p>
    </>
  );
}

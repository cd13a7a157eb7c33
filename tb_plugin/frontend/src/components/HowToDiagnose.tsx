/** The lines that put a diagnosis into a run. */
export function HowToDiagnose({ run }: { run: string }) {
  return (
    <pre>
      {`with inc_tb.SummaryWriter("${run}") as writer:
    writer.add_diagnosis(inc_tb.diagnose("fp32.onnx", "int8.onnx", batches))`}
    </pre>
  );
}

// Which inputs break: the samples whose result is furthest from fp32, and at which ops that happens.

import { diagnoseCommand } from "../commands.ts";
import { Empty, Loaded } from "../components/Status.tsx";
import { formatNumber, plural } from "../format.ts";
import { readyValue } from "../loadable.ts";
import type { Preview, SampleRow } from "../records.ts";
import { decibels, type Sample, summaryOf, worstSamples } from "../samples.ts";
import * as state from "../state.ts";
import { chosenOutput, chosenSample } from "./samples/chosen.ts";
import { HeatMap } from "./samples/HeatMap.tsx";
import { Preview as PreviewOf } from "./samples/Preview.tsx";

const MOST = 40;

export function SamplesView() {
  if (!state.has("samples")) return <NoSamples />;
  return (
    <Loaded of={state.record("samples")} what="the samples">
      {({ rows }) => (rows.some(({ is_output: isOutput }) => isOutput) ? <Samples rows={rows} /> : <NoSamples />)}
    </Loaded>
  );
}

function NoSamples() {
  return (
    <Empty title={`${state.run.value} holds no errors of single samples`}>
      <p>
        A diagnosis brings them along where the first axis of a tensor counts samples. Diagnose the two models again:
      </p>
      <pre>{diagnoseCommand(state.run.value, readyValue(state.header.value)?.meta)}</pre>
    </Empty>
  );
}

function Samples({ rows }: { rows: SampleRow[] }) {
  const outputs = rows.filter(({ is_output: isOutput }) => isOutput);
  const output = outputs.find(({ op }) => op === chosenOutput.value) ?? outputs[0]!;
  const samples = worstSamples(output);
  const previews = new Map(
    (state.has("previews") ? readyValue(state.record("previews")) : undefined)?.rows.map((row) => [row.sample, row]),
  );
  const chosen = samples.find(({ index }) => index === chosenSample.value) ?? samples[0];
  return (
    <section class="view sm" aria-label="Samples">
      <p class="sm-head">
        <strong>{plural(samples.length, "sample")}</strong> at{" "}
        {outputs.length > 1 ? (
          <select
            aria-label="Output"
            value={output.op}
            onChange={(event) => {
              chosenOutput.value = event.currentTarget.value;
            }}
          >
            {outputs.map(({ op }) => (
              <option key={op}>{op}</option>
            ))}
          </select>
        ) : (
          <button type="button" class="link" onClick={() => state.openOp(output.op)}>
            {output.op}
          </button>
        )}
        , the output of the model. {summaryOf(samples)}
      </p>
      {chosen && <Chosen sample={chosen} preview={previews.get(chosen.index)} />}
      <div class="sm-parts">
        <Worst samples={samples.slice(0, MOST)} chosen={chosen?.index} previews={previews} />
        <HeatMap rows={rows} samples={samples} chosen={chosen?.index} />
      </div>
    </section>
  );
}

function Chosen({ sample: { index, sqnrDb, share }, preview }: { sample: Sample; preview: Preview | undefined }) {
  return (
    <section class="sm-chosen" aria-label="Chosen sample">
      {preview && <PreviewOf of={preview} isLarge />}
      <p>
        <strong>Sample {index}</strong> of your data, counted from 0 in the order in which it was read:{" "}
        {decibels(sqnrDb)}, {formatNumber(Number(share.toFixed(4)), "share")} of all error.
        {preview && <span class="muted"> What the model gets as {preview.input}.</span>}
      </p>
    </section>
  );
}

interface WorstProps {
  samples: Sample[];
  chosen: number | undefined;
  previews: ReadonlyMap<number, Preview>;
}

function Worst({ samples, chosen, previews }: WorstProps) {
  return (
    <table class="sm-worst" aria-label="Worst samples">
      <thead>
        <tr>
          <th scope="col" title="Its place in the data, from 0, in the order in which it was read">
            sample
          </th>
          <th scope="col" title="Of its result: the energy of fp32's over that of the difference">
            signal to noise
          </th>
          <th scope="col" title="Of the error of all samples together">
            share of the error
          </th>
          {previews.size > 0 && <th scope="col">preview</th>}
        </tr>
      </thead>
      <tbody>
        {samples.map(({ index, sqnrDb, share }) => (
          <tr key={index} class={index === chosen ? "sm-row chosen" : "sm-row"}>
            <th scope="row">
              <button
                type="button"
                class="link"
                aria-pressed={index === chosen}
                onClick={() => {
                  chosenSample.value = index;
                }}
              >
                {index}
              </button>
            </th>
            <td>{decibels(sqnrDb)}</td>
            <td>{formatNumber(Number(share.toFixed(4)), "share")}</td>
            {previews.size > 0 && (
              <td class="sm-preview">{previews.has(index) && <PreviewOf of={previews.get(index)!} />}</td>
            )}
          </tr>
        ))}
      </tbody>
    </table>
  );
}

// The frame around the views: tabs, runs, the step, notes, and the drawer with one op.

import { About } from "./components/About.tsx";
import { Boundary, Later } from "./components/Boundary.tsx";
import { HowToDiagnose } from "./components/HowToDiagnose.tsx";
import { RunPicker } from "./components/RunPicker.tsx";
import { Empty, Loaded } from "./components/Status.tsx";
import { Tabs } from "./components/Tabs.tsx";
import { hideTooltip, Tooltip } from "./components/Tooltip.tsx";
import * as state from "./state.ts";
import { VIEWS, type View } from "./views/index.ts";
import { OpDetail } from "./views/OpDetail.tsx";

export function App() {
  return (
    // biome-ignore lint/a11y/noStaticElementInteractions: Escape closes what is open, wherever the focus is
    <div class="app" onKeyDown={onEscape}>
      {state.shownRuns.value.length ? <Shell /> : <NoRuns />}
      <Tooltip />
    </div>
  );
}

function Shell() {
  const { view, run } = state;
  const chosen = VIEWS.find(({ id }) => id === view.value) ?? VIEWS[0]!;
  return (
    <>
      <header class="top">
        <h1 class="unseen">Quantization</h1>
        <Tabs
          label="Views"
          tabs={VIEWS.filter(({ id, needsRecord }) => !needsRecord || id === chosen.id || state.has(needsRecord))}
          chosen={chosen.id}
          onChoose={(id) => {
            view.value = id;
          }}
        />
        <About />
      </header>
      <div class="columns">
        <RunPicker />
        <main>
          {state.trouble.value && (
            <p class="note" role="alert">
              {state.trouble.value} What is shown may be old.
            </p>
          )}
          {state.missingRun.value && (
            <p class="note" role="alert">
              The run {state.missingRun.value} is not there (any more); {run.value} is shown instead.
            </p>
          )}
          <div class="panel" id="view-panel" role="tabpanel" aria-labelledby={`tab-${chosen.id}`}>
            <Boundary key={`${chosen.id} ${run.value}`}>
              {chosen.needsDiagnosis && !state.has("ops") ? <NoDiagnosis /> : <Chosen view={chosen} />}
            </Boundary>
          </div>
        </main>
        {state.op.value && state.has("ops") && (
          <Boundary key={state.op.value}>
            <OpDetail />
          </Boundary>
        )}
      </div>
    </>
  );
}

function Chosen({ view }: { view: View }) {
  if ("component" in view) return <view.component />;
  return <Later load={view.load} what={`the ${view.title.toLowerCase()} view`} />;
}

function NoRuns() {
  return (
    <main>
      <h1 class="unseen">Quantization</h1>
      <Loaded of={state.runs.value} what="the runs">
        {() => <NothingLogged />}
      </Loaded>
    </main>
  );
}

function NothingLogged() {
  return (
    <Empty title="No quantization runs here yet">
      <p>Compare a quantized model with its fp32 original, below the folder that TensorBoard watches:</p>
      <pre>inc-tb diagnose fp32.onnx int8.onnx --data samples.npz --logdir nc_workspace</pre>
      <p>
        or see a made example with <code>inc-tb demo</code>. The page fills by itself when TensorBoard reloads.
      </p>
    </Empty>
  );
}

function NoDiagnosis() {
  return (
    <Empty title={`${state.run.value} holds no diagnosis`}>
      <p>Choose another run, or add one to it:</p>
      <HowToDiagnose run={state.run.value} />
    </Empty>
  );
}

function onEscape(event: KeyboardEvent): void {
  if (event.key !== "Escape") return;
  hideTooltip();
  if (!(event.target as Element).matches("input")) state.openOp("");
}

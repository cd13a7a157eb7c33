// The frame around the views: tabs, runs, the step, notes, and the drawer with one op.

import { Boundary, Later } from "./components/Boundary.tsx";
import { HowToDiagnose } from "./components/HowToDiagnose.tsx";
import { RunPicker } from "./components/RunPicker.tsx";
import { Empty, Loaded } from "./components/Status.tsx";
import { Tabs } from "./components/Tabs.tsx";
import { hideTooltip, Tooltip } from "./components/Tooltip.tsx";
import { plural } from "./format.ts";
import { readyValue } from "./loadable.ts";
import * as state from "./state.ts";
import { OpDetail } from "./views/OpDetail.tsx";
import { OpsView } from "./views/OpsView.tsx";
import { ProfileView } from "./views/ProfileView.tsx";
import { SuggestionsView } from "./views/SuggestionsView.tsx";
import { TrialsView } from "./views/TrialsView.tsx";

const loadGraph = () => import("./views/GraphView.tsx").then((module) => module.GraphView);

const TITLES: Record<state.View, string> = {
  ops: "Ops",
  suggestions: "Suggestions",
  trials: "Trials",
  profile: "Profile",
  graph: "Graph",
};

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
  const needsDiagnosis = view.value !== "trials" && view.value !== "profile";
  return (
    <>
      <header class="top">
        <h1 class="unseen">Quantization</h1>
        <Tabs
          label="Views"
          tabs={state.VIEWS.map((id) => ({ id, title: TITLES[id] }))}
          chosen={view.value}
          onChoose={(id) => {
            view.value = id as state.View;
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
          <div class="panel" id="view-panel" role="tabpanel" aria-labelledby={`tab-${view.value}`}>
            <Boundary key={`${view.value} ${run.value}`}>
              {needsDiagnosis && !state.has("ops") ? <NoDiagnosis /> : <Chosen />}
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

function Chosen() {
  switch (state.view.value) {
    case "ops":
      return <OpsView />;
    case "suggestions":
      return <SuggestionsView />;
    case "trials":
      return <TrialsView />;
    case "profile":
      return <ProfileView />;
    case "graph":
      return <Later load={loadGraph} what="the graph view" />;
  }
}

/** What was compared, and at which step. */
function About() {
  const { steps, step } = state;
  const meta = readyValue(state.header.value)?.meta;
  const at = step.value ?? steps.value.at(-1) ?? 0;
  const notes = meta?.notes ?? [];
  return (
    <div class="about">
      {steps.value.length > 1 && (
        <label class="step">
          step {at}
          <input
            type="range"
            min={0}
            max={steps.value.length - 1}
            value={steps.value.indexOf(at)}
            aria-label="Step"
            aria-valuetext={`step ${at}`}
            onInput={(event) => {
              const place = Number(event.currentTarget.value);
              step.value = place === steps.value.length - 1 ? null : (steps.value[place] ?? null);
            }}
          />
        </label>
      )}
      {meta?.reference && (
        <span class="muted" title={`${meta.reference} against ${meta.quantized}`}>
          {fileOf(meta.reference)} → {fileOf(meta.quantized)}, {plural(meta.samples ?? 0, "sample")}
        </span>
      )}
      {notes.length > 0 && (
        <details class="notes">
          <summary>{plural(notes.length, "note")}</summary>
          <ul>
            {notes.map((note) => (
              <li key={note}>{note}</li>
            ))}
          </ul>
        </details>
      )}
    </div>
  );
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

function fileOf(path = ""): string {
  return path.split(/[\\/]/).at(-1) ?? path;
}

// All views, in the order of their tabs; the first one opens. To add one, copy SkeletonView.tsx and list it here.

import type { ComponentType } from "preact";
import graphCss from "./graph.css";
import { OpsView } from "./OpsView.tsx";
import { OverviewView } from "./OverviewView.tsx";
import overviewCss from "./overview.css";
import { ProfileView } from "./ProfileView.tsx";
import profileCss from "./profile.css";
import { SamplesView } from "./SamplesView.tsx";
import { SuggestionsView } from "./SuggestionsView.tsx";
import samplesCss from "./samples.css";
import suggestionsCss from "./suggestions.css";
import { TokensView } from "./TokensView.tsx";
import { TrialsView } from "./TrialsView.tsx";
import tokensCss from "./tokens.css";
import trialsCss from "./trials.css";

/** `load` fetches the code of a large view when it is opened first. */
export type View = {
  /** In the link, and in state.view. */
  id: string;
  title: string;
  /** Whether there is nothing to show of a run that was never diagnosed. */
  needsDiagnosis: boolean;
  /** A kind of record without which there is no tab. */
  needsRecord?: string;
  css?: string;
} & ({ component: ComponentType } | { load: () => Promise<ComponentType> });

export const VIEWS: readonly View[] = [
  { id: "overview", title: "Overview", needsDiagnosis: true, component: OverviewView, css: overviewCss },
  { id: "ops", title: "Ops", needsDiagnosis: true, component: OpsView },
  { id: "suggestions", title: "Suggestions", needsDiagnosis: true, component: SuggestionsView, css: suggestionsCss },
  { id: "trials", title: "Trials", needsDiagnosis: false, component: TrialsView, css: trialsCss },
  {
    id: "samples",
    title: "Samples",
    needsDiagnosis: true,
    needsRecord: "samples",
    component: SamplesView,
    css: samplesCss,
  },
  {
    id: "tokens",
    title: "Tokens",
    needsDiagnosis: true,
    needsRecord: "tokens",
    component: TokensView,
    css: tokensCss,
  },
  { id: "profile", title: "Profile", needsDiagnosis: false, component: ProfileView, css: profileCss },
  {
    id: "graph",
    title: "Graph",
    needsDiagnosis: true,
    load: () => import("./GraphView.tsx").then(({ GraphView }) => GraphView),
    css: graphCss,
  },
];

import type { Route } from "./layout.ts";
import { type Box, boundsOf, overlap, pathOf } from "./picture.ts";

const kept = new WeakMap<Route, { box: Box; path: string }>();

function drawn(route: Route): { box: Box; path: string } {
  let found = kept.get(route);
  if (!found) {
    found = { box: boundsOf(route.points), path: pathOf(route.points) };
    kept.set(route, found);
  }
  return found;
}

interface Props {
  routes: Route[];
  sight: Box;
  /** Then the lines are one, without arrows, which nobody could see. */
  isCrowded: boolean;
  selected: string;
}

/** Arrows from producers to consumers; those of the selected op are drawn last, and thicker. */
export function Edges({ routes, sight, isCrowded, selected }: Props) {
  const seen = routes.filter((route) => overlap(drawn(route).box, sight));
  const isChosen = ({ edge }: Route) => selected !== "" && (edge.from.id === selected || edge.to.id === selected);
  const others = seen.filter((route) => !isChosen(route));
  return (
    <svg class="graph-edges" aria-hidden="true" width={1} height={1}>
      <defs>
        <Arrow id="graph-arrow" />
        <Arrow id="graph-arrow-chosen" />
      </defs>
      {isCrowded ? (
        <path d={others.map((route) => drawn(route).path).join("")} />
      ) : (
        others.map((route) => <Line key={route.edge.id} route={route} isChosen={false} />)
      )}
      {seen.filter(isChosen).map((route) => (
        <Line key={route.edge.id} route={route} isChosen />
      ))}
    </svg>
  );
}

function Line({ route, isChosen }: { route: Route; isChosen: boolean }) {
  const arrow = isChosen ? "graph-arrow-chosen" : "graph-arrow";
  return <path class={isChosen ? "chosen" : ""} d={drawn(route).path} marker-end={`url(#${arrow})`} />;
}

function Arrow({ id }: { id: string }) {
  return (
    <marker
      id={id}
      viewBox="0 0 8 8"
      refX="7"
      refY="4"
      markerWidth="8"
      markerHeight="8"
      markerUnits="userSpaceOnUse"
      orient="auto"
    >
      <path d="M0 0L8 4L0 8z" />
    </marker>
  );
}

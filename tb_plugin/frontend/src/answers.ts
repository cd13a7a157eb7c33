// Who answers the page's questions: TensorBoard's server, or a report that holds its records itself.

import type { Query } from "./batch.ts";
import type { Container } from "./records.ts";

export interface RunInfo {
  name: string;
  kinds: Record<string, { version: number | null; steps?: number[]; wall_time: number }>;
}

export interface Answers {
  runs: () => Promise<RunInfo[]>;
  /** As the routes in http_api.md. */
  container: (route: string, query: Query) => Promise<Container>;
}

// Questions that are asked in one go travel together.

/** What a request may ask about: a record of a run as it was when the list of runs was read. */
export interface RunAt {
  run: string;
  /** null is the newest. */
  step: number | null;
  /** Changes when the record was written again, so that nothing stale is shown. */
  stamp: string;
}

export type Query = [string, string][];

/** Servers and proxies refuse requests of some 8,000 characters and more. */
const LONGEST_QUERY = 6000;

/** Collects what is asked for in one go, and sends requests for runs of which the same is wanted together. */
export class Batch<Wanted extends { at: RunAt }> {
  private queue: Wanted[] = [];
  private readonly whatOf: (wanted: Wanted) => string;
  private readonly send: (wanted: Wanted[], runs: Query) => Promise<void>;

  constructor(whatOf: (wanted: Wanted) => string, send: (wanted: Wanted[], runs: Query) => Promise<void>) {
    this.whatOf = whatOf;
    this.send = send;
  }

  add(wanted: Wanted): void {
    if (!this.queue.length) queueMicrotask(() => this.flush());
    this.queue.push(wanted);
  }

  private flush(): void {
    const byRun = Map.groupBy(this.queue, ({ at }) => `${at.step} ${at.run}`);
    this.queue = [];
    const alike = Map.groupBy(byRun.values(), (of) => `${of[0]!.at.step} ${of.map(this.whatOf).join()}`);
    for (const groups of alike.values()) {
      for (const some of inChunks(groups, ([first]) => encodeURIComponent(first!.at.run).length + 5)) {
        const runs: Query = some.length > 1 ? some.map(([first]) => ["run", first!.at.run]) : runQuery(some[0]![0]!.at);
        void this.send(some.flat(), [...runs, ...stepQuery(some[0]![0]!.at)]);
      }
    }
  }
}

function* inChunks<T>(items: T[], lengthOf: (item: T) => number): Generator<T[]> {
  let chunk: T[] = [];
  let length = 0;
  for (const item of items) {
    length += lengthOf(item);
    if (chunk.length && length > LONGEST_QUERY) {
      yield chunk;
      chunk = [];
      length = lengthOf(item);
    }
    chunk.push(item);
  }
  yield chunk;
}

/** With the stamp the server need not look again where the run's records are. */
export function runQuery({ run, stamp }: RunAt): Query {
  return [
    ["run", run],
    ["stamp", stamp],
  ];
}

export function stepQuery({ step }: RunAt): Query {
  return step === null ? [] : [["step", String(step)]];
}

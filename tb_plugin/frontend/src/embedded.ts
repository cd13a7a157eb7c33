// A report's own records, which answer as the routes of the server do: http_api.md says how.

import type { Answers, RunInfo } from "./answers.ts";
import type { Query } from "./batch.ts";
import { type Container, gunzip, type Meta, type Part } from "./records.ts";
import type { Column, RowKind } from "./recordtypes.ts";

/** As tb_plugin/report.py writes it. */
interface Book {
  runs: RunInfo[];
  records: (Stored | { run: string; kind: string; step: number; stands: boolean; error: string })[];
}

interface Stored {
  run: string;
  kind: "ops" | RowKind;
  step: number;
  /** What a later step does not write anew still stands there. */
  stands: boolean;
  version: number;
  rows: number;
  columns: Column[];
  /** Op -> the element that holds its rows, from 1. */
  index: Record<string, number>;
  meta: Meta;
  /** Places among all blobs. */
  blobs: number[];
}

/** Of the text of a report's records; each blob is decoded when it is asked for. */
export async function readEmbedded(text: string): Promise<Answers> {
  const { book, blobs }: { book: string; blobs: string[] } = JSON.parse(text);
  const { runs, records }: Book = JSON.parse(await unpackedText(book));
  const byPlace = Map.groupBy(records, ({ run, kind }) => `${kind} ${run}`);

  function find(run: string, kind: string, step: number | null): Stored {
    const there = byPlace.get(`${kind} ${run}`) ?? [];
    const standing = there.filter((one) => step === null || one.step === step || (one.stands && one.step < step));
    const found = standing.reduce<Book["records"][number] | null>(
      (newest, one) => (newest && newest.step >= one.step ? newest : one),
      null,
    );
    if (!found) throw new Error(`run ${run} has no ${kind} record${step === null ? "" : ` at step ${step}`}.`);
    if ("error" in found) throw new Error(found.error);
    return found;
  }

  return {
    runs: async () => runs,
    container: async (route, query) => new Answer(find, blobs, query).to(route),
  };
}

class Answer {
  private readonly find: (run: string, kind: string, step: number | null) => Stored;
  private readonly packed: string[];
  private readonly query: Query;
  private readonly added = new Map<number, number>();

  constructor(find: Answer["find"], packed: string[], query: Query) {
    this.find = find;
    this.packed = packed;
    this.query = query;
  }

  to(route: string): Container {
    const contents = this.contents(route);
    return { ...contents, blobs: [...this.added.keys()].map((place) => decoded(this.packed[place]!)) };
  }

  private contents(route: string): Pick<Container, "parts" | "headers"> {
    const [runs, names] = [this.all("run"), this.all("name")];
    if (route === "columns") {
      const parts = runs.flatMap((run) => names.map((name) => this.part({ run, name }, () => this.column(run, name))));
      return this.all("header").includes("1") ? { parts, headers: runs.map((run) => this.header(run)) } : { parts };
    }
    if (route === "record") {
      const kind = this.all("kind")[0]!;
      return { parts: runs.map((run) => this.part({ run }, () => this.record(run, kind))) };
    }
    const kind = route === "histogram" ? "histograms" : "channels";
    return { parts: runs.map((run) => this.part({ run }, () => this.ofOp(run, kind, this.all("op")[0]!))) };
  }

  private part(about: Part, fill: () => Omit<Part, "run">): Part {
    try {
      return { ...about, ...fill() };
    } catch (error) {
      return { ...about, error: (error as Error).message };
    }
  }

  private column(run: string, name: string): Omit<Part, "run"> {
    const { step, rows, columns, blobs } = this.at(run, "ops");
    const place = columns.findIndex((column) => column.name === name);
    if (place < 0) throw new Error(`run ${run} has no column ${name}.`);
    return { step, name, rows, column: columns[place]!, blob: this.add(blobs[place]!) };
  }

  private header(run: string): NonNullable<Container["headers"]>[number] {
    try {
      const { step, version, rows, columns, meta } = this.at(run, "ops");
      return { run, step, version, rows, columns, meta };
    } catch (error) {
      return { run, error: (error as Error).message };
    }
  }

  private record(run: string, kind: string): Omit<Part, "run"> {
    const { step, rows, meta, blobs } = this.at(run, kind);
    return { step, rows, meta, blobs: blobs.map((place) => this.add(place)) };
  }

  private ofOp(run: string, kind: string, op: string): Omit<Part, "run"> {
    const { step, index, blobs } = this.at(run, kind);
    const element = index[op];
    if (element === undefined) throw new Error(`run ${run} has no ${kind} of op ${op}; it was not compared.`);
    return { step, blob: this.add(blobs[element - 1]!) };
  }

  private at(run: string, kind: string): Stored {
    const step = this.all("step")[0];
    return this.find(run, kind, step === undefined ? null : Number(step));
  }

  private all(name: string): string[] {
    return this.query.filter(([key]) => key === name).map(([, value]) => value);
  }

  private add(place: number): number {
    if (!this.added.has(place)) this.added.set(place, this.added.size);
    return this.added.get(place)!;
  }
}

/** What was packed as gzip in base64. */
export async function unpackedText(packed: string): Promise<string> {
  return new TextDecoder().decode(await gunzip(decoded(packed)));
}

function decoded(packed: string): Uint8Array<ArrayBuffer> {
  const text = atob(packed);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

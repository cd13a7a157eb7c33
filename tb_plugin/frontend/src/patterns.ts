// Regular expressions for the names of ops that repeat, layer after layer: the same as inc_tb/frameworks/patterns.py
// finds; tests/data/recipe_cases.json holds both to it.

const FEWEST_LISTED = 3;
/** Numbers of most layers are listed, not some out of many. */
const LISTED_EXCESS = 2;
const MOST_TOGETHER = 32;

/** As few expressions as match these ops and, of the known names of the model, no others; in the order of the ops. */
export function exactPatterns(ops: Iterable<string>, known: Iterable<string>): string[] {
  const there = byShape(known);
  const wanted = [...new Set(ops)];
  const found = new Map([...byShape(wanted)].flatMap(([shape, names]) => patterns(names, there.get(shape) ?? names)));
  return wanted.flatMap((name) => found.get(name) ?? []);
}

export function escaped(name: string): string {
  return name.replace(/[\\.^$*+?{}()[\]|]/g, "\\$&");
}

function byShape(names: Iterable<string>): Map<string, string[]> {
  const found = new Map<string, string[]>();
  for (const name of new Set(names)) {
    const shape = name.replace(/[0-9]+/g, "#");
    const alike = found.get(shape);
    if (alike) alike.push(name);
    else found.set(shape, [name]);
  }
  return found;
}

/** By the first name of each. */
function patterns(names: string[], alike: string[]): [string, string][] {
  for (const groups of [[names], ...splits(names)]) {
    const wide = groups.map((some) => joined(some, () => "\\d+"));
    const isShorter = wide.length <= Math.min(MOST_TOGETHER, names.length - 1);
    if (isShorter && groups.every(areLayers) && isSame(matching(wide, alike), names)) {
      return groups.map((some, i) => [some[0] ?? "", wide[i] ?? ""]);
    }
  }
  const caught = matching([joined(names, () => "\\d+")], alike);
  if (names.length >= FEWEST_LISTED && caught.length <= LISTED_EXCESS * names.length) {
    const listed = joined(names, (numbers) => `(${numbers.join("|")})`);
    if (isSame(matching([listed], alike), names)) return [[names[0] ?? "", listed]];
  }
  return names.map((name) => [name, escaped(name)]);
}

/** Two of them may be conv1 and conv2, which are no layers of one kind; layer.0 and layer.1 are. */
function areLayers(alike: string[]): boolean {
  if (alike.length !== 2) return true;
  const [a = [], b = []] = alike.map((name) => name.split(/([0-9]+)/));
  return !a.some((part, at) => part !== b[at] && /[A-Za-z]$/.test(a[at - 1] ?? ""));
}

/** By one of the numbers in them. */
function splits(names: string[]): string[][][] {
  const numbers = names.map((name) => name.match(/[0-9]+/g) ?? []);
  return (numbers[0] ?? []).map((_, at) => {
    const groups = new Map<string, string[]>();
    names.forEach((name, i) => {
      const number = numbers[i]?.[at] ?? "";
      const group = groups.get(number);
      if (group) group.push(name);
      else groups.set(number, [name]);
    });
    return [...groups.values()];
  });
}

function joined(alike: string[], number: (numbers: string[]) => string): string {
  const parts = alike.map((name) => name.split(/([0-9]+)/));
  return (parts[0] ?? [])
    .map((part, column) => {
      const there = [...new Set(parts.map((one) => one[column] ?? ""))];
      return there.length === 1 ? escaped(part) : number(there);
    })
    .join("");
}

function matching(some: string[], names: string[]): string[] {
  const whole = new RegExp(`^(?:${some.join("|")})$`);
  return names.filter((name) => whole.test(name));
}

/** Each holds every name once. */
function isSame(a: string[], b: string[]): boolean {
  const there = new Set(b);
  return a.length === b.length && a.every((name) => there.has(name));
}

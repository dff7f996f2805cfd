// A scale is the unit of an axis. The axis shows values divided by the factor.
export interface Scale { factor: number; name: string }

const times: Scale[] = [{ factor: 1e-9, name: "ns" }, { factor: 1e-6, name: "us" }, { factor: 1e-3, name: "ms" },
  { factor: 1, name: "s" }];
const bytes: Scale[] = [{ factor: 1, name: "B" }, { factor: 1e3, name: "kB" }, { factor: 1e6, name: "MB" },
  { factor: 1e9, name: "GB" }, { factor: 1e12, name: "TB" }];

/** scaleOf returns a scale for values in a unit: the largest one in which the largest absolute value is at least 1. */
export function scaleOf(unit: string, values: Iterable<number | null | undefined>): Scale {
  const [base, per] = unit.split(" per ", 2);
  const list = base === "seconds" ? times : base === "bytes" ? bytes : null;
  if (!list) return unit === "part" ? { factor: 0.01, name: "%" } : unit === "per second" ? { factor: 1,
    name: "per second" } : { factor: 1, name: unit === "count" ? "" : unit };
  let largest = 0;
  for (const v of values) if (v != null) largest = Math.max(largest, Math.abs(v));
  const found = largest === 0 ? list[list.length - 1] : (list.findLast((s) => largest >= s.factor) ?? list[0]);
  return per ? { factor: found.factor, name: `${found.name} per ${per}` } : found;
}

/** short formats the label of a tick, with at most six significant digits and without trailing zeros. */
export function short(v: number): string {
  return Math.abs(v) >= 1e6 ? v.toExponential(0).replace("e+", "e") : String(Number(v.toPrecision(6)));
}

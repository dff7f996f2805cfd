import * as Plot from "@observablehq/plot";
import type { Trial } from "./data";
import { dots, grid, legend, middle, paint, place, tip, where, type Draw } from "./charts";
import { looks } from "./style";
import { scaleOf, short } from "./units";

// The chart of events shows, for each repetition (block), how many events a tracer should have delivered and how many
// it did. A second plot shows the difference, because the loss of a hundred among hundreds of thousands would be
// invisible.

const mostLevels = 4;

/** expected returns how many events should have been delivered; for an older record, how many the load generated. */
const expected = (t: Trial): number => t.values.events_expected ?? t.values.events_generated;

const whole = (v: number): string => Math.round(v).toLocaleString("en-US");

/**
 * chosen returns the levels that are drawn, at most mostLevels. If there are more, it prefers the last and the first,
 * and then those at which the number of delivered events is not the expected one.
 */
function chosen(list: Trial[]): number[] {
  const have = [...new Set(list.map((t) => t.level))].sort((a, b) => a - b);
  if (have.length <= mostLevels) return have;
  const off = (level: number) => list.some((t) => t.level === level &&
    t.values.events_delivered !== expected(t));
  const order = [have[have.length - 1], have[0], ...have.filter(off), ...have];
  return [...new Set(order)].slice(0, mostLevels).sort((a, b) => a - b);
}

export const events: Draw = (d, f) => {
  const list = d.trials.filter((t) => t.valid && expected(t) != null &&
    t.values.events_delivered != null && !d.arms[t.arm].baseline && !d.arms[t.arm].twin);
  if (list.length === 0) return;
  const all = looks(d);
  const arms = [...new Set(list.map((t) => t.arm))].sort((a, b) => a - b);
  legend(f, arms.flatMap((a) => [
    { name: `${all[a].name}: expected`, line: true, mark: [Plot.ruleY([0.5], { stroke: all[a].colour,
      strokeDasharray: "2 3" }), Plot.dot(middle, { x: "x", y: "y", symbol: all[a].symbol as Plot.SymbolType,
      stroke: all[a].colour, fill: "var(--paper)", r: 4 })] as Plot.Markish },
    { name: `${all[a].name}: delivered`, line: true, mark: [Plot.ruleY([0.5], { stroke: all[a].colour }),
      Plot.dot(middle, { x: "x", y: "y", symbol: all[a].symbol as Plot.SymbolType, stroke: all[a].colour,
      fill: all[a].colour, r: 4 })] as Plot.Markish },
  ]));
  const g = grid(f, 2, 380);
  for (const level of chosen(list)) {
    const here = list.filter((t) => t.level === level).sort((a, b) => a.block - b.block);
    const got = (t: Trial) => t.values.events_delivered;
    const apart = (t: Trial) => got(t) - expected(t);
    const x = { label: "repetition", labelAnchor: "center", labelArrow: "none", insetLeft: 8, insetRight: 8,
      tickFormat: (v: number) => (Number.isInteger(v) ? String(v) : "") } as Plot.ScaleOptions;
    const frame = { width: g.width, marginLeft: 56, marginRight: 12, marginTop: 8, color: paint };
    const title = (t: Trial) =>
      `repetition ${t.block}: ${all[t.arm].name}${where(d, level)}\n${whole(expected(t))} expected\n` +
      `${whole(got(t))} delivered\n${whole(apart(t))} apart`;
    const lines = (y: (t: Trial) => number, dash?: string) => arms.map((a) => Plot.lineY(here.filter((t) =>
      t.arm === a), { x: "block", y, stroke: all[a].colour, strokeDasharray: dash, strokeWidth: 1.4 }));
    const s = scaleOf("count", here.flatMap((t) => [expected(t), got(t)]));
    const counts = Plot.plot({
      ...frame, height: 190, marginBottom: 36, x, y: { label: null, grid: true, nice: true, zero: true, ticks: 5,
        tickFormat: short },
      marks: [
        ...lines((t) => expected(t) / s.factor, "2 3"), ...lines((t) => got(t) / s.factor),
        ...dots(all, here, (t) => t.arm, { x: "block", y: (t: Trial) => expected(t) / s.factor, r: 4.2 }, () => false),
        ...dots(all, here, (t) => t.arm, { x: "block", y: (t: Trial) => got(t) / s.factor, r: 2.4 }),
        Plot.tip(here, Plot.pointer(tip({ x: "block", y: (t: Trial) => got(t) / s.factor, title } as Plot.TipOptions))),
      ],
    });
    place(g, counts, `Events expected and delivered by repetition${where(d, level)}`, d.levels[level].name
      ? `Events at ${d.levels[level].name}` : "Events", s.name);
    const differences = Plot.plot({
      ...frame, height: 190, marginBottom: 36, x, y: { label: null, grid: true, nice: true, ticks: 5,
        domain: here.every((t) => apart(t) === 0) ? [-1, 1] : undefined, tickFormat: short },
      marks: [
        Plot.ruleY([0], { stroke: "currentColor", strokeOpacity: 0.5 }),
        ...dots(all, here, (t) => t.arm, { x: "block", y: apart, r: 3.4 }),
        Plot.tip(here, Plot.pointer(tip({ x: "block", y: apart, title } as Plot.TipOptions))),
      ],
    });
    place(g, differences, `Delivered less expected by repetition${where(d, level)}`, d.levels[level].name
      ? `Delivered less expected at ${d.levels[level].name}` : "Delivered less expected", "events");
  }
};

import * as Plot from "@observablehq/plot";
import type { Data, Estimate, Part, Stair } from "./data";
import { armLegend, dots, grid, legend, levelAxis, middle, paint, partLegend, place, range, stack, tip, where,
  type Draw, type Figure } from "./charts";
import { fillOf, looks } from "./style";
import { scaleOf, short } from "./units";

// These charts answer the questions of some experiments, and the page shows them before all others: how much of a CPU
// limit is used, how long others waited for a CPU, how memory grows and shrinks, and where eBPF programs ran.

const levelsOf = (list: { level: number }[]): number[] => [...new Set(list.map((x) => x.level))].sort((a, b) => a - b);
const title = (d: Data, level: number, otherwise: string): string => d.levels[level].name || otherwise;
const nameMargin = (rows: string[], width: number): number => Math.min(16 + 6.6 * Math.max(...rows.map((r) =>
  r.length)), width * 0.36);

interface Value { row: string; x: number; text: string }

/**
 * partBars draws the plot of one level: a bar for each arm, divided into its parts. The largest value of the axis is
 * most, so that the plots of all levels have the same scale.
 */
function partBars(d: Data, f: Figure, parts: Part[], level: number, most: number, label: string, name: string,
  extra: { over?: Plot.Markish[]; right?: number; values?: Value[] }, scale: number): void {
  const list = stack(d, parts.filter((p) => p.level === level));
  const rows = d.arms.map((a) => a.name).filter((a) => list.some((p) => p.row === a));
  // Parts and further marks share one tip, because two tips would cover each other.
  const values: Value[] = [...list.map((p) => ({ row: p.row, x: (p.from + p.to) / 2,
    text: `${p.part} in ${p.row}${where(d, level)}\n${p.text}` })), ...(extra.values ?? [])];
  const plot = Plot.plot({
    width: f.width, height: 64 + 30 * rows.length, marginLeft: nameMargin(rows, f.width), marginRight: extra.right ??
      20, marginTop: 22, marginBottom: 38,
    x: { label, domain: [0, most / scale], grid: true, labelAnchor: "center", labelArrow: "none", tickFormat: short,
      ticks: Math.max(3, Math.floor(f.width / 110)) },
    y: { domain: rows, label: null, tickSize: 0, padding: 0.3 }, color: paint,
    marks: [
      Plot.barX(list, { y: "row", x1: (p) => p.from / scale, x2: (p) => p.to / scale, fill: (p) => fillOf(p.part),
        stroke: "var(--paper)", strokeWidth: 0.75 }),
      Plot.ruleX([0], { stroke: "currentColor" }),
      ...(extra.over ?? []),
      Plot.tip(values, Plot.pointer(tip({ y: "row", x: (v: Value) => v.x / scale, title: "text",
        maxRadius: 60 } as Plot.TipOptions))),
    ],
  });
  place(f, plot, `${name}${where(d, level)}`, title(d, level, ""), undefined, true);
}

/**
 * limits draws how much of their CPU limit the limited groups used: a bar for the charged CPU time, split into parts,
 * with the interval of the charge and the limit as a line.
 */
export const limits: Draw = (d, f) => {
  if (d.limits.length === 0) return;
  partLegend(f, d.limitParts, [
    { name: "charged, with interval", mark: [Plot.ruleY([0.5], { stroke: "var(--ink)", strokeWidth: 1.75 }),
      Plot.dot(middle, { x: "x", y: "y", r: 3.5, fill: "var(--paper)", stroke: "var(--ink)", strokeWidth: 1.75 })],
      line: true },
    { name: "limit", mark: Plot.ruleX([0.5], { stroke: "var(--bad)", strokeWidth: 2, strokeDasharray: "4 3" }) },
  ]);
  const levels = levelsOf(d.limits);
  const g = grid(f, levels.length === 1 ? 1 : 2, 360);
  const most = 1.06 * Math.max(...range(d.limits, (l) => [l.limit, l.used, l.hi]), ...stack(d, d.limitParts)
    .map((p) => p.to));
  for (const level of levels) {
    const here = d.limits.filter((l) => l.level === level);
    const arm = (l: (typeof here)[number]) => d.arms[l.arm].name;
    const limit = here.find((l) => l.limit != null)?.limit;
    partBars(d, g, d.limitParts, level, most, "CPUs", "CPU time of the limited groups", {
      right: 96,
      over: [
        limit == null ? null : Plot.ruleX([limit], { stroke: "var(--bad)", strokeWidth: 2, strokeDasharray: "4 3" }),
        limit == null ? null : Plot.text([limit], { x: (v: number) => v, text: () => `limit ${short(limit)} CPU`,
          frameAnchor: "top", dy: -13, fill: "currentColor" }),
        Plot.ruleY(here, { y: arm, x1: (l) => l.lo ?? NaN, x2: (l) => l.hi ?? NaN, stroke: "var(--ink)",
          strokeWidth: 1.75 }),
        Plot.dot(here, { y: arm, x: "used", r: 3.5, fill: "var(--paper)", stroke: "var(--ink)", strokeWidth: 1.75 }),
        Plot.text(here.filter((l) => l.throttled), { y: arm, frameAnchor: "right", dx: 92, textAnchor: "end",
          text: (l) => `throttled ${l.throttled.split(" [")[0]}`, fontSize: 11, fill: "currentColor" }),
      ],
      values: here.map((l) => ({ row: arm(l), x: l.used,
        text: `${arm(l)}${where(d, level)}: charged ${l.text}` +
          (l.throttled ? `\nthrottled in ${l.throttled} of the periods` : "") })),
    }, 1);
  }
};

/** ran draws in which groups and contexts the eBPF programs spent their run time. */
export const ran: Draw = (d, f) => {
  if (d.ran.length === 0) return;
  partLegend(f, d.ran);
  const all = levelsOf(d.ran);
  const levels = all.length <= 4 ? all : [all[0], all[Math.floor(all.length / 2)], all[all.length - 1]];
  const g = grid(f, levels.length === 1 ? 1 : 2, 360);
  for (const level of levels) partBars(d, g, d.ran, level, 1, "part of the programs' run time (%)",
    "Where the programs ran", {}, 0.01);
};

const waitMetrics: [name: string, title: string][] = [["sched_delay_p50_seconds", "median"], ["sched_delay_p99_seconds",
  "99th percentile"], ["sched_delay_max_seconds", "longest of each trial"]];

/**
 * waits draws how long an unrelated task waited for a CPU: the median, the 99th percentile and the longest wait of each
 * trial. They share a logarithmic axis, which also shows the longest wait with which the machine counts as usable.
 */
export const waits: Draw = (d, f) => {
  if (d.usable == null) return;
  const usable = d.usable;
  const all = looks(d);
  const others = d.arms.some((a) => !a.baseline && !a.twin);
  const arms = all.map((_, i) => i).filter((i) => !others || !d.arms[i].twin);
  interface Point { arm: number; level: number; x: number; value: number; lo: number | null; hi: number | null;
    text: string }
  const position = (arm: number, level: number) => (d.factor ? d.levels[level].numbers[d.factor] : arm);
  const panels = waitMetrics.map(([name, label], k) => {
    const metric = d.metrics.findIndex((m) => m.name === name);
    const points: Point[] = k === 2
      ? d.trials.filter((t) => t.valid && arms.includes(t.arm) && t.values[name] > 0)
        .map((t) => ({ arm: t.arm, level: t.level, x: position(t.arm, t.level), value: t.values[name], lo: null,
        hi: null, text: `${t.texts[name]} in trial ${t.index}` }))
      : d.estimates.filter((e) => e.metric === metric && arms.includes(e.arm) && e.value > 0)
        .map((e: Estimate) => ({ arm: e.arm, level: e.level, x: position(e.arm, e.level), value: e.value, lo: e.lo,
        hi: e.hi, text: e.text }));
    return { label, points, single: k === 2 };
  });
  const values = panels.flatMap((p) => range(p.points, (x) => [x.value, x.lo, x.hi])).filter((v) => v > 0);
  if (values.length === 0) return;
  armLegend(f, arms.map((i) => all[i]), true);
  const g = grid(f, 3, 240);
  const bottom = Math.min(...values) / 1.5;
  const top = Math.max(...values, usable) * 1.6;
  const xs = panels.flatMap((p) => p.points.map((q) => q.x));
  const beside = (arm: number) => 7 * (arms.indexOf(arm) - (arms.length - 1) / 2);
  for (const { label, points, single } of panels) {
    if (points.length === 0) continue;
    const axis = d.factor ? levelAxis(d.factorName, xs, g.width) : { x: { domain: [-0.5, d.arms.length - 0.5],
      ticks: arms, tickFormat: (i: number) => d.arms[i]?.name ?? "", label: null }, mark: null };
    const line = arms.flatMap((a) => (single || !d.factor ? [] : [...new Set(xs)].sort((p, q) => p - q)
      .map((x) => ({ arm: a, x, value: points.find((p) => p.arm === a && p.x === x)?.value ?? NaN }))));
    const text = (v: number) => { const s = scaleOf("seconds", [v * 1.0000001]);
      return `${short(Number((v / s.factor).toPrecision(3)))} ${s.name}`; };
    const plot = Plot.plot({
      width: g.width, height: 280, marginLeft: 58, marginRight: 16, marginTop: 14, marginBottom: 40,
      x: axis.x, y: { type: "log", domain: [bottom, top], label: null, grid: true, ticks: Array.from({ length: 14 },
        (_, k) => 10 ** (k - 9)).filter((v) => v >= bottom && v <= top), tickFormat: text }, color: paint,
      marks: [
        axis.mark,
        Plot.ruleY([usable], { stroke: "var(--bad)", strokeWidth: 1.5, strokeDasharray: "5 3" }),
        Plot.text([usable], { y: (v: number) => v, text: () => `usable up to ${text(usable)}`, frameAnchor: "left",
          textAnchor: "start", dx: 4, dy: -8, fill: "currentColor" }),
        ...arms.map((a) => Plot.line(line.filter((p) => p.arm === a), { x: "x", y: "value", stroke: all[a].colour,
          strokeDasharray: all[a].dash, strokeWidth: 1.25, dx: beside(a) })),
        ...arms.map((a) => Plot.ruleX(points.filter((p) => p.arm === a), { x: "x", y1: (p) => (p.lo == null ? NaN
          : Math.max(p.lo, bottom)), y2: (p) => p.hi ?? NaN, stroke: all[a].colour, strokeWidth: 1.75,
          dx: beside(a) })),
        ...arms.flatMap((a) => dots(all, points.filter((p) => p.arm === a), (p) => p.arm, { x: "x", y: "value",
          r: single ? 3 : 4, fillOpacity: single ? 0.35 : 1, dx: beside(a) })),
        Plot.tip(points, Plot.pointer(tip({ x: "x", y: "value", title: (p: Point) =>
          `${label} wait, ${all[p.arm].name}${where(d, p.level)}\n${p.text}` } as Plot.TipOptions))),
      ],
    });
    place(g, plot, `Wait for a CPU, ${label}`, label, "logarithmic");
  }
};

// The steps of a trial, in order, each with a separate colour, symbol and line.
const steps: [step: string, colour: string, symbol: Plot.SymbolType, dash: string][] = [
  ["with the services, before load", "var(--c1)", "triangle", "none"], ["under load", "var(--c5)", "circle", "2 3"],
  ["after removal", "var(--c2)", "square", "7 3"],
];

/**
 * stairs draws memory before, under and after the load against the swept factor. There is a plot for each kind of
 * memory and each arm; the plots of one kind have the same scale.
 */
export const stairs: Draw = (d, f) => {
  if (d.stairs.length === 0) return;
  const have = steps.filter(([s]) => d.stairs.some((x) => x.step === s));
  legend(f, have.map(([name, colour, symbol, dash]) => ({
    name, line: true, mark: [Plot.ruleY([0.5], { stroke: colour, strokeDasharray: dash, strokeWidth: 1.75 }),
      Plot.dot(middle, { x: "x", y: "y", symbol, fill: colour, stroke: colour, r: 4 })] as Plot.Markish,
  })));
  const arms = [...new Set(d.stairs.map((s) => s.arm))];
  const x = (s: Stair) => d.levels[s.level].numbers[d.factor];
  const xs = d.stairs.map(x);
  const distinct = [...new Set(xs)].sort((a, b) => a - b);
  const g = grid(f, arms.length === 1 ? 1 : 2, 340);
  for (const kind of new Set(d.stairs.map((s) => s.kind))) {
    const of = d.stairs.filter((s) => s.kind === kind);
    const s = scaleOf("bytes", range(of, (p) => [p.value, p.hi]));
    const most = Math.max(...range(of, (p) => [p.value, p.hi])) / s.factor;
    for (const arm of arms) {
      const list = of.filter((p) => p.arm === arm);
      if (list.length === 0) continue;
      const by = (v: number | null) => (v == null ? NaN : v / s.factor);
      const axis = levelAxis(d.factorName, xs, g.width);
      const beside = (step: string) => 6 * (have.findIndex(([n]) => n === step) - (have.length - 1) / 2);
      const plot = Plot.plot({
        width: g.width, height: 230, marginLeft: 52, marginRight: 18, marginTop: 10, marginBottom: 40,
        x: axis.x, y: { label: null, grid: true, domain: [0, most * 1.04 || 1], nice: true, ticks: 5,
          tickFormat: short }, color: paint,
        marks: [
          axis.mark,
          ...have.map(([step, colour, , dash]) => Plot.line(distinct.map((v) => ({ x: v,
            y: by(list.find((p) => p.step === step && x(p) === v)?.value ?? null) })), { x: "x", y: "y", stroke: colour,
            strokeDasharray: dash, strokeWidth: 1.5, dx: beside(step) })),
          ...have.map(([step, colour]) => Plot.ruleX(list.filter((p) => p.step === step), { x, y1: (p) => by(p.lo),
            y2: (p) => by(p.hi), stroke: colour, strokeWidth: 1.75, dx: beside(step) })),
          ...have.map(([step, colour, symbol]) => Plot.dot(list.filter((p) => p.step === step),
            { x, y: (p) => by(p.value), symbol, fill: colour, stroke: colour, r: 4, dx: beside(step) })),
          Plot.tip(list, Plot.pointer(tip({ x, y: (p: Stair) => by(p.value), title: (p: Stair) =>
            `${kind}, ${d.arms[arm].name}${where(d, p.level)}\n${p.step}: ${p.text}` } as Plot.TipOptions))),
        ],
      });
      place(g, plot, `${kind}, ${d.arms[arm].name}`, `${d.arms[arm].name}: ${kind}`, s.name);
    }
  }
};

import * as Plot from "@observablehq/plot";
import type { Data, Metric, Part } from "./data";
import { saver } from "./save";
import { fillOf, looks, type Look } from "./style";
import { scaleOf, short } from "./units";

// The charts of a report, and what they have in common. A function of type Draw draws one figure into an element of a
// given width, in pixels. Estimates and differences come from Go, and the tables show them as well; charts compute only
// positions, and for single trials the change from a median.

export interface Figure { box: HTMLElement; width: number }
export type Draw = (d: Data, f: Figure) => void;

export const tip = (extra: Plot.TipOptions = {}): Plot.TipOptions => ({ fill: "var(--paper)", stroke: "var(--line)",
  fontSize: 12, lineHeight: 1.35, lineWidth: 30, ...extra });

/** place puts one plot into the figure, with a title above it. The name describes the plot to screen readers. */
export function place(f: Figure, plot: Element, name: string, title?: string, unit?: string, rows = false): void {
  const box = document.createElement("div");
  box.className = "plot";
  if (title) {
    const h = document.createElement("h4");
    h.textContent = title;
    // Do not repeat "per connection", as in "CPU per connection, us per connection".
    if (unit && unit.includes(" per ") && title.endsWith(unit.slice(unit.indexOf(" per ")))) unit = unit.slice(0,
      unit.indexOf(" per "));
    if (unit && !title.endsWith(unit)) {
      const u = document.createElement("span");
      u.textContent = `, ${unit}`;
      h.append(u);
    }
    box.append(h);
  }
  const svg = plot.matches("svg") ? plot : plot.querySelector("svg");
  (svg as SVGElement).dataset.chart = name;
  box.append(saver(svg as SVGSVGElement, box));
  if (rows) (svg as SVGElement).dataset.order = "rows";
  box.append(plot);
  f.box.append(box);
}

export function grid(f: Figure, most: 1 | 2 | 3, least: number): Figure {
  const box = document.createElement("div");
  box.className = "plots" + (most === 1 ? " one" : most === 2 ? " two" : "");
  f.box.append(box);
  const gap = 32;
  const columns = Math.max(1, Math.min(Math.floor((f.width + gap) / (least + gap)), most));
  box.style.gridTemplateColumns = `repeat(${columns}, minmax(0, 1fr))`;
  return { box, width: Math.floor((f.width - gap * (columns - 1)) / columns) };
}

export interface LegendItem { name: string; mark: Plot.Markish; line?: boolean }

export function legend(f: Figure, items: LegendItem[]): void {
  const list = document.createElement("ul");
  list.className = "legend";
  for (const { name, mark, line } of items) {
    const li = document.createElement("li");
    const width = line ? 34 : 16;
    const svg = Plot.plot({ width, height: 14, margin: 0, axis: null, x: { domain: [0, 1] }, y: { domain: [0, 1] },
      marks: [mark] });
    svg.setAttribute("aria-hidden", "true");
    li.append(svg, name);
    list.append(li);
  }
  f.box.append(list);
}

export const middle = [{ x: 0.5, y: 0.5 }];
export const armLegend = (f: Figure, all: Look[], lines = false, band = false, more: LegendItem[] = []): void =>
  legend(f, [...all.map((l) => ({
    name: l.name, line: lines,
    mark: [
      lines ? Plot.ruleY([0.5], { stroke: l.colour, strokeDasharray: l.dash, strokeWidth: 1.75 }) : null,
      Plot.dot(middle, { x: "x", y: "y", symbol: l.symbol as Plot.SymbolType, stroke: l.colour, fill: hollow(l)
        ? "var(--paper)" : l.colour, r: 4 }),
    ] as Plot.Markish,
  })), ...(band ? [{ name: "A/A band", mark: Plot.rect(middle, { x1: 0, x2: 1, y1: 0, y2: 1, fill: "var(--band)",
    fillOpacity: 0.28 }) }] : []), ...more]);

// A cross has no interior to fill.
const hollow = (l: Look): boolean => l.symbol === "times";

/** dots returns marks that draw points with their arms' symbols: one for each arm, because a mark has one symbol. */
export function dots<T>(all: Look[], data: T[], arm: (x: T) => number, options: Plot.DotOptions,
  filled?: (x: T) => boolean): Plot.Markish[] {
  return all.map((l, i) =>
    Plot.dot(data.filter((x) => arm(x) === i), {
      ...options, symbol: l.symbol as Plot.SymbolType, stroke: l.colour, strokeWidth: 1.6,
      fill: hollow(l) ? "none" : filled ? (((x: T) => (filled(x) ? l.colour : "var(--paper)")) as Plot.ChannelValueSpec)
        : l.colour,
    }));
}
export const paint: Plot.ScaleOptions = { type: "identity" } as Plot.ScaleOptions;

export const range = <T>(data: T[], of: (x: T) => (number | null | undefined)[]): number[] => data.flatMap(of)
  .filter((v): v is number => v != null);

const counted = (v: number): string => (Number.isInteger(v) ? v.toLocaleString("en-US") : short(v));

/**
 * levelAxis returns the axis of the swept factor, with a tick at each level that was run if there is room. It is
 * logarithmic if all levels are above 0 and the largest is at least ten times the smallest.
 */
export function levelAxis(name: string, xs: number[], width: number): { x: Plot.ScaleOptions; log: boolean;
  mark: Plot.Markish } {
  const distinct = [...new Set(xs)].sort((a, b) => a - b);
  const [lo, hi] = [distinct[0], distinct[distinct.length - 1]];
  const log = lo > 0 && hi / lo >= 10;
  const at = (v: number) => (log ? Math.log(v / lo) / Math.log(hi / lo) : (v - lo) / (hi - lo || 1)) * (width - 118);
  const ticks: number[] = []; // always the last level, and the others if there is room
  for (const v of [...distinct].reverse()) if (ticks.every((t) => at(t) - at(v) > 4 * (counted(t).length + counted(v)
    .length) - 8)) ticks.push(v);
  return {
    log, x: { type: log ? "log" : "linear", domain: lo === hi ? [lo - 1, hi + 1] : [lo, hi], axis: null, insetLeft: 20,
      insetRight: 20 },
    // The labels are given as text, because a logarithmic scale would leave out those that are not round numbers.
    mark: Plot.axisX(ticks, { text: (v: number) => counted(v), label: log ? `${name} (logarithmic)` : name,
      labelAnchor: "center", labelArrow: "none" } as Plot.AxisXOptions),
  };
}

const mostLevels = 6; // maximum number of levels whose curves are drawn

/** firstOnly returns a function that reports whether a metric is a headline. If no metric is, it accepts all. */
const firstOnly = (d: Data): ((metric: number) => boolean) => {
  const some = d.metrics.some((m) => m.headline);
  return (metric) => !some || d.metrics[metric].headline;
};

/** baselineName returns the name of the arm with which the others are compared. */
const baselineName = (d: Data): string => (d.arms.find((a) => a.baseline)?.name ?? "direct").replace(" (baseline)", "");

// changeAxis returns the axis of changes from the baseline. It is linear and in per cent if all ratios to the baseline
// are above 0.02 and below 4, and logarithmic otherwise.
function changeAxis(ratios: number[], width: number, baseline: string): { to: (change: number | null) => number;
  options: Plot.ScaleOptions; zero: number } {
  const sane = ratios.filter((r) => r > 1e-5);
  const [lo, hi] = [Math.min(1, ...sane), Math.max(1, ...sane)];
  if (hi < 4 && lo > 0.02) {
    return {
      to: (c) => (c == null ? NaN : 100 * c), zero: 0,
      options: { label: `change from ${baseline} (%)`, domain: [100 * (lo - 1), 100 * (hi - 1)], grid: true, nice: true,
        labelAnchor: "center", labelArrow: "none",
        tickFormat: (v: number) => (v > 0 ? "+" : "") + short(v), ticks: Math.max(3, Math.floor(width / 90)) },
    };
  }
  const [from, to] = [lo / 1.4, hi * 1.4];
  const decades = Math.log10(to / from);
  const all = [1e-5, 1e-4, 1e-3, 0.01, 0.1, 0.5, 1, 2, 5, 10, 100, 1e3, 1e4, 1e5, 1e6].filter((v) => v >= from &&
    v <= to);
  const room = (v: number) => (Math.log10(v / from) / decades) * width * 0.6;
  const ticks = [1];
  for (const v of [...all.filter((x) => [1e-3, 0.01, 0.1, 10, 100, 1e3, 1e4, 1e5, 1e6].includes(x)), ...all])
    if (ticks.every((t) => Math.abs(room(t) - room(v)) > 58)) ticks.push(v);
  return {
    to: (c) => (c == null ? NaN : Math.max(1 + c, from)), zero: 1,
    options: {
      type: "log", domain: [from, to], label: `change from ${baseline}, logarithmic`, grid: true, labelAnchor: "center",
      labelArrow: "none", ticks,
      tickFormat: (r: number) => (r === 1 ? "0" : r >= 10 ? `${counted(r)} times`
        : `${r > 1 ? "+" : ""}${short(100 * (r - 1))} %`),
    },
  };
}

/**
 * differences draws the change from the baseline: a row for each headline metric and arm, with the interval of the A/A
 * twin behind it. A sweep has a plot for the first and one for the last level, with the metrics in which some arm
 * differs; the chart of the sweep and the tables have the others. The axis fits the changes that were found, so that a
 * very wide interval does not compress the narrow ones.
 */
export const differences: Draw = (d, f) => {
  const all = looks(d);
  const others = d.arms.some((a) => !a.baseline && !a.twin);
  const many = d.levels.length > 1;
  const estimates = d.estimates.filter((e) => e.change != null && e.changeLo != null && !d.metrics[e.metric].lag &&
    !d.arms[e.arm].baseline && (!d.arms[e.arm].twin || !others));
  const have = [...new Set(estimates.map((e) => e.level))].sort((a, b) => a - b);
  const levels = have.length > 2 ? [have[0], have[have.length - 1]] : have;
  const differs = (e: (typeof estimates)[number]) => !many || estimates.some((x) => x.level === e.level &&
    x.metric === e.metric && x.resolved);
  const first = firstOnly(d);
  const shown = estimates.filter((e) => levels.includes(e.level) && differs(e) && first(e.metric)).sort((a, b) =>
    a.metric - b.metric ||
    a.arm - b.arm);
  if (shown.length === 0) return;
  const twins = d.estimates.filter((e) => d.arms[e.arm].twin && e.changeLo != null);
  const ratio = (v: number | null) => (v == null ? null : 1 + v);
  const found = range(shown, (e) => (e.resolved ? [e.change, e.changeLo, e.changeHi] : [e.change]).map(ratio));
  const wide = range(shown, (e) => [ratio(e.changeLo), ratio(e.changeHi)]);
  const reach = 2 * Math.max(...found.map((r) => Math.abs(Math.log(r))), 0.01);
  const fits = (r: number) => Math.abs(Math.log(r)) <= reach;
  const axis = changeAxis([...found, ...wide.filter(fits)], f.width, baselineName(d));
  const key = (e: { metric: number }) => d.metrics[e.metric].label;
  const left = Math.min(Math.max(...shown.map((e) => key(e).length)) * 6.6 + 16, f.width * 0.45);
  armLegend(f, all.filter((_, i) => shown.some((e) => e.arm === i)), false, true);
  for (const level of levels) {
    const list = shown.filter((e) => e.level === level);
    if (list.length === 0) continue;
    const row = (e: (typeof list)[number]) => key(e) + "\u0000" + e.arm;
    const begins = new Set(list.filter((e, i) => i === 0 || list[i - 1].metric !== e.metric).map(row));
    const back = list.flatMap((s) => twins.filter((t) => t.metric === s.metric && t.level === s.level)
      .map((t) => ({ row: row(s), t })));
    const plot = Plot.plot({
      width: f.width, height: 50 + (list.length > 1.5 * begins.size ? 20 : 28) * list.length, marginLeft: left,
      marginRight: 30, marginTop: 8, marginBottom: 38,
      x: axis.options,
      y: { domain: list.map(row), label: null, tickFormat: (r: string) => (begins.has(r) ? r.split("\u0000")[0] : ""),
        tickSize: 0 },
      color: paint,
      marks: [
        Plot.barX(back, { x1: (b) => axis.to(b.t.changeLo), x2: (b) => axis.to(b.t.changeHi), y: "row",
          fill: "var(--band)", fillOpacity: 0.28, insetTop: 3, insetBottom: 3, clip: true, className: "backdrop" }),
        Plot.ruleX([axis.zero], { stroke: "currentColor" }),
        Plot.ruleY(list, { y: row, x1: (e) => axis.to(e.changeLo), x2: (e) => axis.to(e.changeHi),
          stroke: (e) => all[e.arm].colour, strokeWidth: 1.75, clip: true }),
        ...dots(all, list, (e) => e.arm, { x: (e) => axis.to(e.change), y: row, r: 4.5 }, (e) => e.resolved),
        Plot.tip(list, Plot.pointer(tip({
          x: (e) => axis.to(e.change), y: row, channels: {},
          title: (e) => `${key(e)}${where(d, e.level)}\n${all[e.arm].name}: ${e.text}\n${e.verdict}\n` +
            (e.resolved ? "resolved" : "not resolved"),
        } as Plot.TipOptions))),
      ],
    });
    place(f, plot, `Change from the baseline in per cent${where(d, level)}`, d.levels[level].name || undefined,
      undefined, true);
    if (list.some((e) => [e.changeLo, e.changeHi].some((c) => c != null && !fits(1 + c))))
      hint(f, "Intervals that end at the edge go on beyond it; the tables have them whole.");
    const same = [...new Set(estimates.filter((e) => e.level === level && !differs(e) && first(e.metric)).map(key))];
    if (same.length > 0) hint(f, `Resolved in no arm${where(d, level)}, and not drawn: ${same.join(", ")}.`);
  }
};

export function hint(f: Figure, text: string): void {
  const p = document.createElement("p");
  p.className = "hint";
  p.textContent = text;
  f.box.append(p);
}

/** values draws the values of all arms, in a small plot for each metric; nothing if the run has several levels. */
export const values: Draw = (d, f) => {
  const all = looks(d);
  const one = d.levels.length === 1;
  if (!one) return; // the chart of the sweep shows them against the factor, and the tables by level
  const g = grid(f, 3, 250);
  const first = firstOnly(d);
  for (const [i, m] of d.metrics.entries()) {
    const list = d.estimates.filter((e) => e.metric === i);
    if (m.lag || m.ladder || !first(i) || list.length < 2) continue;
    if (list.every((e) => e.value === list[0].value && !e.lo)) continue;
    const s = scaleOf(m.unit, range(list, (e) => [e.value, e.hi]));
    const by = (v: number | null) => (v == null ? NaN : v / s.factor);
    const plot = Plot.plot({
      width: g.width, height: 40 + 24 * list.length, marginLeft: 82, marginRight: 14, marginTop: 4, marginBottom: 24,
      x: { label: null, nice: true, ticks: Math.max(3, Math.floor(g.width / 80)), grid: true, tickFormat: short },
      y: { domain: list.map((e) => all[e.arm].name), label: null, tickSize: 0 }, color: paint,
      marks: [
        Plot.ruleY(list, { y: (e) => all[e.arm].name, x1: (e) => by(e.lo), x2: (e) => by(e.hi),
          stroke: (e) => all[e.arm].colour, strokeWidth: 1.75 }),
        ...dots(all, list, (e) => e.arm, { x: (e) => by(e.value), y: (e) => all[e.arm].name, r: 4 }),
        Plot.tip(list, Plot.pointer(tip({ x: (e) => by(e.value), y: (e) => all[e.arm].name,
          title: (e) => `${m.label}\n${all[e.arm].name}: ${e.text}${e.verdict ? "\n" + e.verdict : ""}`,
        } as Plot.TipOptions))),
      ],
    });
    place(g, plot, `${m.label} by arm`, m.label, s.name, true);
  }
};

const percentName = (q: number): string => `${Number((100 * q).toPrecision(6))} %`;
// The position of a percentile depends on how rare larger values are: 90, 99 and 99.9 % are equally far apart.
const rarity = (q: number): number => -Math.log10(1 - q);
const percentTicks = [0.01, 0.5, 0.9, 0.99, 0.999, 0.9999];

function percentAxis(d: Data): Plot.ScaleOptions {
  const top = Math.max(...d.curves.flatMap((c) => c.points.map((p) => p.q)));
  return {
    domain: [0, rarity(top) * 1.02], ticks: percentTicks.filter((q) => q <= top).map(rarity), label: "percentile",
    labelAnchor: "center", labelArrow: "none",
    tickFormat: (v: number) => percentName(1 - 10 ** -v), grid: true,
  };
}

/** drawn returns the levels whose curves are drawn: all, or mostLevels of them from the first to the last. */
function drawn(d: Data): number[] {
  const have = d.levels.map((_, i) => i).filter((i) => d.curves.some((c) => c.level === i));
  if (have.length <= mostLevels) return have;
  return Array.from({ length: mostLevels }, (_, i) => have[Math.round((i * (have.length - 1)) / (mostLevels - 1))]);
}

export const latency: Draw = (d, f) => {
  const all = looks(d);
  const levels = drawn(d);
  if (levels.length === 0) return;
  armLegend(f, all, true, true);
  const g = grid(f, levels.length === 1 ? 1 : 2, 380);
  for (const level of levels) {
    const points = d.curves.filter((c) => c.level === level)
      .flatMap((c) => c.points.map((p) => ({ ...p, arm: c.arm })));
    const base = points.filter((p) => d.arms[p.arm].baseline);
    const values = range(points, (p) => [p.lo ?? p.value, p.hi ?? p.value]);
    const s = scaleOf("seconds", [Math.max(...values) / 4]);
    const log = Math.max(...values) > 8 * Math.min(...values);
    const floor = Math.min(...values) / 2;
    const by = (v: number | null) => (v == null ? NaN : v / s.factor);
    const plot = Plot.plot({
      width: g.width, height: Math.min(360, g.width * 0.62), marginLeft: 52, marginRight: 14, marginTop: 14,
      marginBottom: 38,
      x: percentAxis(d),
      y: { type: log ? "log" : "linear", label: null, grid: true, nice: true, ticks: 6, tickFormat: short },
      color: paint,
      marks: [
        Plot.areaY(base.filter((p) => p.visible != null), {
          x: (p) => rarity(p.q), y1: (p) => by(Math.max(p.value - p.visible!, floor)),
          y2: (p) => by(p.value + p.visible!), fill: "var(--band)", fillOpacity: 0.25, className: "backdrop",
        }),
        ...all.map((l, i) => Plot.line(points.filter((p) => p.arm === i), { x: (p) => rarity(p.q),
          y: (p) => by(p.value), stroke: l.colour, strokeDasharray: l.dash, strokeWidth: 1.75 })),
        ...dots(all, points, (p) => p.arm, { x: (p) => rarity(p.q), y: (p) => by(p.value), r: 2.8 }),
        Plot.tip(points, Plot.pointer(tip({ x: (p) => rarity(p.q), y: (p) => by(p.value),
          title: (p) => `${percentName(p.q)} of ${all[p.arm].name}: ${p.text}` +
            (p.verdict ? "\nto direct " + p.verdict : "") } as Plot.TipOptions))),
      ],
    });
    place(g, plot, `Latency by percentile${where(d, level)}`, d.levels.length > 1 ? d.levels[level].name : "latency",
      s.name + (log ? ", logarithmic" : ""));
  }
};

export const where = (d: Data, level: number): string => (d.levels[level].name ? ` at ${d.levels[level].name}` : "");

export const latencyDifference: Draw = (d, f) => {
  const all = looks(d);
  const levels = drawn(d).filter((l) => d.curves.some((c) => c.level === l && c.points.some((p) => p.diff != null)));
  if (levels.length === 0) return;
  const others = d.arms.some((a) => !a.baseline && !a.twin);
  const g = grid(f, levels.length === 1 ? 1 : 2, 380);
  for (const level of levels) {
    const points = d.curves.filter((c) => c.level === level && !d.arms[c.arm].baseline &&
      (!others || !d.arms[c.arm].twin))
      .flatMap((c) => c.points.filter((p) => p.diff != null).map((p) => ({ ...p, arm: c.arm })));
    const band = d.curves.find((c) => c.level === level && d.arms[c.arm].baseline)?.points.filter((p) =>
      p.visible != null) ?? [];
    // The last percentiles may be a hundred times as noisy as the others, and would flatten the curves on a linear
    // axis. The axis is then linear only near 0, and logarithmic beyond the size of a typical difference.
    const sizes = [...range(points, (p) => [p.diffLo ?? p.diff, p.diffHi ?? p.diff]), ...range(band,
      (p) => [p.visible])].map(Math.abs).sort((a, b) => a - b);
    const largest = sizes[sizes.length - 1] || 1e-9;
    const typical = sizes[Math.floor(0.5 * (sizes.length - 1))] || largest;
    const bent = largest > 8 * typical;
    const s = scaleOf("seconds", [bent ? typical : largest]);
    const constant = 10 ** Math.round(Math.log10(typical / s.factor));
    const by = (v: number | null) => (v == null ? NaN : v / s.factor);
    const ticks = [0];
    for (let t = constant; t <= largest / s.factor; t *= 10) ticks.push(t, -t, ...(3 * t <= largest / s.factor ? [3 * t,
      -3 * t] : []));
    const plot = Plot.plot({
      width: g.width, height: Math.min(280, g.width * 0.6), marginLeft: 52, marginRight: 14, marginTop: 14,
      marginBottom: 38,
      x: percentAxis(d),
      y: { label: null, grid: true, ...(bent ? { type: "symlog" as const, constant, ticks, domain: [-largest / s.factor,
        largest / s.factor] } : { nice: true }), tickFormat: (v: number) => (v > 0 ? "+" : "") + short(v) },
        color: paint,
      marks: [
        Plot.areaY(band, { x: (p) => rarity(p.q), y1: (p) => by(-p.visible!), y2: (p) => by(p.visible),
          fill: "var(--band)", fillOpacity: 0.25, className: "backdrop" }),
        Plot.ruleY([0], { stroke: "currentColor" }),
        Plot.ruleX(points, { x: (p) => rarity(p.q), y1: (p) => by(p.diffLo), y2: (p) => by(p.diffHi),
          stroke: (p) => all[p.arm].colour, strokeWidth: 1.5 }),
        ...all.map((l, i) => Plot.line(points.filter((p) => p.arm === i), { x: (p) => rarity(p.q), y: (p) => by(p.diff),
          stroke: l.colour, strokeDasharray: l.dash })),
        ...dots(all, points, (p) => p.arm, { x: (p) => rarity(p.q), y: (p) => by(p.diff), r: 3.6 },
          (p) => !p.verdict.includes("not resolved")),
        Plot.tip(points, Plot.pointer(tip({ x: (p) => rarity(p.q), y: (p) => by(p.diff),
          title: (p) => `${percentName(p.q)} of ${all[p.arm].name}\n${p.verdict}` } as Plot.TipOptions))),
      ],
    });
    place(g, plot, `Latency difference by percentile${where(d, level)}`, d.levels.length > 1 ? d.levels[level].name
      : "difference to direct", bent ? `${s.name}; the axis is logarithmic beyond ${short(constant)} ${s.name}`
      : s.name);
  }
};

// Metrics that a sweep shows even if no arm differs in them, because they show what the factor does to the machine.
const always = /^(bpf_cpu_share|cpu_busy_share|throughput_|latency_p50|latency_p99_)/;
// shownAbove reports whether a chart of an answer (answers.ts) already shows a metric.
const shownAbove = (d: Data, m: Metric): boolean => (d.usable != null && m.name.startsWith("sched_delay_")) ||
  (d.limits.length > 0 && /^limit(ed)?_/.test(m.name)) ||
  (d.stairs.length > 0 && /^(map|memory_kernel|memory_hard)(_before|_after)?_bytes$/.test(m.name));

const mostFacets = 6; // maximum number of levels of the other factors that are drawn

/**
 * sweep draws each metric against the swept factor, with the fitted line if the metric is linear. Each level of the
 * other factors has a separate plot with the same axes. Metrics in which no arm differs are folded away.
 */
export const sweep: Draw = (d, f) => {
  const all = looks(d);
  const factor = d.factor;
  if (!factor) return;
  const others = d.arms.some((a) => !a.baseline && !a.twin);
  const arms = all.map((_, i) => i).filter((i) => !others || !d.arms[i].twin);
  const beside = (k: number) => 6 * (k - (arms.length - 1) / 2); // pixels, so that no arm hides another
  armLegend(f, arms.map((i) => all[i]), true);
  const open = grid(f, 2, 340);
  const fold = document.createElement("details");
  fold.className = "long";
  const summary = document.createElement("summary");
  const folded = grid({ box: fold, width: f.width }, 2, 340);
  const names: string[] = [];
  for (const [i, m] of d.metrics.entries()) {
    const list = d.estimates.filter((e) => e.metric === i && arms.includes(e.arm))
      .map((e) => ({ ...e, x: d.levels[e.level].numbers[factor], rest: d.levels[e.level].rest }))
      .sort((a, b) => a.x - b.x);
    if (m.lag || list.length < 3 || list.every((e) => e.value === list[0].value)) continue;
    const models = d.models.filter((x) => x.metric === i && arms.includes(x.arm));
    const rests = [...new Set(list.map((e) => e.rest))].slice(0, mostFacets);
    const tells = always.test(m.name) || (!shownAbove(d, m) && (list.some((e) => e.resolved) ||
      models.some((x) => x.caption)));
    const g = tells ? open : folded;
    if (!tells) names.push(m.label);
    // A wide range is drawn on a logarithmic axis. That axis has no 0, so the title names the arms that are 0.
    const positive = range(list, (e) => [e.value]).filter((v) => v > 0);
    const wide = list.every((e) => e.value >= 0) && positive.length > 1 &&
      Math.max(...positive) > 50 * Math.min(...positive) && models.length === 0;
    const floor = Math.min(...positive) / 2;
    const zeros = wide ? [...new Set(list.filter((e) => e.value === 0).map((e) => all[e.arm].name))] : [];
    const s = scaleOf(m.unit, range(list, (e) => [e.value, e.hi]));
    const by = (v: number | null) => (v == null || (wide && v <= 0) ? NaN : v / s.factor);
    const low = (v: number | null) => (v == null ? NaN : wide ? Math.max(v, floor) / s.factor : v / s.factor);
    const xs = range(list, (e) => [e.x]);
    const axis = levelAxis(d.factorName, xs, g.width);
    const [lo, hi] = [Math.min(...xs), Math.max(...xs)];
    // If the metric is not linear, only the measured values are drawn.
    const lines = models.filter((x) => x.linear).flatMap((x) =>
      rests.map((r) => {
        const at = list.find((e) => e.rest === r)!;
        const fixed = x.fixed + Object.entries(x.slopes).reduce((sum, [name, slope]) => (name === factor ? sum
          : sum + slope * (d.levels[at.level].numbers[name] ?? 0)), 0);
        const steps = Array.from({ length: 41 }, (_, k) => (axis.log ? lo * (hi / lo) ** (k / 40)
          : lo + ((hi - lo) * k) / 40));
        return { model: x, rest: r, line: steps.map((v) => ({ x: v, y: fixed + (x.slopes[factor] ?? 0) * v })) };
      }));
    const modelled = new Set(lines.map((x) => x.model.arm));
    const text = models.find((x) => x.caption && !d.arms[x.arm].baseline)?.caption;
    // A level without a value is a gap in the line.
    const distinct = [...new Set(xs)].sort((a, b) => a - b);
    const joined = arms.filter((a) => !modelled.has(a))
      .flatMap((a) => rests.flatMap((r) =>
      distinct.map((x) => ({ arm: a, rest: r, x, y: by(list.find((e) => e.arm === a && e.rest === r &&
        e.x === x)?.value ?? null) }))));
    const zero = list.every((e) => e.value >= 0) && Math.min(...range(list, (e) => [e.value])) <
      0.6 * Math.max(...range(list, (e) => [e.value]));
    const ends = range(list.filter((e) => rests.includes(e.rest)), (e) => [low(e.lo), by(e.value), by(e.hi)])
      .filter(Number.isFinite);
    const domain = rests.length > 1 ? { domain: [zero && !wide ? 0 : Math.min(...ends), Math.max(...ends)] } : {};
    for (const r of rests) {
      const here = list.filter((e) => e.rest === r);
      const plot = Plot.plot({
        width: g.width, height: 230, marginLeft: 60, marginRight: 18, marginTop: 10, marginBottom: 38,
        x: axis.x,
        y: { label: null, grid: true, nice: true, tickFormat: short, ...domain,
          ...(wide ? { type: "log" as const, ticks: 4 } : { zero }) }, color: paint,
        marks: [
          axis.mark,
          ...lines.filter((x) => x.rest === r).map((x) => Plot.line(x.line, { x: "x", y: (p) => by(p.y),
            stroke: all[x.model.arm].colour, strokeDasharray: all[x.model.arm].dash, strokeWidth: 1.5 })),
          ...arms.map((a) => Plot.line(joined.filter((p) => p.arm === a && p.rest === r), { x: "x", y: "y",
            stroke: all[a].colour, strokeDasharray: all[a].dash, strokeWidth: 1, strokeOpacity: 0.7 })),
          ...arms.map((a, k) => Plot.ruleX(here.filter((e) => e.arm === a), { x: "x", y1: (e) => low(e.lo),
            y2: (e) => by(e.hi), stroke: all[a].colour, strokeWidth: 1.75, dx: beside(k) })),
          ...arms.flatMap((a, k) => dots(all, here.filter((e) => e.arm === a), (e) => e.arm,
            { x: "x", y: (e) => by(e.value), r: 4, dx: beside(k) }, (e) => d.arms[e.arm].baseline || e.resolved ||
            !e.verdict)),
          Plot.tip(here, Plot.pointer(tip({ x: "x", y: (e) => by(e.value),
            title: (e) => `${m.label} of ${all[e.arm].name}\nat ${d.levels[e.level].name}: ${e.text}` +
              (e.verdict ? `\nto ${baselineName(d)} ` + e.verdict : "") } as Plot.TipOptions))),
        ],
      });
      const facet = rests.length > 1 ? `${r}: ${m.label}` : m.label;
      place(g, plot, `${facet} against ${d.factorName}`, facet,
        wide ? `${s.name}${s.name ? ", " : ""}logarithmic${zeros.length > 0 ? `; 0 in ${zeros.join(", ")}` : ""}`
        : s.name);
    }
    if (text) hint({ box: g.box.lastElementChild as HTMLElement, width: g.width }, text);
  }
  if (names.length > 0) {
    summary.textContent = `${names.length} more, drawn above or in which no arm differs`;
    fold.prepend(summary);
    f.box.append(fold);
  }
  if (open.box.childElementCount === 0) open.box.remove();
};

export function partLegend(f: Figure, parts: Part[], more: LegendItem[] = []): void {
  legend(f, [...[...new Set(parts.map((p) => p.part))].map((name) => ({ name, mark: Plot.rect(middle, { x1: 0, x2: 1,
    y1: 0, y2: 1, fill: fillOf(name), stroke: "var(--ink)", strokeOpacity: 0.35 }) })), ...more]);
}

interface Stacked extends Part { from: number; to: number; row: string }

/** stack lays out the parts of each bar one after the other, in their order. A negative part has no width. */
export function stack(d: Data, parts: Part[]): Stacked[] {
  const ends = new Map<string, number>();
  return parts.map((p) => {
    const row = d.arms[p.arm].name;
    const key = `${p.group}\u0000${row}\u0000${p.level}`;
    const from = ends.get(key) ?? 0;
    const to = from + Math.max(p.value, 0);
    ends.set(key, to);
    return { ...p, from, to, row };
  });
}

/** bars draws stacked bars: a band for each group of bars, with a row for each arm in it. */
function bars(d: Data, f: Figure, parts: Part[], name: (level: number) => string, unit: string, note: (arm: number,
  level: number, group: string, sum: string) => string): void {
  partLegend(f, parts);
  const levels = [...new Set(parts.map((p) => p.level))];
  const shownLevels = levels.length <= mostLevels ? levels : [levels[0], levels[Math.floor(levels.length / 2)],
    levels[levels.length - 1]];
  const s = scaleOf(unit, stack(d, parts).map((p) => p.to));
  const most = Math.max(...stack(d, parts).map((p) => p.to)) / s.factor;
  const g = grid(f, levels.length === 1 ? 1 : 2, 400);
  for (const level of shownLevels) {
    const list = stack(d, parts.filter((p) => p.level === level));
    const groups = [...new Set(list.map((p) => p.group))];
    const arms = d.arms.map((a) => a.name).filter((a) => list.some((p) => p.row === a));
    const ends = groups.flatMap((g) => arms.flatMap((a) => {
      const of = list.filter((p) => p.group === g && p.row === a);
      if (of.length === 0) return [{ group: g, row: a, to: 0, text: "none" }]; // no such groups, which is not 0 bytes
      const to = Math.max(...of.map((p) => p.to)) / s.factor;
      return [{ group: g, row: a, to, text: note(of[0].arm, level, g, `${Number(to.toPrecision(3))} ${s.name}`) }];
    }));
    const plot = Plot.plot({
      width: g.width, height: 56 + groups.length * (arms.length * 23 + 30), marginLeft: 96, marginRight: 118,
      marginTop: 22, marginBottom: 34,
      x: { label: unit === "part" ? "part of the machine's capacity (%)" : s.name, domain: [0, most], nice: true,
        grid: true, labelAnchor: "center", labelArrow: "none", tickFormat: short, ticks: Math.max(3,
        Math.floor(g.width / 110)) },
      y: { domain: arms, label: null, tickSize: 0, padding: 0.22 }, fy: { domain: groups, label: null, axis: null,
        padding: 0.26 }, color: paint,
      marks: [
        Plot.barX(list, { fy: "group", y: "row", x1: (p) => p.from / s.factor, x2: (p) => p.to / s.factor,
          fill: (p) => fillOf(p.part), stroke: "var(--paper)", strokeWidth: 0.75 }),
        Plot.ruleX([0], { stroke: "currentColor" }),
        Plot.text(groups, { fy: (g: string) => g, text: (g: string) => g, frameAnchor: "top-left", dx: -90, dy: -13,
          fontWeight: 600, fill: "currentColor" }),
        Plot.text(ends, { fy: "group", y: "row", x: "to", text: "text", dx: 6, textAnchor: "start",
          fill: "currentColor" }),
        Plot.tip(list, Plot.pointer(tip({ fy: "group", y: "row", x: (p: Stacked) => (p.from + p.to) / 2 / s.factor,
          title: (p: Stacked) => `${p.part} in ${p.row}${where(d, level)}\n${p.text}`,
          maxRadius: 60 } as Plot.TipOptions))),
      ],
    });
    place(g, plot, name(level), levels.length > 1 ? d.levels[level].name : undefined, undefined, true);
  }
}

export const cpu: Draw = (d, f) => {
  if (d.cpu.length === 0) return;
  const idle = (arm: number, level: number) => d.cpuSum.find((c) => c.arm === arm && c.level === level)?.idle ?? 0;
  const last = d.cpu[d.cpu.length - 1].group;
  bars(d, f, d.cpu, (l) => `CPU time by arm${where(d, l)}`, "part", (arm, level, group, sum) => sum + (group === last
    ? `, idle ${(100 * idle(arm, level)).toFixed(0)} %` : ""));
};

export const memory: Draw = (d, f) => {
  if (d.memory.length === 0) return;
  bars(d, f, d.memory, (l) => `Memory by role and arm${where(d, l)}`, "bytes", (_arm, _level, _group, sum) => sum);
};

const mostTrialPlots = 6;

/**
 * trials draws the values of single trials over time. In a sweep it draws their changes from the median of the arm at
 * the level, so that all levels fit on one axis.
 */
export const trials: Draw = (d, f) => {
  const all = looks(d);
  const list = d.trials;
  if (list.length === 0) return;
  const varies = (m: Metric) => new Set(list.map((t) => t.values[m.name])).size > 3;
  const some = list.some((t) => d.arms[t.arm].baseline && t.valid);
  const metrics = d.metrics.filter((m) => !m.lag && m.unit !== "part" && varies(m) &&
    (!some || list.some((t) => d.arms[t.arm].baseline && t.values[m.name])))
    .sort((a, b) => d.metrics.indexOf(a) - d.metrics.indexOf(b)).slice(0, mostTrialPlots);
  const relative = d.levels.length > 1;
  const end = Math.max(...list.map((t) => t.at));
  const minutes = end > 180;
  const at = (t: { at: number }) => (minutes ? t.at / 60 : t.at);
  const sorted = [...list].sort((a, b) => a.at - b.at);
  const blocks = [...new Set(sorted.map((t) => t.block))].map((b) => {
    const of = sorted.filter((t) => t.block === b);
    const after = sorted.find((t) => t.at > of[of.length - 1].at);
    return { block: b, from: at(of[0]), to: after ? at(after) : minutes ? end / 60 : end };
  });
  armLegend(f, all, false, false, list.some((t) => !t.valid) ? [{ name: "left out", mark: Plot.dot(middle,
    { x: "x", y: "y", symbol: "asterisk", stroke: "var(--bad)", strokeWidth: 1.75, r: 5.5 }) }] : []);
  const g = grid(f, 2, 380);
  for (const m of metrics) {
    const have = list.filter((t) => t.values[m.name] != null);
    const typical = new Map<string, number>();
    for (const t of have) {
      const k = `${t.arm} ${t.level}`;
      if (typical.has(k)) continue;
      const alike = have.filter((u) => u.arm === t.arm && u.level === t.level);
      // if none is valid, the median is that of the invalid ones
      const vs = (alike.some((u) => u.valid) ? alike.filter((u) => u.valid) : alike)
        .map((u) => u.values[m.name]).sort((a, b) => a - b);
      typical.set(k, vs[Math.floor(vs.length / 2)] ?? NaN);
    }
    const s = relative ? { factor: 1, name: "% from the median of its arm and level" } : scaleOf(m.unit,
      have.map((t) => t.values[m.name]));
    const y = (t: (typeof have)[number]) => (relative
      ? 100 * (t.values[m.name] / typical.get(`${t.arm} ${t.level}`)! - 1) : t.values[m.name] / s.factor);
    const title = (t: (typeof have)[number]) =>
      `trial ${t.index}, block ${t.block}: ${all[t.arm].name}${where(d, t.level)}\n` +
      `${m.label} ${t.texts[m.name]}, at ${t.at.toFixed(1)} s${t.valid ? "" : "\nleft out: " + t.why}`;
    const plot = Plot.plot({
      width: g.width, height: 190, marginLeft: 52, marginRight: 12, marginTop: 8, marginBottom: 36,
      x: { label: minutes ? "minutes since the first trial" : "seconds since the first trial", labelAnchor: "center",
        labelArrow: "none", insetLeft: 6, insetRight: 6, tickFormat: short },
      y: { label: null, grid: true, nice: true, ticks: 5, tickFormat: short }, color: paint,
      marks: [
        Plot.rectX(blocks.filter((b) => b.block % 2 === 1), { x1: "from", x2: "to", fill: "currentColor",
          fillOpacity: 0.05, className: "backdrop" }),
        relative ? Plot.ruleY([0], { stroke: "currentColor", strokeOpacity: 0.5 }) : null,
        ...dots(all, have.filter((t) => t.valid && Number.isFinite(y(t))), (t) => t.arm, { x: at, y, r: 3.4 }),
        Plot.dot(have.filter((t) => !t.valid), { x: at, y, symbol: "asterisk", stroke: "var(--bad)", strokeWidth: 1.75,
          r: 5.5 }),
        // A trial without a value is drawn at the bottom: it has a time and a reason, but no height.
        Plot.dot(list.filter((t) => !t.valid && t.values[m.name] == null), { x: at, frameAnchor: "bottom",
          symbol: "asterisk", stroke: "var(--bad)", strokeWidth: 1.75, r: 5.5, title: (t: (typeof list)[number]) =>
          `trial ${t.index}, block ${t.block}: ${all[t.arm].name}${where(d, t.level)}\nleft out: ${t.why}` }),
        Plot.tip(have.filter((t) => Number.isFinite(y(t))), Plot.pointer(tip({ x: at, y, title } as Plot.TipOptions))),
      ],
    });
    place(g, plot, `${m.label} in order of time`, m.label, s.name);
  }
};

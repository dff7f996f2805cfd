import * as Plot from "@observablehq/plot";
import type { Course, Placed } from "./data";
import {
  armLegend,
  dots,
  grid,
  legend,
  middle,
  paint,
  partLegend,
  place,
  range,
  stack,
  tip,
  where,
  type Draw,
} from "./charts";
import { fillOf, looks } from "./style";
import { scaleOf, short } from "./units";

// These charts show what any guest can record in addition to its metrics: ladders of metrics, where memory and CPU time
// are charged, and amounts over the course of a trial.

const ends = (levels: number[]): number[] => {
  const all = [...new Set(levels)].sort((a, b) => a - b);
  return all.length <= 2 ? all : [all[0], all[all.length - 1]];
};
const margin = (names: string[], width: number): number =>
  Math.min(16 + 6.6 * Math.max(...names.map((n) => n.length)), width * 0.36);

/** ladder draws a row for each rung of a ladder, with a value and its interval for each arm, on a logarithmic axis. */
export const ladder: Draw = (d, f) => {
  const all = looks(d);
  const others = d.arms.some((a) => !a.baseline && !a.twin);
  for (const name of new Set(d.metrics.filter((m) => m.ladder).map((m) => m.ladder))) {
    const rungs = d.metrics.map((m, i) => ({ ...m, i })).filter((m) => m.ladder === name);
    const list = d.estimates.filter(
      (e) => rungs.some((r) => r.i === e.metric) && e.value > 0 && !(others && d.arms[e.arm].twin),
    );
    if (list.length === 0) continue;
    const arms = all.map((_, i) => i).filter((i) => list.some((e) => e.arm === i));
    armLegend(
      f,
      arms.map((i) => all[i]),
    );
    const unit = rungs[0].unit;
    const values = range(list, (e) => [e.value, e.lo, e.hi]).filter((v) => v > 0);
    const [bottom, top] = [Math.min(...values) / 1.3, Math.max(...values) * 1.3];
    const text = (v: number) => {
      const s = scaleOf(unit, [v * 1.0000001]);
      return `${short(Number((v / s.factor).toPrecision(3)))} ${s.name}`;
    };
    const beside = (arm: number) => 6 * (arms.indexOf(arm) - (arms.length - 1) / 2);
    const rung = (e: { metric: number }) => d.metrics[e.metric].rung;
    const ticks = Array.from({ length: 31 }, (_, k) => 10 ** (k - 12)).filter((v) => v >= bottom && v <= top);
    for (const level of ends(list.map((e) => e.level))) {
      const here = list.filter((e) => e.level === level);
      const names = rungs.filter((r) => here.some((e) => e.metric === r.i)).map((r) => r.rung);
      const plot = Plot.plot({
        width: f.width,
        height: 56 + names.length * (14 + 6.5 * arms.length),
        marginLeft: margin(names, f.width),
        marginRight: 24,
        marginTop: 8,
        marginBottom: 38,
        x: {
          type: "log",
          domain: [bottom, top],
          grid: true,
          label: `${name}, logarithmic`,
          labelAnchor: "center",
          labelArrow: "none",
          ticks,
          tickFormat: text,
        },
        y: { domain: names, label: null, tickSize: 0 },
        color: paint,
        marks: [
          ...arms.map((a) =>
            Plot.ruleY(
              here.filter((e) => e.arm === a),
              {
                y: rung,
                x1: (e) => Math.max(e.lo ?? NaN, bottom),
                x2: (e) => e.hi ?? NaN,
                stroke: all[a].colour,
                strokeWidth: 1.75,
                dy: beside(a),
              },
            ),
          ),
          ...arms.flatMap((a) =>
            dots(
              all,
              here.filter((e) => e.arm === a),
              (e) => e.arm,
              { x: "value", y: rung, r: 4, dy: beside(a) },
              (e) => d.arms[e.arm].baseline || e.resolved || !e.verdict,
            ),
          ),
          Plot.tip(
            here,
            Plot.pointer(
              tip({
                x: "value",
                y: rung,
                title: (e) =>
                  `${rung(e)}, ${all[e.arm].name}${where(d, level)}\n${e.text}` +
                  (e.verdict ? `\nto direct ${e.verdict}` : ""),
              } as Plot.TipOptions),
            ),
          ),
        ],
      });
      place(f, plot, `${name} by step${where(d, level)}`, d.levels[level].name || undefined, undefined, true);
    }
  }
};

/**
 * placed draws a bar for each arm, divided by the places that are charged. Memory and CPU time have a separate plot at
 * the first and at the last level.
 */
export const placed: Draw = (d, f) => {
  if (d.placed.length === 0) return;
  partLegend(f, d.placed);
  const levels = ends(d.placed.map((p) => p.level));
  const g = grid(f, 2, 380);
  for (const level of levels) {
    for (const group of new Set(d.placed.map((p) => p.group))) {
      const list = stack(
        d,
        d.placed.filter((p) => p.level === level && p.group === group),
      ) as (Placed & { from: number; to: number; row: string })[];
      if (list.length === 0) continue;
      const s = scaleOf(
        list[0].unit,
        list.map((p) => p.to),
      );
      const rows = d.arms.map((a) => a.name).filter((a) => list.some((p) => p.row === a));
      const plot = Plot.plot({
        width: g.width,
        height: 56 + 30 * rows.length,
        marginLeft: margin(rows, g.width),
        marginRight: 20,
        marginTop: 8,
        marginBottom: 38,
        x: {
          label: `${group}, ${s.name}`,
          grid: true,
          nice: true,
          zero: true,
          labelAnchor: "center",
          labelArrow: "none",
          tickFormat: short,
          ticks: Math.max(3, Math.floor(g.width / 110)),
        },
        y: { domain: rows, label: null, tickSize: 0, padding: 0.3 },
        color: paint,
        marks: [
          Plot.barX(list, {
            y: "row",
            x1: (p) => p.from / s.factor,
            x2: (p) => p.to / s.factor,
            fill: (p) => fillOf(p.part),
            stroke: "var(--paper)",
            strokeWidth: 0.75,
          }),
          Plot.ruleX([0], { stroke: "currentColor" }),
          Plot.tip(
            list,
            Plot.pointer(
              tip({
                y: "row",
                x: (p: { from: number; to: number }) => (p.from + p.to) / 2 / s.factor,
                title: (p: Placed & { row: string }) =>
                  `${p.row}${where(d, level)}\n${p.text} of ${group} charged to: ${p.part}`,
                maxRadius: 60,
              } as Plot.TipOptions),
            ),
          ),
        ],
      });
      place(
        g,
        plot,
        `${group} by who is charged${where(d, level)}`,
        `${group[0].toUpperCase()}${group.slice(1)}${where(d, level)}`,
        undefined,
        true,
      );
    }
  }
};

interface Layer {
  x: number;
  from: number;
  to: number;
  of: string;
  kind: string;
  layer: string;
  text: string;
}

/**
 * layers stacks the parts of a course, with those of one component next to each other. A value that is unknown at a
 * moment has no height there.
 */
function layers(c: Course, scale: number, name: string): Layer[] {
  const order = [...new Set(c.parts.map((p) => p.of))];
  const parts = order.flatMap((of) => c.parts.filter((p) => p.of === of));
  const base = c.seconds.map(() => 0);
  return parts.flatMap((p) =>
    p.values.map((v, i) => {
      const from = base[i];
      base[i] += (v ?? 0) / scale;
      return {
        x: c.seconds[i],
        from,
        to: base[i],
        of: p.of,
        kind: p.kind,
        layer: `${p.of}\u0000${p.kind}`,
        text: `${p.of}, ${p.kind}: ${v == null ? "not known" : `${Number((v / scale).toPrecision(3))} ${name}`}`,
      };
    }),
  );
}

/**
 * courses draws amounts over time as stacked areas. Each series has a row of plots at the first and at the last level,
 * with a plot for each arm. The legend names the kinds of parts, and the right edge of a plot the components.
 */
export const courses: Draw = (d, f) => {
  if (d.courses.length === 0) return;
  const kinds = [...new Set(d.courses.flatMap((c) => c.parts.map((p) => p.kind)))];
  legend(
    f,
    kinds.map((name) => ({
      name,
      mark: Plot.rect(middle, {
        x1: 0,
        x2: 1,
        y1: 0,
        y2: 1,
        fill: fillOf(name),
        stroke: "var(--ink)",
        strokeOpacity: 0.35,
      }),
    })),
  );
  for (const name of new Set(d.courses.map((c) => c.name))) {
    const same = d.courses.filter((c) => c.name === name);
    for (const level of ends(same.map((c) => c.level))) {
      const list = same.filter((c) => c.level === level);
      const title = document.createElement("h4");
      title.className = "row";
      title.textContent = `${name[0].toUpperCase()}${name.slice(1)}${where(d, level)}`;
      f.box.append(title);
      const sums = list.flatMap((c) =>
        c.seconds.map((_, i) => c.parts.reduce((sum, p) => sum + (p.values[i] ?? 0), 0)),
      );
      const top = (c: Course): number =>
        Math.max(...c.seconds.map((_, i) => c.parts.reduce((sum, p) => sum + (p.values[i] ?? 0), 0)));
      const highest = Math.max(...sums);
      const g = grid(f, 3, 260);
      for (const c of list) {
        const apart = top(c) < highest / 8; // too low to be read on the others' scale
        const s = scaleOf(c.unit, [apart ? top(c) : highest]);
        const most = (apart ? top(c) : highest) / s.factor;
        const all = layers(c, s.factor, s.name);
        const keys = [...new Set(all.map((l) => l.layer))];
        const last = c.seconds[c.seconds.length - 1];
        // The upper edge of each component; its name is drawn if the component is thick enough.
        const tops = [...new Set(all.map((l) => l.of))].map((of) => {
          const mine = all.filter((l) => l.of === of);
          const at = mine.filter((l) => l.x === last);
          return {
            of,
            edge: mine.filter((l) => l.layer === mine[mine.length - 1].layer),
            middle: (Math.min(...at.map((l) => l.from)) + Math.max(...at.map((l) => l.to))) / 2,
            thick: Math.max(...at.map((l) => l.to)) - Math.min(...at.map((l) => l.from)),
          };
        });
        const moments = c.seconds.map((x, i) => ({
          x,
          y: all.filter((l) => l.x === x).reduce((m, l) => Math.max(m, l.to), 0),
          text: [
            `${d.arms[c.arm].name}${where(d, level)}, ${x} s`,
            ...keys.map((k) => all.find((l) => l.layer === k && l.x === x)?.text ?? "").reverse(),
          ].join("\n"),
          i,
        }));
        const plot = Plot.plot({
          width: g.width,
          height: 200,
          marginLeft: 46,
          marginRight: 62,
          marginTop: 8,
          marginBottom: 36,
          x: {
            label: "seconds since the window opened",
            labelAnchor: "center",
            labelArrow: "none",
            tickFormat: short,
            ticks: Math.max(3, Math.floor(g.width / 80)),
          },
          y: { domain: [0, most * 1.02 || 1], label: null, grid: true, ticks: 5, tickFormat: short },
          color: paint,
          marks: [
            ...keys.map((k) =>
              Plot.areaY(
                all.filter((l) => l.layer === k),
                { x: "x", y1: "from", y2: "to", fill: fillOf(k.split("\u0000")[1]) },
              ),
            ),
            ...tops.map((t) => Plot.lineY(t.edge, { x: "x", y: "to", stroke: "var(--ink)", strokeWidth: 0.9 })),
            Plot.ruleX([0], { stroke: "currentColor", strokeDasharray: "2 3", strokeOpacity: 0.6 }),
            Plot.ruleY([0], { stroke: "currentColor" }),
            Plot.text(
              tops.filter((t) => t.thick > most / 16),
              {
                x: () => last,
                y: "middle",
                text: "of",
                dx: 5,
                textAnchor: "start",
                fill: "currentColor",
                fontSize: 11,
              },
            ),
            Plot.dot(moments, { x: "x", y: "y", r: 1.4, fill: "var(--ink)" }),
            Plot.tip(moments, Plot.pointerX(tip({ x: "x", y: "y", title: "text" } as Plot.TipOptions))),
          ],
        });
        place(
          g,
          plot,
          `${name}, ${d.arms[c.arm].name}${where(d, level)}`,
          `${d.arms[c.arm].name}`,
          apart ? `${s.name}, own scale` : s.name,
        );
      }
    }
  }
};

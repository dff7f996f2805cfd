import type { Data } from "./data";

// Arms differ in symbol and line as well as in colour, because some readers cannot see colours. The baseline has the
// colour of the text, and its twin is grey.
const colours = ["var(--c1)", "var(--c2)", "var(--c3)", "var(--c4)", "var(--c5)", "var(--c6)"];
const symbols = ["triangle", "square", "diamond", "star", "wye", "cross"] as const;
const dashes = ["none", "6 2", "8 2 2 2", "4 1", "10 3", "2 2"];

export interface Look { name: string; colour: string; symbol: string; dash: string }

export function looks(d: Data): Look[] {
  let next = 0;
  return d.arms.map((a) => {
    if (a.baseline) return { name: a.name, colour: "var(--c0)", symbol: "circle", dash: "none" };
    if (a.twin) return { name: a.name, colour: "var(--twin)", symbol: "times", dash: "2 3" };
    const i = next++ % colours.length;
    return { name: a.name, colour: colours[i], symbol: symbols[i], dash: dashes[i] };
  });
}

// The colours and hatches of the parts of bars, by the name of the part.
export const fills: Record<string, [colour: string, hatch: string]> = {
  "application processes": ["var(--c1)", "solid"], "load generator": ["var(--c4)", "dots"],
  "subject's eBPF programs": ["var(--c2)", "solid"], "other eBPF programs": ["var(--c5)", "grid"],
  "subject's processes": ["var(--c6)", "rising"],
  "kernel threads": ["var(--m1)", "solid"], "interrupts on idle CPUs": ["var(--m2)", "falling"],
  "root group": ["var(--m3)", "dots"],
  "other control groups": ["var(--m1)", "rising"], "tare itself": ["var(--c3)", "solid"], steal: ["var(--m2)", "grid"],
  unexplained: ["var(--m3)", "blank"],
  "application, without eBPF": ["var(--c1)", "solid"], "eBPF in task context": ["var(--c2)", "solid"],
  "eBPF in softirq": ["var(--c6)", "falling"],
  "eBPF, context not known": ["var(--c2)", "rising"], "not split: the samples do not say": ["var(--m3)", "blank"],
  "tasks of the groups with a limit": ["var(--c2)", "solid"], "softirq above those tasks": ["var(--c6)", "falling"],
  "other groups, which pay for it": ["var(--m1)", "rising"],
  "the clients' groups": ["var(--c2)", "solid"], "the servers' groups": ["var(--c4)", "dots"],
  elsewhere: ["var(--m3)", "blank"],
  anon: ["var(--c1)", "solid"], shmem: ["var(--c4)", "dots"], kernel: ["var(--c2)", "rising"],
  soft: ["var(--m3)", "blank"], "page cache": ["var(--m3)", "blank"], "mapped file": ["var(--c5)", "falling"],
  pod: ["var(--c1)", "solid"], overhead: ["var(--c2)", "rising"], outside: ["var(--c6)", "falling"],
  load: ["var(--c4)", "dots"],
};

const svgNS = "http://www.w3.org/2000/svg";

/** hatches adds the patterns of all fills to the page. It must be called once, before charts are drawn. */
export function hatches(): void {
  const svg = document.createElementNS(svgNS, "svg");
  svg.setAttribute("width", "0");
  svg.setAttribute("height", "0");
  svg.setAttribute("aria-hidden", "true");
  svg.style.position = "absolute";
  const lines: Record<string, string> = { rising: "M-1,1 l2,-2 M0,6 l6,-6 M5,7 l2,-2",
    falling: "M-1,5 l2,2 M0,0 l6,6 M5,-1 l2,2", grid: "M0,3 h6 M3,0 v6", dots: "M2,3 h2" };
  for (const [name, [colour, hatch]] of Object.entries(fills)) {
    const p = document.createElementNS(svgNS, "pattern");
    p.id = patternID(name);
    for (const [k, v] of Object.entries({ width: "6", height: "6", patternUnits: "userSpaceOnUse" })) p.setAttribute(k,
      v);
    const rect = document.createElementNS(svgNS, "rect");
    rect.setAttribute("width", "6");
    rect.setAttribute("height", "6");
    rect.style.fill = colour;
    if (hatch === "blank") rect.style.fillOpacity = "0.25";
    p.append(rect);
    if (lines[hatch]) {
      const path = document.createElementNS(svgNS, "path");
      path.setAttribute("d", lines[hatch]);
      path.style.stroke = "var(--paper)";
      path.style.strokeWidth = hatch === "dots" ? "2" : "1.4";
      p.append(path);
    }
    svg.append(p);
  }
  document.body.append(svg);
}

export const patternID = (part: string): string => "part-" + part.replace(/[^a-z]+/gi, "-");
export const fillOf = (part: string): string => (part in fills ? `url(#${patternID(part)})` : "var(--m3)");

import "./report.css";
import * as answers from "./answers";
import * as charts from "./charts";
import type { Data } from "./data";
import { events } from "./events";
import { keyboard } from "./keyboard";
import * as pictured from "./pictured";
import { hatches } from "./style";

const figures: Record<string, (d: Data, f: charts.Figure) => void> = {
  differences: charts.differences, values: charts.values, latency: charts.latency,
  "latency-difference": charts.latencyDifference,
  limits: answers.limits, waits: answers.waits, stairs: answers.stairs, ran: answers.ran,
  ladder: pictured.ladder, placed: pictured.placed, courses: pictured.courses,
  events, sweep: charts.sweep, cpu: charts.cpu, memory: charts.memory, trials: charts.trials,
};

function draw(data: Data): void {
  for (const figure of document.querySelectorAll<HTMLElement>("figure[data-chart]")) {
    figure.querySelector(".charts")?.remove();
    const box = document.createElement("div");
    box.className = "charts";
    figure.append(box);
    const width = Math.floor(figure.clientWidth);
    if (width === 0) continue; // not shown
    try {
      figures[figure.dataset.chart ?? ""]?.(data, { box, width });
    } catch (err) {
      console.error(`chart ${figure.dataset.chart}:`, err);
      box.textContent = "This chart could not be drawn; the table has its numbers.";
    }
    // Hide a figure for which this run has no data, including its caption.
    figure.hidden = box.childElementCount === 0 || (!box.querySelector(".plot") && !box.textContent);
    for (const svg of box.querySelectorAll<SVGSVGElement>("svg[data-chart]")) keyboard(svg, svg.dataset.chart ??
      "chart");
  }
}

function main(): void {
  const element = document.getElementById("data");
  if (!element?.textContent) return;
  const data = JSON.parse(element.textContent) as Data;
  hatches();
  draw(data);
  let width = document.documentElement.clientWidth;
  let timer = 0;
  addEventListener("resize", () => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      const now = document.documentElement.clientWidth;
      if (now === width || matchMedia("print").matches) return;
      width = now;
      for (const f of document.querySelectorAll<HTMLElement>("figure[data-chart]")) f.hidden = false;
      draw(data);
    }, 150);
  });
  // Paper cannot be unfolded, so print the tables next to the charts. Long lists are printed only if the reader opened
  // them.
  let opened: HTMLDetailsElement[] = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll<HTMLDetailsElement>("details:not(.long):not([open])")];
    for (const d of opened) d.open = true;
  });
  addEventListener("afterprint", () => {
    for (const d of opened) d.open = false;
  });
}

main();

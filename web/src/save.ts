// A chart can be saved as a separate SVG file, with its title and legend. On the page, its colours and hatches come
// from the page's style sheets. The file contains them as they are at the time of saving.

const svgNS = "http://www.w3.org/2000/svg";
const kept = ["fill", "fill-opacity", "stroke", "stroke-opacity", "stroke-width", "stroke-dasharray", "stroke-linecap",
  "stroke-linejoin", "opacity", "font-family", "font-size", "font-weight", "font-variant-numeric", "text-anchor",
  "paint-order"];

/** saver returns the button that saves a chart. The title is in the box, and the legend in the figure around it. */
export function saver(svg: SVGSVGElement, box: HTMLElement): HTMLButtonElement {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "save";
  button.textContent = "save as SVG";
  button.addEventListener("click", () => {
    const title = box.querySelector("h4")?.textContent ?? svg.dataset.chart ?? "chart";
    const legend = box.closest(".charts")?.querySelector<HTMLElement>(".legend") ?? null;
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([standalone(svg, title, legend)], { type: "image/svg+xml" }));
    link.download = `${(svg.dataset.chart ?? title).replace(/[^a-z0-9.]+/gi, "-").toLowerCase()}.svg`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });
  return button;
}

/** standalone returns the text of an SVG file that shows a chart without the page. */
export function standalone(svg: SVGSVGElement, title: string, legend: HTMLElement | null): string {
  const page = getComputedStyle(svg);
  const out = document.createElementNS(svgNS, "svg");
  const width = Number(svg.getAttribute("width"));
  const line = 18;
  let [x, y] = [8, line];
  const text = (words: string, at: [number, number], bold = false) => {
    const t = document.createElementNS(svgNS, "text");
    for (const [k, v] of Object.entries({ x: at[0], y: at[1], fill: page.color, "font-family": page.fontFamily,
      "font-size": 12, "font-weight": bold ? 600 : 400 })) t.setAttribute(k, String(v));
    t.textContent = words;
    out.append(t);
  };
  text(title, [x, y], true);
  y += line;
  for (const item of legend?.children ?? []) {
    const mark = item.querySelector("svg");
    const wide = Number(mark?.getAttribute("width") ?? 0);
    const words = item.lastChild?.textContent ?? "";
    const needs = wide + 6 + 7 * words.length + 16;
    if (x > 8 && x + needs > width) [x, y] = [8, y + line];
    if (mark) {
      const copy = styled(mark) as SVGSVGElement;
      copy.setAttribute("x", String(x));
      copy.setAttribute("y", String(y - 11));
      out.append(copy);
    }
    text(words, [x + wide + 6, y]);
    x += needs;
  }
  y += legend ? 10 : -8;
  const chart = styled(svg) as SVGSVGElement;
  chart.setAttribute("y", String(y));
  out.append(chart);
  for (const id of new Set([...out.querySelectorAll("[fill^='url(']")].map((e) => /#([^")]+)/.exec(
    e.getAttribute("fill") ?? "")?.[1] ?? ""))) {
    const pattern = document.getElementById(id);
    if (pattern) out.prepend(styled(pattern));
  }
  const height = y + Number(svg.getAttribute("height"));
  const paper = document.createElementNS(svgNS, "rect");
  for (const [k, v] of Object.entries({ width, height, fill: getComputedStyle(document.body).backgroundColor }))
    paper.setAttribute(k, String(v));
  out.prepend(paper);
  for (const [k, v] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}` })) out.setAttribute(k,
    String(v));
  return new XMLSerializer().serializeToString(out);
}

/** styled returns a copy of an element without its tooltip, with its computed styles as attributes. */
function styled(of: Element): Element {
  const copy = of.cloneNode(true) as Element;
  const [from, to] = [[of, ...of.querySelectorAll("*")], [copy, ...copy.querySelectorAll("*")]];
  from.forEach((e, i) => {
    const style = getComputedStyle(e);
    to[i].removeAttribute("style");
    to[i].removeAttribute("class");
    for (const name of kept) {
      const v = style.getPropertyValue(name);
      if (v) to[i].setAttribute(name, v.replace(/url\("?[^#"]*(#[^")]+)"?\)/, "url($1)"));
    }
  });
  for (const e of copy.querySelectorAll("style, [aria-label='tip']")) e.remove();
  return copy;
}

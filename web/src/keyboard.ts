// Charts can be read with the keyboard as with the pointer: Tab selects a chart, the arrow keys move from mark to mark
// and show the exact values, and Escape hides them. Screen readers announce the values.


/** keyboard makes a chart respond to keys. The label is the name of the chart for screen readers. */
export function keyboard(svg: SVGSVGElement, label: string): void {
  svg.setAttribute("tabindex", "0");
  svg.setAttribute("role", "application");
  svg.setAttribute("aria-roledescription", "chart");
  svg.setAttribute("aria-label", `${label}. Arrow keys go from value to value; the table has all of them.`);
  let at = -1;

  const places = (): DOMRect[] => {
    const marks = "[aria-label='dot'] path, [aria-label='dot'] circle, [aria-label='rect'] rect, " +
      "[aria-label='bar'] rect";
    const all = [...svg.querySelectorAll<SVGGraphicsElement>(marks)]
      .filter((e) => !e.closest("[aria-label='tip'], .backdrop"))
      .map((e) => e.getBoundingClientRect())
      .filter((r) => r.width > 0 || r.height > 0);
    const row = (r: DOMRect) => Math.round((r.top + r.height / 2) / 4);
    const column = (r: DOMRect) => r.left + r.width / 2;
    return svg.dataset.order === "rows" ? all.sort((a, b) => row(a) - row(b) || column(a) - column(b))
      : all.sort((a, b) => column(a) - column(b) || row(a) - row(b));
  };
  const send = (type: string, r?: DOMRect) => {
    const where = r ? { clientX: r.left + r.width / 2, clientY: r.top + r.height / 2 } : {};
    svg.dispatchEvent(new PointerEvent(type, { bubbles: true, pointerType: "mouse", ...where }));
  };
  const show = () => {
    const all = places();
    if (all.length === 0) return;
    at = Math.max(0, Math.min(at, all.length - 1));
    send("pointermove", all[at]);
    requestAnimationFrame(() => {
      const text = [...svg.querySelectorAll("[aria-label='tip'] text > tspan")].map((t) =>
        t.textContent?.replace(/\u200b/g, "")).join(", ");
      const live = document.getElementById("live");
      if (live && text) live.textContent = text;
    });
  };
  svg.addEventListener("keydown", (e) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[e.key];
    if (step) at += step;
    else if (e.key === "Home") at = 0;
    else if (e.key === "End") at = Infinity;
    else if (e.key === "Escape") return send("pointerleave");
    else return;
    e.preventDefault();
    show();
  });
  svg.addEventListener("focus", () => {
    if (svg.matches(":focus-visible")) {
      at = Math.max(at, 0);
      show();
    }
  });
  svg.addEventListener("blur", () => send("pointerleave"));
}

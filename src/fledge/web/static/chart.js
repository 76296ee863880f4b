// Line charts in SVG: linear and logarithmic axes, a line that follows the pointer or the arrow keys, thinned to the pixels.

import { announce, h, s } from "./dom.js";
import { short } from "./format.js";

const MARGIN = { left: 58, right: 14, top: 10, bottom: 34 };

/** Round values that cover a range: 1, 2 or 5 times a power of ten. */
function ticks(low, high, wanted) {
  const raw = (high - low) / wanted;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((candidate) => candidate >= raw) ?? power;
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(Number((i * step).toPrecision(12)));
  return found;
}

function logTicks(low, high) {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
    for (const m of high / low > 300 ? [1] : high / low > 20 ? [1, 3] : [1, 1.5, 2, 3, 5, 7]) {
      const value = m * 10 ** power;
      if (value >= low * 0.999 && value <= high * 1.001) found.push(value);
    }
  }
  return found.length > 1 ? found : ticks(low, high, 4).filter((value) => value > 0);
}

class Axis {
  constructor(values, log, from, to, room) {
    this.log = log;
    let [low, high] = values;
    if (low === high) { low -= Math.abs(low) * 0.1 || 1; high += Math.abs(high) * 0.1 || 1; if (log) low = Math.max(low, high / 10); }
    if (room) {
      if (log) { const pad = (high / low) ** 0.04; low /= pad; high *= pad; }
      else { const pad = (high - low) * 0.05; low = low >= 0 ? Math.max(0, low - pad) : low - pad; high += pad; }
    }
    [this.low, this.high, this.from, this.to] = [low, high, from, to];
  }

  at(value) {
    const share = this.log ? Math.log(value / this.low) / Math.log(this.high / this.low) : (value - this.low) / (this.high - this.low);
    return this.from + share * (this.to - this.from);
  }

  value(place) {
    const share = (place - this.from) / (this.to - this.from);
    return this.log ? this.low * (this.high / this.low) ** share : this.low + share * (this.high - this.low);
  }

  ticks(wanted) { return this.log ? logTicks(this.low, this.high) : ticks(this.low, this.high, wanted); }
}

/** The texts of ticks, with as many digits as it takes to tell them apart. */
function labels(values) {
  let texts = [];
  for (let digits = 3; digits < 10; digits++) {
    texts = values.map((value) => short(value, digits));
    if (new Set(texts).size === texts.length) break;
  }
  return texts;
}

export class Chart {
  constructor(label, height = 280) {
    this.label = label;
    this.height = height;
    this.cursor = null;
    this.drawing = s("svg", { class: "chart", role: "img", "aria-label": label, tabindex: 0 });
    this.readout = h("div", { class: "readout", hidden: true });
    this.element = h("div", { class: "chart-box" }, this.drawing, this.readout);
    this.drawing.addEventListener("pointermove", (event) => this.point(event.clientX - this.drawing.getBoundingClientRect().left));
    this.drawing.addEventListener("pointerleave", () => this.hide());
    this.drawing.addEventListener("blur", () => this.hide());
    this.drawing.addEventListener("keydown", (event) => this.key(event));
    this.resized = new ResizeObserver(() => this.draw());
    this.resized.observe(this.element);
  }

  close() { this.resized.disconnect(); }

  /** series: [{name, colour, xs, ys, thin?, dashed?, dots?, loose?, silent?}], of which a loose one is dots alone; axes: {x, logX, logY, zero?, formatX?, mark?} */
  set(series, axes) {
    this.axes = axes;
    this.series = series.map((line) => {
      const xs = [], ys = [];
      for (let i = 0; i < line.xs.length; i++) {
        const x = line.xs[i], y = line.ys[i];
        if (Number.isFinite(x) && Number.isFinite(y) && (!axes.logX || x > 0) && (!axes.logY || y > 0)) { xs.push(x); ys.push(y); }
      }
      return { ...line, xs, ys };
    }).filter((line) => line.xs.length);
    this.draw();
  }

  draw() {
    const width = this.element.clientWidth;
    if (!this.axes || !width) return;
    const { height } = this;
    this.drawing.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.drawing.setAttribute("height", height);
    if (!this.series.length) {
      this.x = null;
      this.drawing.replaceChildren(s("text", { x: width / 2, y: height / 2, "text-anchor": "middle", class: "tick" }, "No data yet"));
      return;
    }
    const range = (pick) => this.series.reduce(([low, high], line) => {
      for (const value of pick(line)) { if (value < low) low = value; if (value > high) high = value; }
      return [low, high];
    }, [Infinity, -Infinity]);
    this.x = new Axis(range((line) => line.xs), this.axes.logX, MARGIN.left, width - MARGIN.right, false);
    const [low, high] = range((line) => line.ys);
    this.y = new Axis([this.axes.zero ? Math.min(0, low) : low, high], this.axes.logY, height - MARGIN.bottom, MARGIN.top, true);
    const formatX = this.axes.formatX ?? short;
    const levels = this.y.ticks(this.height > 250 ? 7 : 4), told = labels(levels);
    this.drawing.replaceChildren(
      ...levels.map((value, i) => s("g", {},
        s("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: this.y.at(value), y2: this.y.at(value) }),
        s("text", { class: "tick", x: MARGIN.left - 8, y: this.y.at(value) + 4, "text-anchor": "end" }, told[i]))),
      ...this.x.ticks(Math.max(2, Math.floor(width / 130))).map((value) =>
        s("text", { class: "tick", x: this.x.at(value), y: height - MARGIN.bottom + 18, "text-anchor": "middle" }, formatX(value))),
      s("text", { class: "axis", x: width - MARGIN.right, y: height - 2, "text-anchor": "end" }, this.axes.x),
      this.axes.mark === undefined ? "" : s("line", { class: "mark", x1: this.x.at(this.axes.mark), x2: this.x.at(this.axes.mark), y1: MARGIN.top, y2: height - MARGIN.bottom }),
      ...this.series.filter((line) => !line.loose).map((line) => s("path", {
        class: `line series-${line.colour}${line.thin ? " thin" : ""}${line.dashed ? " dashed" : ""}`, d: this.path(line) })),
      ...this.series.filter((line) => (line.dots && line.xs.length < 200) || line.loose).flatMap((line) => line.xs.map((x, i) =>
        s("circle", { class: `dot series-${line.colour}`, cx: this.x.at(x), cy: this.y.at(line.ys[i]), r: 2.6 }))),
      this.rule = s("line", { class: "rule", y1: MARGIN.top, y2: height - MARGIN.bottom, visibility: "hidden" }));
    this.drawing.setAttribute("aria-label", this.summary());
  }

  /** At most the least and the greatest value of every pixel column: what more points could show. */
  path(line) {
    const { xs, ys } = line;
    if (xs.length < 3 * (this.x.to - this.x.from)) {
      return xs.map((x, i) => `${i ? "L" : "M"}${this.x.at(x).toFixed(1)},${this.y.at(ys[i]).toFixed(1)}`).join("");
    }
    let d = "", column = null, low = 0, high = 0;
    const flush = () => { if (column !== null) d += `${d ? "L" : "M"}${column},${this.y.at(high).toFixed(1)}L${column},${this.y.at(low).toFixed(1)}`; };
    for (let i = 0; i < xs.length; i++) {
      const place = Math.round(this.x.at(xs[i]));
      if (place !== column) { flush(); column = place; low = high = ys[i]; }
      else { low = Math.min(low, ys[i]); high = Math.max(high, ys[i]); }
    }
    flush();
    return d;
  }

  nearest(line, value) {
    let from = 0, to = line.xs.length - 1;
    while (from < to) { const middle = (from + to) >> 1; if (line.xs[middle] < value) from = middle + 1; else to = middle; }
    return from > 0 && Math.abs(line.xs[from - 1] - value) < Math.abs(line.xs[from] - value) ? from - 1 : from;
  }

  point(place) {
    if (!this.x) return;
    this.cursor = Math.max(this.x.from, Math.min(this.x.to, place));
    const value = this.x.value(this.cursor);
    this.rule.setAttribute("x1", this.cursor);
    this.rule.setAttribute("x2", this.cursor);
    this.rule.setAttribute("visibility", "visible");
    const near = (this.x.value(this.x.from + 8) - this.x.low) * 2;  // a line that ended before here has nothing to say
    const rows = this.series.filter((line) => !line.silent && value > line.xs[0] - near && value < line.xs.at(-1) + near).map((line) => {
      const i = this.nearest(line, value);
      return h("div", {}, h("i", { class: `key series-${line.colour}${line.thin ? " thin" : ""}` }), h("span", {}, line.name), h("b", { class: "number" }, Number(line.ys[i].toPrecision(5))));
    });
    const format = this.axes.formatX ?? short;
    this.readout.replaceChildren(h("div", { class: "muted" }, `${this.axes.x}: ${format(value)}`), ...rows);
    this.readout.hidden = false;
    this.readout.classList.toggle("left", this.cursor > (this.x.from + this.x.to) / 2);
  }

  hide() {
    this.readout.hidden = true;
    this.rule?.setAttribute("visibility", "hidden");
  }

  key(event) {
    if (!this.x || !["ArrowLeft", "ArrowRight", "Home", "End", "Escape"].includes(event.key)) return;
    event.preventDefault();
    if (event.key === "Escape") { this.hide(); return; }
    const step = { ArrowLeft: -12, ArrowRight: 12, Home: -Infinity, End: Infinity }[event.key];
    this.point((this.cursor ?? this.x.from) + step);
    const words = (row) => (row.children.length ? [...row.children].map((part) => part.textContent).filter(Boolean).join(" ") : row.textContent);
    announce([...this.readout.children].map(words).join("; "));
  }

  summary() {
    const last = this.series.filter((line) => !line.silent).map((line) => `${line.name} ends at ${Number(line.ys.at(-1).toPrecision(4))}`);
    return `${this.label}, against ${this.axes.x}: ${last.join("; ")}. Arrow keys read values.`;
  }
}

/** An average that forgets: `weight` of what came before is kept at each point, corrected for the short beginning. */
export function smooth(values, weight) {
  if (!weight) return values;
  let sum = 0, mass = 0;
  return values.map((value) => {
    if (!Number.isFinite(value)) return value;
    sum = sum * weight + value * (1 - weight);
    mass = mass * weight + (1 - weight);
    return sum / mass;
  });
}

// Line charts as SVG. A chart has two series at most, in the page's two colours.

import { drawing, element } from "./dom.js";

const WIDTH = 480;
const HEIGHT = 150;
const LEFT = 4;
const BOTTOM = 18;
const TOP = 8;

export class Chart {
  // names: of the series; write: a value as text; ceiling: the least that the upper end of the scale may be; most: what
  // it is, where it is known.
  constructor(title, names, write, { ceiling = 1, most = null } = {}) {
    Object.assign(this, { title, names, write, ceiling, most, points: [], times: [], at: null });
    this.values = names.map(() => element("b"));
    const legend = names.map((name, index) =>
      element("span", { class: "series" }, element("i", { class: `swatch s${index}` }), `${name} `, this.values[index]));
    this.picture = drawing("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", preserveAspectRatio: "none" });
    this.scale = element("span", { class: "scale" });
    this.since = element("span", { class: "when since" });
    this.when = element("span", { class: "when" });
    this.node = element("figure", { class: "chart" },
      element("figcaption", {}, element("h2", {}, title), element("span", { class: "legend" }, legend)),
      element("div", { class: "plot" }, this.picture, this.scale, this.since, this.when));
    this.picture.addEventListener("pointermove", (event) => this.point(event));
    this.picture.addEventListener("pointerleave", () => this.rest());
  }

  // times: seconds, ascending; points: per time a list with a value or null for each series; span: seconds of the axis.
  update(times, points, span) {
    Object.assign(this, { times, points, span });
    this.draw();
  }

  x(time) {
    return LEFT + ((WIDTH - 2 * LEFT) * (time - (this.times.at(-1) - this.span))) / this.span;
  }

  draw() {
    const values = this.points.flat().filter((value) => value !== null);
    const upper = this.most ?? round(Math.max(this.ceiling, ...values));
    const y = (value) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - Math.min(value, upper) / upper);
    const lines = [0, 0.5, 1].map((share) =>
      drawing("line", { class: "grid", x1: 0, x2: WIDTH, y1: y(share * upper), y2: y(share * upper) }));
    const paths = this.names.map((_, index) =>
      drawing("path", { class: `line s${index}`, d: this.path(index, y) }));
    const mark = this.at === null ? [] : [drawing("line", {
      class: "mark", x1: this.x(this.times[this.at]), x2: this.x(this.times[this.at]), y1: TOP, y2: HEIGHT - BOTTOM })];
    this.picture.replaceChildren(...lines, ...paths, ...mark);
    this.scale.textContent = this.write(upper);
    const shown = this.points[this.at ?? this.points.length - 1] ?? [];
    this.values.forEach((node, index) => { node.textContent = text(shown[index], this.write); });
    this.when.textContent = this.at === null ? "now" : ago(this.times.at(-1) - this.times[this.at]);
    this.since.textContent = ago(this.span);
    const said = this.names.map((name, index) => `${name} ${text(this.points.at(-1)?.[index], this.write)}`);
    this.picture.setAttribute("aria-label", `${this.title}: ${said.join(", ")}`);
  }

  // A path with a gap where there is no value; a value between two gaps is a dot.
  path(index, y) {
    let path = "";
    let joined = false;
    this.points.forEach((point, number) => {
      const value = point[index];
      if (value === null || value === undefined) {
        joined = false;
        return;
      }
      const place = `${this.x(this.times[number]).toFixed(1)} ${y(value).toFixed(1)}`;
      path += joined ? `L${place}` : `M${place}h0`;
      joined = true;
    });
    return path;
  }

  point(event) {
    if (!this.times.length) return;
    const box = this.picture.getBoundingClientRect();
    const wanted = ((event.clientX - box.left) / box.width) * WIDTH;
    let best = 0;
    this.times.forEach((time, index) => {
      if (Math.abs(this.x(time) - wanted) < Math.abs(this.x(this.times[best]) - wanted)) best = index;
    });
    this.at = best;
    this.draw();
  }

  rest() {
    this.at = null;
    this.draw();
  }
}

const ago = (seconds) => (seconds < 120 ? `${Math.round(seconds)} s ago` : `${Math.round(seconds / 60)} min ago`);
const text = (value, write) => (value === null || value === undefined ? "–" : write(value));

// The next of 1, 2, 5, 10, ... from a value on.
function round(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return power * [1, 2, 5, 10].find((digit) => digit * power >= value * 0.9999);
}

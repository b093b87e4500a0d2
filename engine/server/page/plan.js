// Every decision about the model on this device, with its reason, from /plan.

import { call } from "./api.js";
import { byId, element } from "./dom.js";

const GRAPHS = [["compile mode", "compilation.mode"], ["graph mode", "compilation.graph_mode"],
  ["captured sizes, in tokens", "compilation.capture_sizes"]];

let shown = false;

// Draws the view once; later calls do nothing unless the first has failed.
export async function openPlan() {
  if (shown) return;
  const place = byId("decisions");
  try {
    const answer = await (await call("plan")).json();
    place.replaceChildren(...blocks(answer));
    shown = true;
  } catch (error) {
    place.replaceChildren(element("p", { class: "error", role: "alert" }, error.message));
    if (error.status === 401) document.dispatchEvent(new Event("key-needed"));
  }
}

function blocks({ model, summary, phases, plan }) {
  const native = plan.kernels.filter((row) => row.chosen !== "reference");
  const sum = (rows) => rows.reduce((calls, row) => calls + row.count, 0);
  const active = plan.fusions.filter((row) => row.matched > 0);
  const settings = Object.entries(plan.decisions);
  const total = phases.reduce((spent, [, seconds]) => spent + seconds, 0);
  return [
    element("p", { class: "lead" }, `How ${model} runs on `, element("b", {}, `${plan.platform}:${plan.arch}`),
      ` at level `, element("b", {}, `-O${plan.decisions.optimization_level.value}`), `. Plan `,
      element("code", {}, plan.hash), `; started in ${total.toFixed(1)} s.`),
    ...warnings(plan.warnings),
    block("At a glance", "", table(["What", "Value", "Why"],
      summary.filter((row) => row.label).map((row) => [row.label, row.value, row.reason]))),
    block("Kernels", `${sum(native)} of ${sum(plan.kernels)} calls by a kernel of the platform`,
      table(["Op", "Calls", "Computed by", "Why"],
        plan.kernels.map((row) => [row.op, String(row.count), mark(row.chosen, row.chosen !== "reference"), why(row)]))),
    block("Fusions", `${active.length} of ${plan.fusions.length} active`,
      table(["Fusion", "State", "Why"], [...active, ...plan.fusions.filter((row) => !row.matched)].map((row) =>
        [row.rule, mark(row.matched ? `active, ${row.matched} ${row.matched === 1 ? "place" : "places"}` : "off", row.matched > 0), row.reason]))),
    block("Graphs", written(plan.decisions["compilation.graph_mode"].value),
      table(["What", "Value", "Why"], [...GRAPHS.map(([name, key]) =>
        [name, written(plan.decisions[key].value), plan.decisions[key].reason]), ...plan.ranges.flatMap(pieces)])),
    block("Settings", `${settings.length}`,
      table(["Setting", "Value", "Decided by", "Why"], settings.map(([key, row]) =>
        [broken(key), element("span", { class: "value" }, written(row.value)), row.origin, row.reason])), false),
  ];
}

function warnings(lines) {
  return lines.length ? [element("ul", { class: "warnings" }, lines.map((line) => element("li", {}, line)))] : [];
}

function block(title, note, content, open = true) {
  return element("details", { class: "block", open },
    element("summary", {}, element("h2", {}, title), element("small", {}, note)), content);
}

function table(heads, rows) {
  return element("div", { class: "wide-table", tabindex: "0", role: "region", "aria-label": heads[0] },
    element("table", {},
      element("thead", {}, element("tr", {}, heads.map((head) => element("th", { scope: "col" }, head)))),
      element("tbody", {}, rows.map(([first, ...others]) =>
        element("tr", {}, element("th", { scope: "row" }, first),
          others.map((cell, index) => element("td", { "data-head": heads[index + 1] }, cell)))))));
}

const mark = (text, good) => element("span", { class: good ? "on" : "off" }, text);

const pieces = ({ start, end, pieces: found }) => found.map((piece) =>
  [`${start} to ${end} tokens, ${piece.name}`, `${piece.count} × ${piece.calls} calls, ${piece.generator}`, piece.reason]);

// The reason; folded: what is called, and what every other kernel of the op said.
function why(row) {
  const others = row.considered.filter(([name]) => name !== row.chosen);
  const title = others.length ? `The call, and ${others.length} more kernels considered` : "The call";
  return [row.reason, element("details", {}, element("summary", {}, title), element("code", {}, row.call),
    element("ul", {}, others.map(([name, ok, reason]) => element("li", {}, `${name}: ${ok ? "yes" : "no"}, ${reason}`))))];
}

// A dotted key that may break after its dots.
const broken = (key) => key.split(".").flatMap((part, index) => (index ? [".", element("wbr"), part] : [part]));

function written(value) {
  if (value === null) return "–";
  if (value === true) return "on";
  if (value === false) return "off";
  if (Array.isArray(value)) return value.length ? value.join(", ") : "none";
  if (typeof value === "object") {
    return Object.entries(value).map(([name, entry]) => `${name}=${entry}`).join(", ") || "none";
  }
  return String(value);
}

// Figures and charts of what the server does, from /metrics.

import { call } from "./api.js";
import { Chart } from "./charts.js";
import { byId, element } from "./dom.js";
import { grown, parse, quantile, total } from "./metrics.js";

const INTERVAL = 2;
const SPAN = 300; // seconds that are kept; charts begin with fewer
const LEAST = 60;
const WINDOW = 10; // seconds over which rates and latencies are taken

const rate = (value) => (value >= 100 ? value.toFixed(0) : value.toFixed(1));
const seconds = (value) => (value < 1 ? `${(1000 * value).toFixed(value < 0.1 ? 1 : 0)} ms` : `${value.toFixed(2)} s`);
const percent = (value) => `${(100 * value).toFixed(value < 0.1 ? 1 : 0)} %`;
const count = (value) => String(Math.round(value * 10) / 10);

const charts = [
  [new Chart("Tokens per second", ["generated", "prompt"], rate, { ceiling: 10 }), (reading) => reading.tokens],
  [new Chart("Requests", ["running", "waiting"], count, { ceiling: 4 }), (reading) => reading.requests],
  [new Chart("Time to first token", ["p50", "p95"], seconds, { ceiling: 0.05 }), (reading) => reading.first],
  [new Chart("Between tokens", ["p50", "p95"], seconds, { ceiling: 0.02 }), (reading) => reading.between],
  [new Chart("Before the first token, mean", ["queue", "prefill"], seconds, { ceiling: 0.05 }), (reading) => reading.before],
  [new Chart("KV cache", ["in use", "prefix hits"], percent, { most: 1 }), (reading) => reading.cache],
];
const figures = ["tokens/s", "running", "waiting", "KV cache", "answered", "preemptions"];
const scrapes = []; // { at, values }, of the last seconds
const history = []; // { at, ...reading }

// Draws the view and goes on reading while the page is visible. tell: is given each reading, or null without an answer.
export function watch(tell) {
  byId("figures").append(...figures.map((name) =>
    element("div", {}, element("dt", {}, name), element("dd", { "data-figure": name }, "–"))));
  byId("charts").append(...charts.map(([chart]) => chart.node));
  const round = async () => {
    if (document.visibilityState === "visible") tell(await look());
    setTimeout(round, 1000 * INTERVAL);
  };
  round();
}

async function look() {
  let values;
  try {
    values = parse(await (await call("metrics")).text());
  } catch {
    return null;
  }
  const at = performance.now() / 1000;
  scrapes.push({ at, values });
  while (scrapes.length > 2 && at - scrapes[1].at >= WINDOW) scrapes.shift();
  const reading = compare(scrapes[0], scrapes.at(-1));
  history.push({ at, ...reading });
  while (at - history[0].at > SPAN) history.shift();
  draw(reading);
  return reading;
}

export function compare(old, now) {
  const passed = now.at - old.at;
  const per = (name) => (passed ? grown(old.values, now.values, name) / passed : null);
  const latency = (name) => [0.5, 0.95].map((share) => quantile(old.values, now.values, name, share));
  const mean = (name) => {
    const ended = grown(old.values, now.values, `${name}_count`);
    return ended ? grown(old.values, now.values, `${name}_sum`) / ended : null;
  };
  const queries = grown(old.values, now.values, "prefix_cache_queries_total");
  const engines = Math.max(1, (now.values.get("kv_cache_usage_perc") ?? []).length);
  return {
    tokens: [per("generation_tokens_total"), per("prompt_tokens_total")],
    requests: [total(now.values, "num_requests_running"), total(now.values, "num_requests_waiting")],
    first: latency("time_to_first_token_seconds"),
    between: latency("inter_token_latency_seconds"),
    before: [mean("request_queue_time_seconds"), mean("request_prefill_time_seconds")],
    cache: [total(now.values, "kv_cache_usage_perc") / engines,
      queries ? grown(old.values, now.values, "prefix_cache_hits_total") / queries : null],
    answered: total(now.values, "request_success_total"),
    preemptions: total(now.values, "num_preemptions_total"),
    model: now.values.get("num_requests_running")?.[0]?.labels.model_name ?? "",
  };
}

function draw(reading) {
  const shown = [reading.tokens[0] === null ? "–" : rate(reading.tokens[0]), count(reading.requests[0]),
    count(reading.requests[1]), percent(reading.cache[0]), count(reading.answered), count(reading.preemptions)];
  figures.forEach((name, index) => {
    byId("figures").querySelector(`[data-figure="${name}"]`).textContent = shown[index];
  });
  const times = history.map((one) => one.at);
  const span = Math.min(SPAN, Math.max(LEAST, Math.ceil((times.at(-1) - times[0]) / LEAST) * LEAST));
  for (const [chart, pick] of charts) chart.update(times, history.map(pick), span);
}

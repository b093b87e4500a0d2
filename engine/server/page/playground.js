// Asking the model: a conversation, or a text that it continues.

import { ApiError, address, call, events, hasKey } from "./api.js";
import { byId, element } from "./dom.js";
import { Answer, entriesOf } from "./tokens.js";

const ALTERNATIVES = 5;
const ROUTES = { chat: "v1/chat/completions", completion: "v1/completions" };
const LABELS = { chat: ["Message", "Write a message"], completion: ["Text", "Write a text that the model continues"] };

let model = "";
let messages = [];
let running = null; // what stops the answer that is coming

const mode = () => document.querySelector("input[name=mode]:checked").value;

// card: what /v1/models says of the model.
export function setModel(card) {
  model = card.id;
  const limit = document.querySelector("[name=max_tokens]");
  limit.value = Math.min(Number(limit.value), Math.floor(card.max_model_len / 2)) || "";
  showCommand();
}

export function openPlayground() {
  const wide = matchMedia("(min-width: 60rem)");
  const fold = () => { byId("settings").open = wide.matches; };
  wide.addEventListener("change", fold);
  fold();
  for (const one of document.querySelectorAll("input[name=mode]")) one.addEventListener("change", changeMode);
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  byId("prompt").addEventListener("input", grow);
  byId("prompt").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  });
  document.addEventListener("keydown", (event) => event.key === "Escape" && running?.abort());
  byId("stop").addEventListener("click", () => running?.abort());
  byId("clear").addEventListener("click", clear);
  byId("parameters").addEventListener("input", showCommand);
  byId("parameters").addEventListener("submit", (event) => event.preventDefault());
  byId("prompt").addEventListener("input", showCommand);
  changeMode();
}

function changeMode() {
  const [label, hint] = LABELS[mode()];
  document.body.dataset.mode = mode();
  document.querySelector("label[for=prompt]").textContent = label;
  byId("prompt").placeholder = hint;
  clear();
}

function clear() {
  running?.abort();
  messages = [];
  byId("log").replaceChildren();
  showCommand();
  byId("prompt").focus();
}

function grow() {
  const box = byId("prompt");
  box.style.height = "auto";
  box.style.height = `${Math.min(box.scrollHeight, 240)}px`;
}

// What a request with this text holds: only what somebody has set, so that the server's defaults stay its own.
function bodyFor(text) {
  const body = { model };
  for (const field of byId("parameters").querySelectorAll("[name]")) {
    if (field.value !== "") body[field.name] = field.type === "number" ? Number(field.value) : field.value;
  }
  if (mode() === "chat") {
    const system = byId("system").value;
    const first = system ? [{ role: "system", content: system }] : [];
    body.messages = [...first, ...messages, { role: "user", content: text }];
    if (byId("probabilities").checked) Object.assign(body, { logprobs: true, top_logprobs: ALTERNATIVES });
  } else {
    body.prompt = text;
    if (byId("probabilities").checked) body.logprobs = ALTERNATIVES;
  }
  return { ...body, stream: true, stream_options: { include_usage: true } };
}

function showCommand() {
  const body = JSON.stringify(bodyFor(byId("prompt").value), null, 1).replaceAll("'", "'\\''");
  const key = hasKey() ? " \\\n  -H \"Authorization: Bearer $ENGINE_API_KEY\"" : "";
  byId("command").textContent =
    `curl ${address(ROUTES[mode()])} \\\n  -H 'Content-Type: application/json'${key} \\\n  -d '${body}'`;
}

async function send() {
  const text = byId("prompt").value;
  if (running || (mode() === "chat" && !text.trim())) return;
  const route = mode();
  const body = bodyFor(text);
  if (route === "chat") byId("prompt").value = "";
  grow();
  const conversation = messages;
  const answer = new Answer();
  const note = element("p", { class: "note", role: "status" }, "waiting");
  const log = byId("log");
  if (route === "completion") log.replaceChildren();
  log.append(
    element("article", { class: "asked" }, element("h2", {}, route === "chat" ? "You" : "Text"),
      element("div", { class: "text" }, text)),
    element("article", { class: "answered" }, element("h2", {}, route === "chat" ? "Model" : "Continued"),
      answer.node, note));
  log.scrollTop = log.scrollHeight;
  running = new AbortController();
  show(true);
  const begin = performance.now();
  const told = { first: null, reason: "", usage: null };
  try {
    await read(await call(ROUTES[route], { body, signal: running.signal }), answer, told, begin, log);
    note.textContent = summary(told, begin);
  } catch (error) {
    fail(error, note, told);
  }
  if (route === "chat" && answer.text) {
    conversation.push({ role: "user", content: text }, { role: "assistant", content: answer.text });
  } else if (conversation === messages && route === "chat" && !byId("prompt").value) {
    byId("prompt").value = text;
    grow();
  }
  running = null;
  show(false);
  showCommand();
}

async function read(response, answer, told, begin, log) {
  for await (const event of events(response)) {
    const choice = event.choices?.[0];
    told.usage = event.usage ?? told.usage;
    if (!choice) continue;
    const text = choice.text ?? choice.delta?.content ?? "";
    const low = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
    const entries = entriesOf(choice.logprobs);
    if (text || entries.length) told.first ??= performance.now() - begin;
    answer.add(text, entries);
    told.reason = choice.finish_reason ?? told.reason;
    if (low) log.scrollTop = log.scrollHeight;
  }
}

function summary(told, begin) {
  const tokens = told.usage?.completion_tokens ?? 0;
  const after = (performance.now() - begin - told.first) / 1000;
  const parts = [`${tokens} ${tokens === 1 ? "token" : "tokens"}`];
  if (told.first !== null) parts.push(`first after ${(told.first / 1000).toFixed(2)} s`);
  if (tokens > 1 && after > 0) parts.push(`${((tokens - 1) / after).toFixed(0)} tokens/s`);
  const cached = told.usage?.prompt_tokens_details?.cached_tokens;
  if (cached) parts.push(`${cached} of ${told.usage.prompt_tokens} prompt tokens cached`);
  return [...parts, told.reason === "length" ? "ended by max tokens or the context" : `ended by ${told.reason}`].join(" · ");
}

function fail(error, note, told) {
  if (error.name === "AbortError") {
    note.textContent = told.first === null ? "stopped" : "stopped by you";
    return;
  }
  const where = error instanceof ApiError && error.param ? ` (${error.param})` : "";
  note.textContent = `${error.message}${where}`;
  note.className = "note error";
  note.setAttribute("role", "alert");
  if (error.status === 401) document.dispatchEvent(new Event("key-needed"));
}

function show(busy) {
  byId("send").hidden = busy;
  byId("stop").hidden = !busy;
  (busy ? byId("stop") : byId("prompt")).focus();
}

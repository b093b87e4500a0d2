// An answer as tokens: each shows its probability and what else could have stood there.

import { byId, element } from "./dom.js";

const SHADES = 5;

// Log-probabilities of a chunk in one form for both routes: { token, bytes, logprob, top: [{ token, logprob }] }.
export function entriesOf(logprobs) {
  if (!logprobs) return [];
  if (logprobs.content) {
    return logprobs.content.map((one) => ({ ...one, top: one.top_logprobs }));
  }
  return (logprobs.tokens ?? []).map((token, index) => ({
    token,
    logprob: logprobs.token_logprobs[index],
    top: Object.entries(logprobs.top_logprobs?.[index] ?? {}).map(([other, logprob]) => ({ token: other, logprob })),
  }));
}

export class Answer {
  // An element that text and tokens are added to; it can be walked through with the arrow keys once it has tokens.
  constructor() {
    this.node = element("div", { class: "text" });
    this.text = "";
    this.entries = new Map(); // span → its tokens
    this.waiting = []; // tokens whose character is not complete
    this.decoder = new TextDecoder();
    this.node.addEventListener("pointerover", (event) => this.show(event.target));
    this.node.addEventListener("pointerleave", () => hide());
    this.node.addEventListener("keydown", (event) => this.walk(event));
    this.node.addEventListener("focusout", () => hide());
  }

  add(text, entries) {
    this.text += text;
    if (!entries.length) {
      if (text) this.node.append(text);
      return;
    }
    const all = [...this.waiting, ...entries];
    const parts = entries.map((entry) =>
      entry.bytes ? this.decoder.decode(new Uint8Array(entry.bytes), { stream: true }) : entry.token);
    // What comes last may have no text of its own, as the token that ends an answer.
    let count = entries.length;
    while (count && parts.slice(0, count).join("") !== text) count -= 1;
    let pending = all.slice(0, all.length - entries.length);
    this.waiting = entries.slice(count);
    if (text && !count) {
      this.span(text, all);
      this.waiting = [];
      return;
    }
    entries.slice(0, count).forEach((entry, index) => {
      pending.push(entry);
      if (parts[index]) {
        this.span(parts[index], pending);
        pending = [];
      }
    });
    this.waiting = [...pending, ...this.waiting];
  }

  span(text, entries) {
    const likely = Math.exp(Math.min(...entries.map((entry) => entry.logprob)));
    const shade = Math.min(SHADES - 1, Math.floor((1 - likely) * SHADES));
    const node = element("span", { class: `token p${shade}`, tabindex: "-1" }, text);
    if (!this.entries.size) {
      node.tabIndex = 0;
      this.node.setAttribute("role", "group");
      this.node.setAttribute("aria-label", "Answer; the arrow keys walk through its tokens");
    }
    this.entries.set(node, entries);
    this.node.append(node);
    node.addEventListener("focus", () => this.show(node));
  }

  walk(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (event.key === "Escape") hide();
    if (!step || !this.entries.has(event.target)) return;
    const spans = [...this.entries.keys()];
    const next = spans[spans.indexOf(event.target) + step];
    if (!next) return;
    event.target.tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
    event.preventDefault();
  }

  show(node) {
    const entries = this.entries.get(node);
    if (!entries) return hide();
    const card = byId("card");
    card.replaceChildren(...entries.map(describe));
    card.hidden = false;
    node.setAttribute("aria-describedby", "card");
    const at = node.getClientRects()[0];
    const wide = document.documentElement.clientWidth;
    card.style.left = `${Math.max(8, Math.min(at.left, wide - card.offsetWidth - 8))}px`;
    const below = at.bottom + 6;
    const fits = below + card.offsetHeight < document.documentElement.clientHeight;
    card.style.top = `${fits ? below : Math.max(8, at.top - card.offsetHeight - 6)}px`;
  }
}

function hide() {
  byId("card").hidden = true;
}

function describe(entry) {
  const others = entry.top.filter((one) => one.token !== entry.token);
  return element("table", {},
    element("tbody", {}, [{ ...entry, own: true }, ...others].map((one) =>
      element("tr", { class: one.own && "own" },
        element("td", {}, element("code", {}, visible(one.token))),
        element("td", {}, element("meter", { min: 0, max: 1, value: Math.exp(one.logprob) })),
        element("td", {}, percent(one.logprob))))));
}

const visible = (token) => token.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll(" ", "␣");

function percent(logprob) {
  const value = 100 * Math.exp(logprob);
  return value < 0.01 ? "< 0.01 %" : `${value < 1 ? value.toFixed(2) : value.toFixed(1)} %`;
}

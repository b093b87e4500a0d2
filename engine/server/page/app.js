// The page: which view is shown, whether the server answers, and the key it may ask for.

import { ApiError, call, hasKey, useKey } from "./api.js";
import { byId } from "./dom.js";
import { watch } from "./live.js";
import { openPlan } from "./plan.js";
import { openPlayground, setModel } from "./playground.js";

const VIEWS = ["playground", "live", "plan"];
const RETRY = 1500;

function route() {
  const asked = location.hash.slice(1);
  const view = VIEWS.includes(asked) ? asked : VIEWS[0];
  document.body.dataset.view = view;
  for (const name of VIEWS) {
    byId(name).hidden = name !== view;
    const link = document.querySelector(`nav a[href="#${name}"]`);
    if (name === view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (view === "plan") openPlan();
}

function say(kind, text, detail = "") {
  byId("dot").className = `dot ${kind}`;
  if (byId("state").textContent !== text) byId("state").textContent = text;
  byId("detail").textContent = detail;
}

// Asks for the model's name until the server has it to give.
async function connect() {
  try {
    const { data } = await (await call("v1/models")).json();
    byId("model").textContent = data[0].id;
    document.title = `${data[0].id} · engine`;
    setModel(data[0]);
    byId("key-form").hidden = true;
    say("good", "ready");
    route();
  } catch (error) {
    if (error instanceof ApiError && error.status === 401) return askForKey();
    say("wait", error.status === 503 ? error.message : "the server does not answer");
    setTimeout(connect, RETRY);
  }
}

function askForKey() {
  say("wait", "an API key is needed");
  byId("key-error").textContent = "The server does not know this key.";
  byId("key-error").hidden = !hasKey();
  byId("key-form").hidden = false;
  byId("key").focus();
}

function tell(reading) {
  if (!byId("key-form").hidden || !byId("model").textContent) return;
  if (!reading) return say("bad", "the server does not answer");
  const [running, waiting] = reading.requests;
  const speed = `, ${(reading.tokens[0] ?? 0).toFixed(0)} tokens/s`;
  if (running || waiting) say("good", waiting ? "busy, others wait" : "busy", `: ${running} running, ${waiting} waiting${speed}`);
  else say("good", "ready");
}

byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey(byId("key").value.trim());
  byId("key").value = "";
  connect();
});
document.addEventListener("key-needed", askForKey);
addEventListener("hashchange", route);
openPlayground();
route();
watch(tell);
connect();

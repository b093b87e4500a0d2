"""Options of ``engine bench serve``, and what may not stand beside what."""

from __future__ import annotations

from typing import Any

from engine.bench import samples
from engine.bench.backends import BACKENDS, SPELLINGS
from engine.bench.kinds import (
    FACTOR,
    HEADER,
    METRICS,
    OBJECT,
    OBJECTIVE,
    PERCENTILES,
    RATE,
    VALUE,
    WORDS,
)
from engine.cli.options import Option
from engine.config import kinds as k
from engine.config.values import Kind, choice, integer, number
from engine.errors import UserError

SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty",
)  # fmt: skip
TOP_K = Kind("N", integer(-1))
UNSET = "the server's default"

OPTIONS = (
    Option("--backend", Kind("NAME", choice(*BACKENDS, also=SPELLINGS)), f"what is asked: {', '.join(BACKENDS)}",
           "openai"),
    Option("--base-url", k.NAME, "of the server, in place of host and port", unset="http://HOST:PORT"),
    Option("--host", k.NAME, "of the server", "127.0.0.1"),
    Option("--port", k.PORT, "of the server", 8000),
    Option("--endpoint", k.NAME, "path of the route", unset="that of the backend"),
    Option("--model", k.NAME, "what requests name", unset="the first that the server lists"),
    Option("--served-model-name", k.NAME, "what requests name, where --model is a path", unset="the same"),
    Option("--tokenizer", k.NAME, "model whose tokenizer counts and makes prompts", unset="the files that the server "
           "names, or those of the model"),
    Option("--header", HEADER, "headers of every request", (), "none", many=True),
    Option("--insecure", k.SWITCH, "believe any certificate"),
    *samples.OPTIONS,
    Option("--ignore-eos", k.SWITCH, "let answers go on to their length", unset="on for random, else off"),
    Option("--request-rate", RATE, "requests sent per second; inf: all at once", float("inf")),
    Option("--burstiness", FACTOR, "of the gaps: 1 as in a Poisson process, less in bursts, more evenly", 1.0),
    Option("--max-concurrency", k.COUNT, "most requests under way at once", unset="no limit"),
    Option("--ramp-up-strategy", Kind("WHICH", choice("linear", "exponential")), "let the rate grow over the run",
           unset="a constant rate"),
    Option("--ramp-up-start-rps", Kind("RATE", number(0)), "rate at its begin"),
    Option("--ramp-up-end-rps", RATE, "rate at its end"),
    Option("--num-warmups", k.LIMIT, "requests before those that count", 0),
    Option("--ready-check-timeout-sec", Kind("SECONDS", number(0)), "wait so long for a server that starts; 0: not",
           0.0),
    Option("--goodput", OBJECTIVE, "count what meets all of these: ttft, tpot or e2el, as in ttft:200 e2el:3000", (),
           unset="nothing is counted", many=True),
    Option("--percentile-metrics", METRICS, "what percentiles are of", ("ttft", "tpot", "itl", "e2el")),
    Option("--metric-percentiles", PERCENTILES, "which", (50, 95, 99)),
    *(Option("--" + name.replace("_", "-"), TOP_K if name == "top_k" else VALUE, f"{name} of every request",
             0.0 if name == "temperature" else None, unset="" if name == "temperature" else UNSET)
      for name in SAMPLING),
    Option("--logprobs", k.LIMIT, "log-probabilities that every request asks for", unset="none"),
    Option("--extra-body", OBJECT, "more fields of every request"),
    Option("--request-id-prefix", WORDS, "of the header X-Request-Id", unset="no such header"),
    Option("--save-result", k.SWITCH, "write a JSON file"),
    Option("--save-detailed", k.SWITCH, "write what every request did, too"),
    Option("--append-result", k.SWITCH, "add a line to the file in place of writing it anew"),
    Option("--result-dir", k.FOLDER, "folder of the file", unset="this one"),
    Option("--result-filename", k.FILE, "its name", unset="made of backend, rate, model and time"),
    Option("--output-json", k.FILE, "write the result to this very file"),
    Option("--label", WORDS, "stands in the result and begins its file's name", unset="the backend"),
    Option("--metadata", HEADER, "more fields of the result", (), "none", many=True),
    Option("--plot", k.SWITCH, "draw latencies and tokens per second", unset="on a terminal"),
    Option("--disable-tqdm", k.SWITCH, "show no bar"),
    Option("--profile", k.SWITCH, "have the server write a trace: POST /start_profile and /stop_profile"),
)  # fmt: skip


def check(asked: Any) -> None:
    """Raises ``UserError`` for options that contradict each other."""
    first, last = asked.ramp_up_start_rps, asked.ramp_up_end_rps
    if asked.ramp_up_strategy is None and (first is not None or last is not None):
        raise UserError("--ramp-up-start-rps and --ramp-up-end-rps go with --ramp-up-strategy linear or exponential")
    if asked.ramp_up_strategy is not None:
        if asked.request_rate != float("inf"):
            raise UserError("--request-rate is a constant rate and --ramp-up-strategy a growing one; give one")
        if first is None or last is None:
            raise UserError("--ramp-up-strategy needs --ramp-up-start-rps and --ramp-up-end-rps")
    if asked.backend == "openai-embeddings":
        asked.percentile_metrics = ("e2el",)

"""The one table of settings: command line, files, environment, help and documentation are all made from it.

Hand-written on the standard library: the libraries that do this cost more to import than ``engine explain`` may take
as a whole, and pydantic stays where it earns its keep, at the HTTP layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engine import compat
from engine.config import kinds as k
from engine.config.values import Kind
from engine.levels import DEFAULT_LEVEL, FUSIONS, NOT_BUILT, PERFORMANCE_MODES, USER_ONLY


@dataclass(frozen=True, slots=True)
class Field:
    """One setting. ``key``: canonical and dotted; also what a file may call it. ``flags``: as typed; without any, the
    flag is ``--key``. ``default``: ``None`` where something else decides, which ``unset`` names. ``only``: the one
    subcommand that knows it; such a field is read from the command line alone. ``variable``: after the prefix, where
    it does not follow from the flag."""

    key: str
    kind: Kind
    group: str
    help: str
    flags: tuple[str, ...] = ()
    default: Any = None
    unset: str = "the plan decides"
    only: str = ""
    variable: str = ""

    @property
    def flag(self) -> str:
        """The flag that messages and help name first."""
        if self.flags:
            return self.flags[0]
        section, _, rest = self.key.partition(".")
        short = {full: short for short, full in compat.SHORT_SECTIONS.items()}.get(section)
        return f"-{short}.{rest}" if short else f"--{section.replace('_', '-')}.{rest}"

    @property
    def environment(self) -> str:
        """Its variable in the environment, or ``""``."""
        if self.only:
            return ""
        name = next((flag.lstrip("-") for flag in self.flags if flag.startswith("--")), self.key)
        return compat.OWN_PREFIX + (self.variable or name.replace("-", "_").replace(".", "_").upper())


MODEL, DEVICE, COMPILE, FUSE = "Model", "Platform, level and kernels", "Compilation and graphs", "Fusions"
CACHE, SCHEDULE, PARALLEL = "Cache", "Scheduler", "Parallelism"
DRAFT = "Drafts (speculative decoding)"
SERVER, LIMITS = "Server", "Limits of the server"
LEVEL_DECIDES, USER_DECIDES, NOBODY = "the level decides", "off: only a user turns it on", "off: it cannot be on"
UNSET = dict.fromkeys(USER_ONLY, USER_DECIDES) | dict.fromkeys(NOT_BUILT, NOBODY)

FIELDS: tuple[Field, ...] = (
    Field("model.name", k.MODEL, MODEL, "a GGUF file, a folder with config.json, or a name that `engine "
          "pull` knows; also the first word after the subcommand", ("--model",), unset="the built-in model"),
    Field("model.served_name", k.NAME, MODEL, "what requests call it", ("--served-model-name",), unset="its own name"),
    Field("model.dtype", k.DTYPE, MODEL, f"{k.words((*k.DTYPE_NAMES, 'half', 'float'))}: type of activations",
          ("--dtype",), unset="auto"),
    Field("model.chat_template", k.FILE, MODEL, "a file with a Jinja template, or the template itself",
          ("--chat-template",), unset="the model's own"),
    Field("model.load_format", k.LOAD_FORMAT, MODEL, "auto: the weights of the model, from safetensors or GGUF; dummy: "
          "random ones, for measuring a model of which only config.json and tokenizer are here", ("--load-format",),
          "auto"),
    Field("model.max_logprobs", k.LIMIT, MODEL, "the most log-probabilities per token that a request may ask for",
          ("--max-logprobs",), 20),
    Field("model.pooler_config", k.POOLER, MODEL, 'how embeddings are made: {"pooling_type": "LAST", "MEAN" or "CLS", '
          '"normalize": true or false}', ("--pooler-config",), unset="as the model's 1_Pooling folder says, else LAST, "
          "normalised"),
    Field("model.seed", k.SEED, MODEL, "what the seeds of requests that bring none are made from, in order of arrival",
          ("--seed",), unset="a fresh one for every request"),
    Field("platform", k.NAME, DEVICE, "auto, NAME, NAME:target for a device described and not present, or "
          "module:attribute of a plugin that is not installed", ("--platform",), "auto"),
    Field("profile_file", k.FILE, DEVICE, "plan for a device saved by `engine platforms --json`",
          ("--profile",), unset="the platform's device", only="explain"),
    Field("optimization_level", k.LEVEL, DEVICE, "start time against speed: 0, 1, 2 or 3; also -O2, -O=2",
          ("-O", "--optimization-level"), DEFAULT_LEVEL),
    Field("performance_mode", k.PERFORMANCE_MODE, DEVICE, "what defaults lean to: "
          + "; ".join(f"{name}: {mode.purpose}" for name, mode in PERFORMANCE_MODES.items()), ("--performance-mode",),
          "balanced"),
    Field("enforce_eager", k.SWITCH, DEVICE, "no compilation and no graphs; everything else as the level says",
          ("--enforce-eager",), False),
    Field("kernels", k.KERNELS, DEVICE, "auto, or reference: plain torch for every op", ("--kernels",), "auto"),
    Field("kernel_pins", k.PINS, DEVICE, "this kernel for this op, or exit with the reason; may be given again",
          ("--kernel",), unset="the best row of the table"),
    Field("batch_invariant", k.SWITCH, DEVICE, "only kernels whose result for a request never depends on its "
          "neighbours", ("--batch-invariant",), False),
    Field("kernel_config.autotune", k.SWITCH, DEVICE, "let kernels tune themselves at start", unset=LEVEL_DECIDES),
    Field("kernel_config.rounding", k.SWITCH, DEVICE, "take kernels that round operands to a narrower type where a "
          "step has many tokens: faster, and what a request gets depends on its neighbours", unset=LEVEL_DECIDES),
    Field("compilation.mode", k.MODE, COMPILE, k.words(compat.MODE_NUMBERS), unset=LEVEL_DECIDES),
    Field("compilation.graph_mode", k.GRAPH_MODE, COMPILE, k.words(k.GRAPH_MODE_NAMES), unset=LEVEL_DECIDES),
    Field("compilation.backend", k.NAME, COMPILE, "makes pieces into code: inductor; native or eager: nothing "
          "does; in the other two modes any name of torch.compile", unset="the platform decides"),
    Field("compilation.custom_ops", k.OPERATIONS, COMPILE, "all or none, then +op and -op: which ops may leave their "
          "reference"),
    Field("compilation.splitting_ops", k.OPS, COMPILE, "ops that stand between pieces"),
    Field("compilation.capture_sizes", k.SIZES, COMPILE, "token counts to capture graphs for", ("--capture-sizes",)),
    Field("compilation.max_capture_size", k.SIZE, COMPILE, "the largest token count to capture a graph for",
          ("--max-capture-size",)),
    Field("compilation.compile_sizes", k.COMPILE_SIZES, COMPILE, "token counts compiled with fixed shapes; "
          "capture_sizes: those", unset="none"),
    Field("compilation.compile_ranges_endpoints", k.ENDPOINTS, COMPILE, "token counts at which compiled ranges end"),
    Field("compilation.cache_dir", k.FOLDER, COMPILE, "keep generated code here", ("--cache-dir",),
          unset="below ENGINE_CACHE_ROOT"),
    Field("compilation.kernel_bundle", k.FOLDER, COMPILE, "take kernels from here, where `engine kernels build` put "
          "them", ("--kernel-bundle",), unset="kernels are compiled when first used", variable="KERNEL_BUNDLE"),
    Field("compilation.debug_dump_path", k.FOLDER, COMPILE, "write programs, pieces and generated code here",
          unset="nothing is written", variable="DEBUG_DUMP_PATH"),
    Field("compilation.pass_config.rope_kvcache_max_tokens", k.SIZE, COMPILE, "largest step in which rotation and "
          "cache write are fused", unset="the platform decides", variable="ROPE_KVCACHE_MAX_TOKENS"),
    Field("compilation.pass_config.allreduce_max_size_mb", k.MEBIBYTES, COMPILE, "largest tensor, in MiB, whose "
          "reduction over ranks is fused with the norm", unset="the platform decides",
          variable="ALLREDUCE_MAX_SIZE_MB"),
    *(Field(f"compilation.pass_config.{name}", k.SWITCH, FUSE,
            {**USER_ONLY, **NOT_BUILT}.get(name, "fuse where the device can"), unset=UNSET.get(name, LEVEL_DECIDES),
            variable=name.upper()) for name in FUSIONS),
    Field("cache.block_size", k.COUNT, CACHE, "tokens per block of the KV cache", ("--block-size",)),
    Field("cache.gpu_memory_utilization", k.SHARE, CACHE, "share of the device's memory that may be used in all; where "
          "that is the host's, its platform may take another, as 0.5 of what is available on a processor",
          ("--gpu-memory-utilization",), 0.9),
    Field("cache.kv_cache_memory_bytes", k.BYTES, CACHE, "exact size of the KV cache, as in 8G; the share is then not "
          "used", ("--kv-cache-memory-bytes",), unset="what the share leaves"),
    Field("cache.kv_cache_dtype", k.CACHE_DTYPE, CACHE, f"{k.words(k.CACHE_NAMES)} in the device's own flavour; "
          "int8 has a scale for each head of a token",
          ("--kv-cache-dtype",), "auto"),
    Field("cache.enable_prefix_caching", k.SWITCH, CACHE, "reuse the blocks of equal prefixes",
          ("--enable-prefix-caching",), True),
    Field("scheduler.max_model_len", k.LENGTH, SCHEDULE, "longest prompt and answer together; auto: what fits",
          ("--max-model-len",), unset="the model's own limit"),
    Field("scheduler.max_num_seqs", k.SIZE, SCHEDULE, "most requests in one step", ("--max-num-seqs",)),
    Field("scheduler.max_num_batched_tokens", k.SIZE, SCHEDULE, "most tokens in one step",
          ("--max-num-batched-tokens",)),
    Field("scheduler.enable_chunked_prefill", k.SWITCH, SCHEDULE, "cut long prompts to fit beside running requests",
          ("--enable-chunked-prefill",), True),
    Field("scheduler.long_prefill_token_threshold", k.LIMIT, SCHEDULE, "longest piece of a prompt in one step; 0: no "
          "limit", ("--long-prefill-token-threshold",), 0),
    Field("scheduler.async_scheduling", k.SWITCH, SCHEDULE, "make a step while the one before runs",
          ("--async-scheduling",), unset="the platform decides"),
    Field("scheduler.policy", k.POLICY, SCHEDULE, "fcfs or priority", ("--scheduling-policy",), "fcfs"),
    Field("scheduler.fair_scheduling", k.SWITCH, SCHEDULE, "let API keys, or without keys the user fields of requests, "
          "take turns by tokens computed among requests of equal priority", ("--fair-scheduling",), True),
    Field("speculative_config.method", k.DRAFTING, DRAFT, "ngram: guess the next tokens from an earlier place of the "
          "request that reads like its end, and verify them in one step; answers stay the same", ("--spec-method",),
          unset="no drafts"),
    Field("speculative_config.num_speculative_tokens", k.DRAFTED, DRAFT, "most tokens guessed at once",
          ("--spec-tokens",), unset="none: --spec-method needs it"),
    Field("speculative_config.prompt_lookup_max", k.LOOKED_FOR, DRAFT, "how many last tokens are looked for",
          unset="prompt_lookup_min, else 5"),
    Field("speculative_config.prompt_lookup_min", k.LOOKED_FOR, DRAFT, "with how few of them a place will do",
          unset="prompt_lookup_max, else 5"),
    Field("parallel.tensor_parallel_size", k.COUNT, PARALLEL, "devices that share each layer",
          ("--tensor-parallel-size", "-tp"), 1),
    Field("parallel.pipeline_parallel_size", k.COUNT, PARALLEL, "stages that share the layers",
          ("--pipeline-parallel-size", "-pp"), 1),
    Field("parallel.data_parallel_size", k.COUNT, PARALLEL, "copies of the model", ("--data-parallel-size", "-dp"), 1),
    Field("server.host", k.NAME, SERVER, "address to listen on", ("--host",), "127.0.0.1"),
    Field("server.port", k.PORT, SERVER, "port to listen on; 0: any free one", ("--port",), 8000),
    Field("server.api_server_count", k.COUNT, SERVER, "processes that answer HTTP, in front of one engine core; more "
          "than one where reading requests and writing answers is what limits", ("--api-server-count", "-asc"), 1),
    Field("server.uds", k.FILE, SERVER, "listen on this Unix socket, not on an address and port", ("--uds",),
          unset="TCP"),
    Field("server.ssl_certfile", k.FILE, SERVER, "serve HTTPS with this certificate (PEM, with its chain)",
          ("--ssl-certfile",), unset="plain HTTP"),
    Field("server.ssl_keyfile", k.FILE, SERVER, "its key (PEM, without a password)", ("--ssl-keyfile",),
          unset="in the certificate's file"),
    Field("server.ssl_ca_certs", k.FILE, SERVER, "whose certificates clients may bring (PEM)", ("--ssl-ca-certs",),
          unset="the system's"),
    Field("server.ssl_cert_reqs", k.CERT_REQS, SERVER, "certificates of clients: 0 are not asked for, 1 are checked if "
          "there is one, 2 are needed", ("--ssl-cert-reqs",), 0),
    Field("server.api_key", k.KEYS, SERVER, "requests must bring one of these; may be given again", ("--api-key",),
          unset="no key needed"),
    Field("server.root_path", k.TEXT, SERVER, "path in front of every route, behind a proxy", ("--root-path",),
          unset="none"),
    Field("server.allowed_origins", k.TEXTS, SERVER, "pages of these origins may call the server from a browser "
          "(CORS); *: any", ("--allowed-origins",), unset="pages of the server alone"),
    Field("server.allowed_methods", k.TEXTS, SERVER, "methods that they may use", ("--allowed-methods",), ("*",)),
    Field("server.allowed_headers", k.TEXTS, SERVER, "headers that they may send", ("--allowed-headers",), ("*",)),
    Field("server.allow_credentials", k.SWITCH, SERVER, "they may send cookies and the like", ("--allow-credentials",),
          False),
    Field("server.enable_log_requests", k.SWITCH, SERVER, "log each request with its prompt and sampling",
          ("--enable-log-requests",), False),
    Field("server.max_log_len", k.LIMIT, SERVER, "of a logged prompt: most characters, and most token ids",
          ("--max-log-len",), unset="all of it"),
    Field("server.disable_log_stats", k.SWITCH, SERVER, "no periodic statistics", ("--disable-log-stats",), False),
    Field("server.log_stats_interval", k.INTERVAL, SERVER, "between two lines of statistics", ("--log-stats-interval",),
          10.0),
    Field("server.otlp_traces_endpoint", k.TEXT, SERVER, "send a trace of every request to the OpenTelemetry collector "
          "at this address, as in http://127.0.0.1:4317; needs the packages of engine[otel]",
          ("--otlp-traces-endpoint",), unset="no traces"),
    Field("server.shutdown_timeout", k.PATIENCE, SERVER, "how long a stop waits for running requests",
          ("--shutdown-timeout",), 30.0),
    Field("server.iteration_timeout", k.INTERVAL, SERVER, "a step that takes longer turns /health to 503; a core that "
          "does not run at all does so within 5 s", ("--iteration-timeout",), 30.0),
    Field("server.enable_auto_tool_choice", k.SWITCH, SERVER, "look for tool calls where a request leaves it to the "
          "model whether to call", ("--enable-auto-tool-choice",), False),
    Field("server.tool_call_parser", k.TOOL_PARSER, SERVER, f"format in which the model calls tools: auto, as the chat "
          f"template says, {k.words(k.TOOL_PARSERS)}", ("--tool-call-parser",), "auto"),
    Field("server.exclude_tools_when_tool_choice_none", k.SWITCH, SERVER, "do not show the model tools that it may not "
          "call", ("--exclude-tools-when-tool-choice-none",), False),
    Field("server.reasoning_parser", k.REASONING_PARSER, SERVER, "tell reasoning apart from answers, in the format of "
          f"{k.words(k.REASONING_PARSERS)}; none: it stays in the answer", ("--reasoning-parser",), "none"),
    Field("server.trust_request_chat_template", k.SWITCH, SERVER, "use the chat template that a request brings",
          ("--trust-request-chat-template",), False),
    Field("server.responses_store", k.LIMIT, SERVER, "how many answers of /v1/responses are kept in memory for later "
          "requests; 0: none", ("--responses-store",), 256),
    Field("server.ignore_unknown_fields", k.SWITCH, SERVER, "accept request fields nobody knows, with a log line",
          ("--ignore-unknown-fields",), False),
    Field("server.max_body_size", k.BYTES, LIMITS, "largest body of a request, as in 32M; above it: 413",
          ("--max-body-size",), 32 * 2**20),
    Field("server.max_prompt_length", k.SIZE, LIMITS, "most tokens of a prompt; above it: 400",
          ("--max-prompt-length",), unset="what fits the context"),
    Field("server.max_n", k.COUNT, LIMITS, "most choices per prompt (n)", ("--max-n",), 128),
    Field("server.max_schema_size", k.BYTES, LIMITS, "largest schema, grammar or other form of an answer, as JSON",
          ("--max-schema-size",), 128 * 2**10),
    Field("server.max_num_queued_reqs", k.SIZE, LIMITS, "while so many choices wait for their turn, requests get 429",
          ("--max-num-queued-reqs",), 4096),
    Field("server.max_num_queued_tokens", k.SIZE, LIMITS, "while prompts of so many tokens wait, requests get 429",
          ("--max-num-queued-tokens",), unset="no limit"),
    Field("server.max_requests_per_minute", k.COUNT, LIMITS, "that one API key, or without keys everybody together, "
          "may start; above it: 429", ("--max-requests-per-minute",), unset="no limit"),
    Field("server.request_timeout", k.INTERVAL, LIMITS, "the longest a request may take, waiting included; then it "
          "ends with 504", ("--request-timeout",), unset="no limit"),
    Field("server.idle_timeout", k.INTERVAL, LIMITS, "a connection is closed whose client stops in the middle of "
          "sending a request, or of reading its answer", ("--idle-timeout",), 60.0),
    Field("server.timeout_keep_alive", k.INTERVAL, LIMITS, "a connection is closed that brings no further request",
          ("--timeout-keep-alive",), 65.0),
)

BY_KEY: dict[str, Field] = {field.key: field for field in FIELDS}

OTHER_VARIABLES: dict[str, str] = {
    "CACHE_ROOT": "folder for models and for what is built",
    "FORCE_AOT_LOAD": "1: a compiled piece that is not in the cache, or a kernel that is not in the bundle, ends the "
    "start, naming it",
}
"""Variables, after the prefix, that are no field because code below the settings reads them."""

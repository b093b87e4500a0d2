"""The one table of spellings that users bring from elsewhere. Standard library only.

Everything inside the engine is named neutrally; whatever carries the name of a vendor, a library or another engine
stands here and is translated before anything else sees it.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

KEYS: Mapping[str, str] = MappingProxyType(
    {
        "compilation.cudagraph_mode": "compilation.graph_mode",
        "compilation.cudagraph_capture_sizes": "compilation.capture_sizes",
        "compilation.max_cudagraph_capture_size": "compilation.max_capture_size",
        "kernel_config.enable_flashinfer_autotune": "kernel_config.autotune",
        "cudagraph_capture_sizes": "compilation.capture_sizes",
        "max_cudagraph_capture_size": "compilation.max_capture_size",
        "enable_flashinfer_autotune": "kernel_config.autotune",
        "device_memory_utilization": "cache.gpu_memory_utilization",
        "kv_cache_memory": "cache.kv_cache_memory_bytes",
        "observability_config.otlp_traces_endpoint": "server.otlp_traces_endpoint",
        "override_pooler_config": "model.pooler_config",
        "compilation.pass_config.rope_kvcache_fusion_max_token_num": "compilation.pass_config.rope_kvcache_max_tokens",
        "compilation.pass_config.fi_allreduce_fusion_max_size_mb": "compilation.pass_config.allreduce_max_size_mb",
    }
)
"""Spelling → canonical key. ``-`` and ``_`` are already equal here."""

SECTIONS: Mapping[str, str] = MappingProxyType({"compilation_config": "compilation"})
"""First part of a dotted key as written → as it is called here."""

SHORT_SECTIONS: Mapping[str, str] = MappingProxyType({"cc": "compilation"})
"""The same for the form with one dash, as in ``-cc.mode=NONE``."""

OPERATIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "quant_fp8": ("quantize_static", "quantize_dynamic"),
        "rotary_embedding": ("rotary",),
        "apply_rotary_emb": ("rotary",),
        "unquantized_fused_moe": ("moe",),
        "fused_add_rms_norm": ("add", "rms_norm"),
    }
)
"""Names of ops in ``custom_ops`` → ops of this engine."""

POOLER: Mapping[str, str] = MappingProxyType(
    {
        "pooling_type": "pooling_type",
        "seq_pooling_type": "pooling_type",
        "normalize": "normalize",
        "use_activation": "normalize",
    }
)
"""Names in ``--pooler-config`` → what they mean here."""

DRAFTING: tuple[str, ...] = (
    "ngram_gpu",
    "draft_model",
    "eagle",
    "eagle3",
    "mtp",
    "medusa",
    "mlp_speculator",
    "suffix",
    "dflash",
    "dspark",
    "extract_hidden_states",
    "custom_class",
)
"""Methods of ``--speculative-config`` that are known elsewhere."""

SPLITS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "vllm::unified_attention": ("attention",),
        "vllm::unified_attention_with_output": ("attention",),
        "vllm::unified_mla_attention": ("mla_attention",),
        "vllm::unified_mla_attention_with_output": ("mla_attention",),
        "vllm::unified_kv_cache_update": ("kv_write",),
        "vllm::unified_mla_kv_cache_update": ("mla_write",),
    }
)
"""Names of ops in ``splitting_ops`` → ops of this engine."""

MODES: Mapping[str, str] = MappingProxyType({"VLLM_COMPILE": "PIECEWISE"})
COMPILE_SIZE_WORDS: Mapping[str, str] = MappingProxyType({"cudagraph_capture_sizes": "capture_sizes"})
"""Values spelled otherwise."""

MODE_NUMBERS: tuple[str, ...] = ("NONE", "STOCK_TORCH_COMPILE", "DYNAMO_TRACE_ONCE", "PIECEWISE")
GRAPH_MODE_NUMBERS: tuple[str, ...] = ("NONE", "PIECEWISE", "FULL")
"""Modes were also written as numbers: the position in these lists."""

REMOVED: Mapping[str, str] = MappingProxyType(
    {
        "disable_prefix_caching": "use --no-enable-prefix-caching",
        "preemption_mode": "preempted requests are always recomputed",
        "device": "use --platform (cpu, cuda, rocm or auto)",
        "task": "the model's kind says what it serves: text, and vectors for every model",
        "runner": "the model's kind says what it serves: text, and vectors for every model",
        "metrics": "GET /metrics needs no flag",
        "verbose": "use --log-stats-interval for more frequent statistics",
        "debug_dump_path": "use -cc.debug_dump_path=FOLDER",
        "max_seq_len_to_capture": "use -cc.max_capture_size",
        "num_scheduler_steps": "use --async-scheduling",
        "use_v2_block_manager": "there is one block manager",
        "num_lookahead_slots": "slots are reserved as they are needed",
        "worker_use_ray": "use --tensor-parallel-size",
        "compilation.level": "use -cc.mode",
        "compilation.use_cudagraph": "use -cc.graph_mode",
        "compilation.full_cuda_graph": "use -cc.graph_mode=FULL",
        "compilation.use_inductor": "use -cc.backend",
    }
)
"""Options of earlier releases → what to do instead."""

RENAMED: Mapping[str, str] = MappingProxyType(
    {
        "compilation.pass_config.enable_fusion": "use -cc.pass_config.fuse_norm_quant and "
        "-cc.pass_config.fuse_act_quant",
        "compilation.pass_config.enable_attn_fusion": "use -cc.pass_config.fuse_attn_quant",
        "compilation.pass_config.enable_sequence_parallelism": "use -cc.pass_config.enable_sp",
        "compilation.pass_config.enable_async_tp": "use -cc.pass_config.fuse_gemm_comms",
        "compilation.pass_config.enable_fi_allreduce_fusion": "use -cc.pass_config.fuse_allreduce_rms",
    }
)
"""Fusions under their names of earlier releases → today's."""

NOT_BUILT: Mapping[str, str] = MappingProxyType(
    {
        "cpu_offload_gb": "weights stay on the device; use a smaller or quantised model",
        **dict.fromkeys(
            ("enable_lora", "lora_modules", "max_loras", "max_lora_rank"),
            "adapters cannot be served; merge one into the weights",
        ),
        "limit_mm_per_prompt": "models take text alone",
        "middleware": "put a proxy in front of the server",
        "enable_server_load_tracking": "/metrics has the requests that run and wait",
        **dict.fromkeys(
            ("spec_model", "speculative_config.model", "speculative_config.draft_tensor_parallel_size"),
            "drafts come from a request's own tokens, without a second model",
        ),
        "tool_parser_plugin": "formats of tool calls are files of engine/server/tools",
        "reasoning_parser_plugin": "formats of reasoning are rows of engine/server/reasoning.py",
        "default_chat_template_kwargs": "requests bring them; or change the template by --chat-template",
        "distributed_executor_backend": "a model is served on one device",
        "disable_custom_all_reduce": "a model is served on one device",
        "generation_config": "requests bring their sampling; of generation_config.json only eos_token_id is read",
        "uvicorn_log_level": "the log holds warnings of the web server and the engine's own lines",
        "collect_detailed_traces": "a trace has one span per request with the times of its phases; use "
        "--otlp-traces-endpoint",
        "kv_cache_metrics": "/metrics has the use of the KV cache and the hits of the prefix cache",
        "enable_mfu_metrics": "/metrics has tokens and times",
        "show_hidden_metrics_for_version": "every metric is shown",
    }
)
"""Options of what this engine cannot do → what it does."""

_FORMS = "llguidance holds every answer to its form, so there is none to choose; requests say the form"
ELSEWHERE: Mapping[str, str] = MappingProxyType(
    {
        "distributed_optimizer_backend": "this is an inference engine",
        "batch_size": "use --max-num-seqs",
        "quantization": "the checkpoint's config says how it is stored",
        "attention_backend": "use --kernel attention=NAME",
        "hf_token": "HF_TOKEN in the environment is read by `engine pull`",
        "additional_config": "a platform's own settings are set by their names; see --help=all",
        "attention_config.backend": "use --kernel attention=NAME",
        "moe_backend": "use --kernel moe=NAME",
        "linear_backend": "use --kernel linear=NAME",
        "tokenizer": "the checkpoint's own is used",
        "tokenizer_mode": "there is one",
        "revision": "name a directory with the revision you want",
        "hf_overrides": "change config.json in a copy of the folder",
        "download_dir": "HF_HOME names the folder that `engine pull` downloads to, ENGINE_CACHE_ROOT that of the "
        "built-in model",
        "enable_expert_parallel": "experts are cut over --tensor-parallel-size",
        "guided_decoding_backend": _FORMS,
        "structured_outputs_config": _FORMS,
        "structured_outputs_config.backend": _FORMS,
        "max_num_partial_prefills": "short prompts of other tenants are computed in the middle of a long one; for "
        "those of the same use --long-prefill-token-threshold",
        "max_long_partial_prefills": "use --long-prefill-token-threshold",
        "num_gpu_blocks_override": "use --kv-cache-memory-bytes",
        "compilation.use_inductor_graph_partition": "pieces are cut on the program; use -cc.splitting_ops",
    }
)
"""Options of other tools that are decided or said in another way here → which."""

NOT_TAKEN: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {"removed": REMOVED, "renamed": RENAMED, "not built": NOT_BUILT, "not a setting here": ELSEWHERE}
)
"""Every option that is refused with advice, by what is said of it."""

_NO_NOOPS = "programs hold no operation that does nothing"
NO_EFFECT: Mapping[str, tuple[bool, str]] = MappingProxyType(
    {
        "trust_remote_code": (False, "no code of a checkpoint is run"),
        "no_trust_remote_code": (False, "no code of a checkpoint is run"),
        "disable_log_requests": (False, "requests are logged only under --enable-log-requests"),
        "swap_space": (True, "preempted requests are recomputed; for more room use --kv-cache-memory-bytes"),
        "compilation.pass_config.eliminate_noops": (False, _NO_NOOPS),
        "compilation.pass_config.enable_noop": (False, _NO_NOOPS),
    }
)
"""Options that are accepted with a warning, since nothing is lost without them → whether a value comes with them, and
why they do nothing."""

OWN_PREFIX, FOREIGN_PREFIX = "ENGINE_", "VLLM_"
"""Every variable ``VLLM_X`` is read as ``ENGINE_X`` where that exists; when both are set, ``ENGINE_X`` wins."""

GENERATOR_GRAPHS = "triton.cudagraphs"
"""The code generator's option for graphs of its own, which would lie inside ours."""

GENERATOR_VARIABLES = ("TORCHINDUCTOR_", "TRITON_", "ATEN_CPU_CAPABILITY", "CXX")
"""How variables begin that code generators read their own settings from."""

VARIABLES: Mapping[str, str] = MappingProxyType(
    {
        "VLLM_TARGET_DEVICE": "ENGINE_PLATFORM",
        "VLLM_ENGINE_ITERATION_TIMEOUT_S": "ENGINE_ITERATION_TIMEOUT",
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "ENGINE_TIMEOUT_KEEP_ALIVE",
        "VLLM_MAX_N_SEQUENCES": "ENGINE_MAX_N",
    }
)
"""Variables that have another name here."""

VARIABLES_NOT_TAKEN: Mapping[str, str] = MappingProxyType(
    {"VLLM_PORT": "it names a port between processes there; the HTTP port is ENGINE_PORT or --port"}
)
"""Variables with a namesake here that means something else → what to do."""

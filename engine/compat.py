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
        "swap_space": "preempted requests are recomputed; for more room use --kv-cache-memory-bytes",
        "cpu_offload_gb": "weights stay on the device; use a smaller or quantised model",
        "preemption_mode": "preempted requests are always recomputed",
        "device": "use --platform",
        "metrics": "GET /metrics needs no flag",
        "verbose": "use --log-stats-interval for more frequent statistics",
        "max_prompt_length": "use --max-model-len",
        "debug_dump_path": "use -cc.debug_dump_path=FOLDER",
        "max_seq_len_to_capture": "use -cc.max_capture_size",
        "num_scheduler_steps": "the scheduler overlaps steps by itself",
        "use_v2_block_manager": "there is one block manager",
        "num_lookahead_slots": "slots are reserved as they are needed",
        "disable_log_requests": "requests are not logged",
        "worker_use_ray": "use --tensor-parallel-size",
        "distributed_optimizer_backend": "this is an inference engine",
        "batch_size": "use --max-num-seqs",
        "quantization": "the checkpoint's config says how it is stored",
        "attention_backend": "use --kernel attention=NAME",
        "attention_config.backend": "use --kernel attention=NAME",
        "moe_backend": "use --kernel moe=NAME",
        "linear_backend": "use --kernel linear=NAME",
        "trust_remote_code": "no code of a checkpoint is run",
        "tokenizer": "the checkpoint's own is used",
        "tokenizer_mode": "there is one",
        "revision": "name a directory with the revision you want",
        "hf_overrides": "change config.json in a copy of the folder",
        "enable_expert_parallel": "experts are cut over --tensor-parallel-size",
        "enable_lora": "adapters are not built yet",
        "speculative_config": "drafting is not built yet",
        "tool_call_parser": "tool calls are not built yet",
        "enable_auto_tool_choice": "tool calls are not built yet",
        "reasoning_parser": "reasoning is not split off yet",
        "num_gpu_blocks_override": "use --kv-cache-memory-bytes",
        "distributed_executor_backend": "serving on several devices is not built yet",
        "async_scheduling": "the scheduler overlaps steps by itself",
        "compilation.level": "use -cc.mode",
        "compilation.pass_config.eliminate_noops": "programs hold none",
        "compilation.use_cudagraph": "use -cc.graph_mode",
        "compilation.full_cuda_graph": "use -cc.graph_mode=FULL",
        "compilation.use_inductor": "use -cc.backend",
        "compilation.use_inductor_graph_partition": "pieces are cut on the program; use -cc.splitting_ops",
    }
)
"""Options of earlier releases or of other tools → what to do instead."""

OWN_PREFIX, FOREIGN_PREFIX = "ENGINE_", "VLLM_"
"""Every variable ``VLLM_X`` is read as ``ENGINE_X`` where that exists; when both are set, ``ENGINE_X`` wins."""

GENERATOR_GRAPHS = "triton.cudagraphs"
"""The code generator's option for graphs of its own, which would lie inside ours."""

GENERATOR_VARIABLES = ("TORCHINDUCTOR_", "TRITON_", "ATEN_CPU_CAPABILITY", "CXX")
"""How variables begin that code generators read their own settings from."""

VARIABLES: Mapping[str, str] = MappingProxyType({"VLLM_TARGET_DEVICE": "ENGINE_PLATFORM"})
"""Variables that have another name here."""

VARIABLES_NOT_TAKEN: Mapping[str, str] = MappingProxyType(
    {"VLLM_PORT": "it names a port between processes there; the HTTP port is ENGINE_PORT or --port"}
)
"""Variables with a namesake here that means something else → what to do."""

"""Every call of FlashInfer that a row makes, with exactly the keywords it gives. Standard library only.

Written against version 0.7.4; a test compares the table with the sources of the installed package.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

MINIMUM, BELOW = "0.7.4", "0.8"
"""Versions whose signatures these are: from the one, and before the other."""

CALLS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "flashinfer.norm:rmsnorm": ("input", "weight", "eps", "out"),
        "flashinfer.norm:rmsnorm_quant": ("out", "input", "weight", "scale", "eps"),
        "flashinfer.activation:silu_and_mul": ("input", "out"),
        "flashinfer.comm:create_allreduce_fusion_workspace": (
            *("backend", "world_size", "rank", "max_token_num", "hidden_dim", "dtype", "gpus_per_node"),
            *("comm_backend", "group"),
        ),
        "flashinfer.comm:allreduce_fusion": (
            *("input", "workspace", "pattern", "launch_with_pdl", "trigger_completion_at_end", "output"),
            *("residual_out", "norm_out", "quant_out", "residual_in", "rms_gamma", "rms_eps", "scale_factor"),
            *("use_oneshot", "fp32_acc"),
        ),
        "flashinfer.comm.mnnvl:TorchDistBackend": ("group",),
    }
)
"""``module:name`` or ``module:class.method`` → keywords."""

"""Dtype, cache and scheduler limits."""

from __future__ import annotations

from collections.abc import Callable

from engine.errors import UserError
from engine.levels import PERFORMANCE_MODES
from engine.memory import sized, weight_bytes
from engine.models.config import ModelConfig
from engine.ops.paged import SCALED
from engine.plan.drafting import METHOD
from engine.plan.facts import float8_of
from engine.plan.ledger import Ledger
from engine.plan_values import LEANING, Decision
from engine.program import Program
from platforms.contract import DeviceProfile

EIGHT_BITS = "fp8"
"""The word for a KV cache of the device's own 8-bit float."""
BLOCKS = "cache.num_blocks"
DEFAULT_TOKENS, DEFAULT_SEQS, DEFAULT_BLOCK = 2048, 256, 16


def decide_dtype(
    ledger: Ledger, profile: DeviceProfile, model: ModelConfig, in_blocks: Callable[[str], bool] = lambda dtype: False
) -> str:
    """Type of dense weights and activations. ``in_blocks``: whether activations of a type are multiplied with weights
    in GGUF blocks. Raises ``UserError`` for a type the device has no arithmetic for."""
    key = "model.dtype"
    stored: str = model.dtype
    why = "the checkpoint's own type"
    if model.weight_format == "gguf" and stored == "float32":
        half = "dtype.bfloat16" in profile.features
        kinds = ["bfloat16", "float32"] if half else ["float32"]
        stored = next((kind for kind in kinds if in_blocks(kind)), kinds[0])
        why = "quantised weights are unpacked to " + ("the device's 16-bit type" if half else "it")
        if in_blocks(stored):
            why = "of activations; quantised weights stay as they are"
    if rather := ledger.overruled(key):
        ledger.warnings.append(
            f"{ledger.asked(key)} is served, and slower than the platform's own choice: {rather}. Drop the flag to "
            "take that."
        )
    wish = ledger.wish(key, stored, "default", why)
    native, emulated = (f"dtype.{wish.value}{more}" in profile.features for more in ("", ".emulated"))
    if ledger.user(key) is not None and not (native or emulated):
        have = ", ".join(sorted(name[6:] for name in profile.features if name.startswith("dtype.")))
        raise UserError(f"{ledger.asked(key)} cannot be served: {profile.product or profile.arch} computes in {have}.")
    if ledger.user(key) is None and not native and not (emulated and wish.origin == "platform"):
        wish = Decision(key, "float32", "derived", f"the device has no {wish.value} arithmetic")
    return ledger.settle(wish)


def decide_cache(ledger: Ledger, profile: DeviceProfile, model: ModelConfig, dtype: str) -> None:
    """Raises ``UserError`` for an 8-bit cache that the device or the model has none of."""
    ledger.decide("cache.block_size", DEFAULT_BLOCK)
    ledger.settle(_cache_dtype(ledger, profile, model, dtype))
    for key in ("cache.gpu_memory_utilization", "cache.enable_prefix_caching"):
        ledger.decide(key)
    ledger.decide("cache.kv_cache_memory_bytes", None, "default", "what the share leaves")


def _cache_dtype(ledger: Ledger, profile: DeviceProfile, model: ModelConfig, dtype: str) -> Decision:
    key = "cache.kv_cache_dtype"
    wish = ledger.wish(key, dtype, "derived", "auto: as the activations")
    if wish.value not in (EIGHT_BITS, SCALED):
        return wish
    found, why, problem = wish.value, wish.reason, ""
    if wish.value == EIGHT_BITS:
        found, why = float8_of(profile), f"{wish.reason}; the device's 8-bit float"
    if not found:
        problem = f"{profile.product or profile.arch} has no 8-bit floats of four exponent bits"
    if model.mla is not None:
        problem = f"{model.name} caches latents, which are kept in the type of the activations"
    if not problem:
        return Decision(key, found, wish.origin, why)
    if ledger.user(key) is not None:
        raise UserError(f"{ledger.asked(key)} cannot be served: {problem}. Drop the flag, or name {dtype}.")
    return Decision(key, dtype, "derived", f"{wish.value} ({wish.origin}) is not served: {problem}")


def decide_scheduler(ledger: Ledger, model: ModelConfig) -> None:
    """Raises ``UserError`` naming two flags that contradict each other."""
    ledger.decide("scheduler.max_model_len", model.max_position, "default", "the model's own limit")
    bound = f"the model was made for {model.max_position} positions"
    ledger.limit("scheduler.max_model_len", model.max_position, bound)
    limit = ledger.decisions["scheduler.max_model_len"].value
    chunked = ledger.decide("scheduler.enable_chunked_prefill")
    if METHOD not in ledger.decisions:
        ledger.decide("scheduler.async_scheduling", True, "default", "the device computes while the host works")
    ledger.decide("scheduler.policy")
    ledger.decide("scheduler.fair_scheduling")
    ledger.decide("scheduler.long_prefill_token_threshold")
    tokens = ledger.settle(_leaning(ledger, ledger.wish("scheduler.max_num_batched_tokens", DEFAULT_TOKENS)))
    if not chunked:
        tokens = ledger.limit(
            "scheduler.max_num_batched_tokens",
            limit,
            f"without chunked prefill a prompt of max_model_len {limit} must fit one step",
            max,
        )
    seqs = ledger.settle(_leaning(ledger, ledger.wish("scheduler.max_num_seqs", DEFAULT_SEQS)))
    if seqs > tokens and ledger.user("scheduler.max_num_seqs") is not None:
        ledger.limit("scheduler.max_num_batched_tokens", seqs, f"every one of max_num_seqs {seqs} needs a token", max)
    else:
        ledger.limit("scheduler.max_num_seqs", tokens, f"max_num_batched_tokens {tokens}")


def _leaning(ledger: Ledger, wish: Decision) -> Decision:
    """What nobody asked for, as the performance mode has it."""
    mode = ledger.decisions["performance_mode"].value
    factor = PERFORMANCE_MODES[mode].factor
    if factor == 1 or ledger.user(wish.key) is not None:
        return wish
    whose = wish.origin if wish.reason == wish.origin else f"{wish.origin}: {wish.reason}"
    return Decision(wish.key, factor * wish.value, LEANING, f"{mode}: {factor} × {wish.value} ({whose})")


def decide_blocks(ledger: Ledger, blocks: int, space: str) -> None:
    """A longest sequence that nobody named is held to what the blocks hold; one that a user named stays, with a
    warning, and each request that does not fit is refused on its own."""
    ledger.settle(Decision(BLOCKS, blocks, "derived", space))
    held = blocks * ledger.decisions["cache.block_size"].value
    key = "scheduler.max_model_len"
    if ledger.user(key) is None:
        ledger.limit(key, held, f"the {held} tokens that the KV cache holds")
    elif held < ledger.decisions[key].value:
        ledger.warnings.append(
            f"{ledger.asked(key)}, but the KV cache holds {held} tokens: longer requests are refused. Raise "
            "--kv-cache-memory-bytes or --gpu-memory-utilization."
        )


def decide_weights(ledger: Ledger, profile: DeviceProfile, program: Program) -> None:
    """How much of the device the weights take. Raises ``UserError`` for a KV cache that it cannot hold at all."""
    taken, total, key = weight_bytes(program), profile.memory_bytes, "cache.kv_cache_memory_bytes"
    words = f"{sized(taken)} before kernels pack them"
    if total:
        words += f", of {sized(total)}"
    ledger.settle(Decision("model.weight_bytes", taken, "derived", words))
    if total and taken > total:
        ledger.warnings.append(
            f"the weights take {sized(taken)}, and the device has {sized(total)}: use more ranks, a "
            "quantised model or a larger device"
        )
    if total and ledger.user(key) is not None and ledger.user(key) > total:
        raise UserError(
            f"{ledger.asked(key)} cannot be served: the device has {sized(total)}. Ask for less, or drop the "
            "flag to take what the weights leave."
        )

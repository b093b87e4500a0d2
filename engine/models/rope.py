"""Rotary position embedding: frequencies as plain numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

RopeKind = Literal["linear", "llama3", "yarn"]


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding of the first ``dim`` values of a head, in the rotate-half layout (value i turns with value
    i + dim / 2, by position times frequency i).

    ``kind``: how a longer context was reached; ``None`` is the plain form. ``factor``: context extension.
    ``original_max_position``: tokens before the extension (llama3, yarn). ``low_freq_factor``,
    ``high_freq_factor``: llama3. ``beta_fast``, ``beta_slow``, ``truncate``: yarn. ``attention_factor``: multiplies
    cos and sin. ``divisors``: explicit, one per frequency, or empty.
    """

    theta: float
    dim: int
    kind: RopeKind | None = None
    factor: float = 1.0
    original_max_position: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    attention_factor: float = 1.0
    divisors: tuple[float, ...] = ()

    def inverse_frequencies(self) -> list[float]:
        """Radians per position, ``dim / 2`` of them, fastest first."""
        plain = [self.theta ** (-2 * pair / self.dim) for pair in range(self.dim // 2)]
        if self.divisors:
            plain = [frequency / divisor for frequency, divisor in zip(plain, self.divisors, strict=True)]
        if self.kind == "linear":
            return [frequency / self.factor for frequency in plain]
        if self.kind == "llama3":
            return [self._llama3(frequency) for frequency in plain]
        if self.kind == "yarn":
            return self._yarn(plain)
        return plain

    def _llama3(self, frequency: float) -> float:
        """Llama 3.1 (github.com/meta-llama/llama-models, ``apply_scaling``): long waves are stretched, short kept."""
        turns = self.original_max_position * frequency / (2 * math.pi)
        if turns > self.high_freq_factor:
            return frequency
        if turns < self.low_freq_factor:
            return frequency / self.factor
        smooth = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        return (1 - smooth) * frequency / self.factor + smooth * frequency

    def _yarn(self, plain: list[float]) -> list[float]:
        """YaRN (arXiv 2309.00071, section 3.2, NTK-by-parts): a ramp over the dimensions between two turn counts."""
        low, high = self._dimension(self.beta_fast), self._dimension(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, self.dim - 1)
        width = high - low or 0.001
        ramp = [min(max((pair - low) / width, 0.0), 1.0) for pair in range(len(plain))]
        return [
            frequency / self.factor * share + frequency * (1 - share)
            for frequency, share in zip(plain, ramp, strict=True)
        ]

    def _dimension(self, turns: float) -> float:
        return self.dim * math.log(self.original_max_position / (turns * 2 * math.pi)) / (2 * math.log(self.theta))


def yarn_scale(factor: float, weight: float = 1.0) -> float:
    """How much larger scores are kept over a context ``factor`` times longer (arXiv 2309.00071, section 3.4)."""
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def yarn_attention_factor(factor: float, mscale: float = 0.0, mscale_all_dim: float = 0.0) -> float:
    """The factor of cos and sin that YaRN recommends; the two weights as DeepSeek's configs use them."""
    if mscale and mscale_all_dim:
        return yarn_scale(factor, mscale) / yarn_scale(factor, mscale_all_dim)
    return yarn_scale(factor)

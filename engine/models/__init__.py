"""Model config → program, by architecture name."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import get_args

from engine.models.config import Architecture, ModelConfig
from engine.models.decoder import decoder
from engine.models.layout import Layout
from engine.models.ranks import check_ranks
from engine.program import Program

Builder = Callable[[ModelConfig, Layout], Program]

BUILDERS: dict[str, Builder] = dict.fromkeys(get_args(Architecture), decoder)


@lru_cache(maxsize=2)
def build_program(model: ModelConfig, layout: Layout) -> Program:
    """The program of one rank. ``ModelConfig`` admits known architectures only. Raises ``UserError`` where the model
    does not divide among the layout's ranks."""
    check_ranks(model, layout.ranks)
    return BUILDERS[model.architecture](model, layout)

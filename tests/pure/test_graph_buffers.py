"""What passes between segments lies where nobody overwrites it before it is read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.compile.cut import Segment, cut
from engine.fusion import RULES, all_ops
from engine.graphs.buffers import places
from engine.graphs.dispatch import keys
from engine.graphs.space import graph_bytes
from engine.models import Layout, build_program
from engine.program import Program, Value
from tests.model_configs import LLAMA, MLA, MODELS
from tests.profiles import MODEL

OPS = all_ops(RULES)
WIDTH = 16


def parts(program: Program, *between: str) -> list[Segment]:
    return list(cut(program, between or ("attention", "mla_attention"), OPS))


def alive_together(segments: list[Segment], found: dict[str, object]) -> None:
    """Raises unless every value is whole from the segment that makes it to the last that reads it."""
    last = {name: at for at, segment in enumerate(segments) for name in segment.inputs}
    holder: dict[object, str] = {}
    for at, segment in enumerate(segments):
        for name in segment.inputs:
            assert name not in found or holder[found[name]] == name, f"{name} was overwritten before segment {at}"
        for name in segment.outputs:
            if name in found:
                before = holder.get(found[name])
                assert before is None or last[before] < at, f"{name} takes the place of {before}, read in {at}"
                holder[found[name]] = name


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_a_value_is_whole_until_it_was_read(model) -> None:
    program = build_program(replace(model, num_layers=4, quantization=None), Layout("float32", 16, "float32"))
    segments = parts(program)
    found = places(program, segments)
    assert {name for segment in segments[:-1] for name in segment.outputs} == set(found)
    alive_together(segments, found)


def test_values_of_one_shape_that_live_long_keep_their_places() -> None:
    names = [f"v{at}" for at in range(6)]
    values = {name: Value(name, "float32", ("tokens", 8)) for name in names}
    program = Program((), (), {}, values, {}, {})
    reads = [(), ("v0",), ("v0", "v1"), ("v2",), ("v0", "v3"), ("v4", "v1")]
    segments = [Segment("piece", (at,), reads[at], (names[at],), str(at)) for at in range(6)]
    segments.append(Segment("tail", (6,), ("v5",), ("logits",), "tail"))
    found = places(program, segments)
    alive_together(segments, found)
    assert len(set(found.values())) == 4, "as many as live at once"


def test_the_number_of_places_does_not_grow_with_depth() -> None:
    counts = set()
    for depth in (4, 30, 80):
        program = build_program(replace(LLAMA, num_layers=depth), Layout("float32", 16, "float32"))
        counts.add(len(set(places(program, parts(program)).values())))
    assert len(counts) == 1


def test_a_value_that_is_not_per_token_cannot_pass() -> None:
    program = build_program(MODEL, Layout("float32", 16, "float32"))
    segments = [Segment("piece", (), (), ("odd",), "a"), Segment("tail", (), ("odd",), (), "b")]
    odd = replace(program, values={**program.values, "odd": Value("odd", "float32", ("requests", 4))})
    with pytest.raises(ValueError, match=r"odd .*not one row per token"):
        places(odd, segments)


def test_H_GRF_07_without_graphs_nothing_is_kept_free() -> None:
    program = build_program(MODEL, Layout("float32", 16, "float32"))
    segments = parts(program)
    assert graph_bytes([(program, segments)], keys("NONE", (1, 8), 8), WIDTH) == 0
    sizes = [graph_bytes([(program, segments)], keys("FULL", (1, most), 8), WIDTH) for most in (8, 64, 512)]
    assert 0 < sizes[0] < sizes[1] < sizes[2]


def test_latent_attention_stands_between_pieces_as_well() -> None:
    program = build_program(replace(MLA, num_layers=3), Layout("float32", 16, "float32"))
    kinds = [segment.kind for segment in parts(program)]
    assert kinds == ["piece", "between"] * 3 + ["piece", "tail"]

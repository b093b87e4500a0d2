"""Calls of every row that goes to AITER, and how one is run."""

from __future__ import annotations

import torch

from engine.bind import load_target
from engine.fusion import RULES, all_ops
from engine.ops import Case
from engine.ops.compare import as_tuple, specs_of, with_packed
from engine.plan.kernels import call_facts
from kernels_rocm.manifest import KERNELS
from platforms.fusions import ADD_NORM
from platforms.rocm.targets import TARGETS

OPS = all_ops((*RULES, ADD_NORM))
ROWS = {row.op: row for row in KERNELS if row.name == "aiter"}
PROFILE = TARGETS["gfx942"]
EPS, FNUZ = {"eps": 1e-5}, {"storage": "float8_e4m3fnuz"}
PER_ROW, GROUPS = ({"columns": columns, "power_of_two": False} for columns in (0, 32))
HEADS = {"tokens": 5, "heads": 4, "kv_heads": 2, "blocks": 5, "page": 4}
SIZES = {"tokens": 5, "hidden": 64}
MIX = {"tokens": 5, "hidden": 128, "inner": 128, "experts": 16}
PLAIN = {"scoring": "softmax", "renormalize": True, "scaling": 1.0, "groups": 1, "top_groups": 1}
BATCH = {"tokens": 11, "requests": 3, "blocks": 9, "page": 16, "heads": 4, "kv_heads": 2}
ATTENDS = {"heads": 4, "kv_heads": 2, "head_dim": 32, "scale": 0.2, "window": None, "softcap": 0.0}
LATENT = {"heads": 3, "nope": 12, "rope": 16, "kv_rank": 32, "value": 20, "scale": 0.2}
PRODUCT = {"tokens": 3, "hidden": 256, "out": 128, "bias": 0}
FNUZ8, BYTES = 1, 2
"""Places of the device's two 8-bit types among the op's storages."""

CASES = [
    ("rms_norm", SIZES, EPS),
    ("add_rms_norm", SIZES, EPS),
    ("rms_norm_quantize_dynamic", SIZES, {**EPS, **FNUZ, **PER_ROW}),
    ("rms_norm_quantize_dynamic", SIZES, {**EPS, **FNUZ, **GROUPS}),
    ("rms_norm_quantize_dynamic", SIZES, {**EPS, "storage": "int8", **PER_ROW}),
    ("add_rms_norm_quantize_dynamic", SIZES, {**EPS, **FNUZ, **GROUPS}),
    ("rms_norm_quantize_static", {"tokens": 3, "hidden": 769}, {**EPS, **FNUZ}),
    ("add_rms_norm_quantize_static", SIZES, {**EPS, **FNUZ}),
    ("add_rms_norm_pad", {"tokens": 3, "hidden": 72}, {**EPS, "multiple": 128}),
    ("dual_rms_norm", {"tokens": 3}, {**EPS, "sizes": (96, 64, 8)}),
    ("silu_and_mul", SIZES, {}),
    ("gelu_and_mul", SIZES, {"approximate": "none"}),
    ("gelu_and_mul", SIZES, {"approximate": "tanh"}),
    ("silu_and_mul_quantize_dynamic", SIZES, {**FNUZ, **GROUPS}),
    ("silu_and_mul_quantize_static", {"tokens": 3, "hidden": 769}, FNUZ),
    ("rotary_kv_write", HEADS, {"head_dim": 16}),
    ("all_reduce_add_rms_norm", SIZES, {**EPS, "group": "tp"}),
    ("all_reduce_add_rms_norm_quantize_dynamic", SIZES, {**EPS, **FNUZ, **GROUPS, "group": "tp"}),
    ("all_reduce_rms_norm", SIZES, {**EPS, "group": "tp"}),
    *(
        (
            "scaled_linear",
            {**PRODUCT, "storage": storage, "scaling": how, "bias": bias},
            {"result": kind, "block": None},
        )
        for storage, how, bias, kind in [
            *(
                (FNUZ8, 0, 0, "bfloat16"),
                (FNUZ8, 1, 1, "bfloat16"),
                (BYTES, 0, 1, "bfloat16"),
                (BYTES, 1, 0, "float16"),
            ),
        ]
    ),
    ("scaled_linear", {**PRODUCT, "storage": FNUZ8, "scaling": 2}, {"result": "bfloat16", "block": (128, 128)}),
    ("moe", {**MIX, "bias": 0}, {**PLAIN, "top_k": 2}),
    ("moe", {**MIX, "bias": 0}, {**PLAIN, "top_k": 3, "renormalize": False, "scaling": 2.5}),
    ("moe", {**MIX, "bias": 0}, {**PLAIN, "top_k": 3, "groups": 4, "top_groups": 2, "scaling": 16.0}),
    ("moe", {**MIX, "bias": 0}, {**PLAIN, "top_k": 3, "scoring": "sigmoid", "renormalize": False}),
    ("moe", {**MIX, "bias": 1}, {**PLAIN, "top_k": 4, "scoring": "sigmoid", "scaling": 2.5}),
    (
        "moe",
        {**MIX, "experts": 32, "bias": 1},
        {**PLAIN, "top_k": 4, "scoring": "sigmoid", "groups": 8, "top_groups": 2},
    ),
    ("mla_attention", {**BATCH, "page": 32}, LATENT),
    ("mla_attention", {**BATCH, "tokens": 13, "requests": 5}, LATENT),
    ("attention", BATCH, ATTENDS),
    ("attention", BATCH, {**ATTENDS, "window": 3, "softcap": 1.5}),
    ("attention", {**BATCH, "tokens": 13, "requests": 5}, {**ATTENDS, "head_dim": 80}),
    ("attention", {**BATCH, "flavour": 1}, ATTENDS),
    ("attention_quantize_static", {**BATCH, "flavour": 1}, {**ATTENDS, **FNUZ}),
    ("attention_quantize_static", {**BATCH, "tokens": 13, "requests": 5}, {**ATTENDS, **FNUZ}),
]
NAMES = [f"{op}-{at}" for at, (op, *_) in enumerate(CASES)]


def inputs_of(op, sizes, attributes):
    return OPS[op].inputs(Case(sizes, attributes), "bfloat16", torch.Generator().manual_seed(3))


def facts_of(inputs, attributes, ranks=2):
    return {**attributes, **call_facts(specs_of(inputs)), "tensor_parallel_size": ranks}


def run(op, inputs, attributes):
    row = ROWS[op]
    given = with_packed(OPS[op], load_target(row.pack), inputs, attributes) if row.pack else inputs
    return as_tuple(load_target(row.target)(*given, **attributes))

"""The vocabulary of programs: one table of ops."""

from engine.ops.activation import gelu_and_mul, silu_and_mul
from engine.ops.attention import attention, kv_write
from engine.ops.blocks import block_embedding, block_linear, scaled_block_linear
from engine.ops.collective import all_gather, all_reduce
from engine.ops.linear import embedding, linear, select_rows, split
from engine.ops.mla import mla_attention, mla_write, split_heads
from engine.ops.moe import moe
from engine.ops.norm import add, pad, rms_norm
from engine.ops.packed import packed_linear
from engine.ops.quant import quantize_dynamic, quantize_static, scaled_linear
from engine.ops.rotary import rotary, rotary_table
from engine.ops.sampling import argmax, draw, mask, penalize
from engine.ops.spec import Case, Op, Spec

OPS: dict[str, Op] = {
    row.name: row
    for row in (
        add,
        all_gather,
        all_reduce,
        argmax,
        attention,
        block_embedding,
        block_linear,
        draw,
        embedding,
        gelu_and_mul,
        kv_write,
        linear,
        mask,
        pad,
        quantize_dynamic,
        quantize_static,
        mla_attention,
        mla_write,
        moe,
        packed_linear,
        penalize,
        rms_norm,
        rotary,
        rotary_table,
        scaled_block_linear,
        scaled_linear,
        select_rows,
        silu_and_mul,
        split,
        split_heads,
    )
}

GENERATED = frozenset(
    {
        "add",
        "embedding",
        "gelu_and_mul",
        "pad",
        "quantize_dynamic",
        "quantize_static",
        "rms_norm",
        "rotary",
        "rotary_table",
        "select_rows",
        "silu_and_mul",
        "split",
        "split_heads",
    }
)
"""Ops for which a code generator writes kernels as good as ours, fused with their neighbours: those that
``custom_ops=none`` leaves to it. Products, attention, writes to caches and collectives keep their kernels."""

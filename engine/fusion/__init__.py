"""Fusion rules, the ops they make, and the rewriting of programs."""

from engine.fusion.catalog import RULES, UNAVAILABLE
from engine.fusion.check import check_rules
from engine.fusion.fused import all_ops, fused_op, parse
from engine.fusion.rewrite import Index, rewrite

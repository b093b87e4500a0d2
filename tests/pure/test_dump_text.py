"""What -cc.debug_dump_path receives of a plan: programs before and after each fusion, pieces, decisions."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import pytest

from engine.compile.cut import cut
from engine.compile.dump import Dumper, dump_plan, plain_program, steps
from engine.errors import UserError
from engine.fusion import RULES, all_ops
from engine.models.config import ModelConfig
from engine.plan import Plan
from platforms.contract import FusionRule
from tests.described_plans import TARGETS, described, own_rules, plan
from tests.model_configs import LLAMA, MODELS, QWEN3
from tests.pure.toy_plans import toy_model, toy_plan

OPS = all_ops(RULES)


def dumped(folder: Path, found: Plan, model: ModelConfig, extra: tuple[FusionRule, ...] = ()) -> dict[str, str]:
    dump_plan(found, model, all_ops((*RULES, *extra)), extra, folder)
    root = folder / "rank_0"
    return {path.relative_to(root).as_posix(): path.read_text() for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("name", "target"), TARGETS)
def test_the_steps_lead_from_the_plain_program_to_what_the_plan_runs(name: str, target: str) -> None:
    extra = own_rules(name)
    ops = all_ops((*RULES, *extra))
    for model in MODELS:
        found = plan(described(name, target), model, "-O3")
        plain = plain_program(found, model)
        for one in found.ranges:
            made = list(steps(plain, one, ops, extra))
            counts: dict[str, int] = {}
            for rule, places, _ in made:
                counts[rule.name] = counts.get(rule.name, 0) + places
            assert counts == {rule: places for rule, places in one.matched.items() if places}
            assert (made[-1][2] if made else plain) == one.program


def test_a_fusion_that_the_plan_did_not_carry_out_is_found_out() -> None:
    found = toy_plan()
    (one,) = found.ranges
    (_, _, fused), *_ = steps(plain_program(found, toy_model()), one, OPS, ())
    assert fused == one.program
    without = dataclasses.replace(one, matched={})
    with pytest.raises(AssertionError):
        list(steps(plain_program(found, toy_model()), without, OPS, ()))


def test_files_of_a_plan_with_one_program(tmp_path: Path) -> None:
    found = toy_plan()
    texts = dumped(tmp_path, found, toy_model())
    assert sorted(texts) == ["pieces.txt", "plan.json", "program.1.fuse_rope_kvcache.txt", "program.txt"]
    assert json.loads(texts["plan.json"])["hash"] == found.hash
    before, after = texts["program.txt"].splitlines(), texts["program.1.fuse_rope_kvcache.txt"].splitlines()
    assert before[0] == "# before any fusion; 31 calls"
    assert after[0] == "# after fuse_rope_kvcache: rotary_kv_write in 2 places; 29 calls"
    assert sum(" = rotary(" in line for line in before) == 2 and not any(" = rotary(" in line for line in after)
    assert sum(" = rotary_kv_write(" in line for line in after) == 2


def test_a_call_is_one_line_that_says_everything_about_it(tmp_path: Path) -> None:
    text = dumped(tmp_path, plan(described("cuda", "sm_90"), LLAMA, "-O0"), LLAMA)["program.txt"]
    lines = text.splitlines()
    assert "input slots.0: int64[tokens]" in lines
    assert "weight 0.qkv: bfloat16[6144, 4096] dense" in lines
    assert "cache 0.kv: bfloat16 full heads=8 dims=(128, 128) window=None page=16" in lines
    (table,) = [line for line in lines if line.startswith("rotary.table: ")]
    assert table.startswith("rotary.table: float32[tokens, 128] = rotary_table(positions) frequencies=(1.0, 0.8659")
    assert ", ... 64 in all) factor=1.0  # reference" in table
    split = "0.q: bfloat16[tokens, 4096], 0.k: bfloat16[tokens, 1024], 0.v: bfloat16[tokens, 1024] = split"
    assert any(line.startswith(f"{split}(0.attention.qkv) sizes=(4096, 1024, 1024)") for line in lines)
    assert "output logits = logits" in lines


def test_each_range_of_step_sizes_has_a_folder_of_its_own(tmp_path: Path) -> None:
    words = ("-O2", "-cc.pass_config.rope_kvcache_max_tokens=64")
    found = plan(described("cuda", "sm_90"), QWEN3, *words)
    small, large = (f"range_{one.start}-{one.end}" for one in found.ranges)
    texts = dumped(tmp_path, found, QWEN3)
    assert f"{small}/program.1.fuse_qk_norm_rope_kvcache.txt" in texts
    assert f"{small}/pieces.txt" in texts and f"{large}/pieces.txt" in texts
    assert not any(name.startswith(f"{large}/program") and "kvcache" in name for name in texts)
    assert texts[f"{small}/pieces.txt"].startswith("# steps of 1 to 64 tokens: ")
    assert "program.txt" in texts and "pieces.txt" not in texts


@pytest.mark.parametrize("words", [("-O2",), ("-O0",), ("--enforce-eager",), ("-O2", "-cc.mode=STOCK_TORCH_COMPILE")])
def test_pieces_say_what_they_read_and_make_and_who_computes_each_call(words: tuple[str, ...], tmp_path: Path) -> None:
    found = plan(described("cuda", "sm_90"), QWEN3, *words)
    (one,) = found.ranges
    extra = own_rules("cuda")
    text = dumped(tmp_path, found, QWEN3, extra)["pieces.txt"]
    segments = cut(one.program, found.between, all_ops((*RULES, *extra)))
    heads = [line for line in text.splitlines() if line.startswith("segment ")]
    assert heads == [
        f"segment {number}: {row.kind}, {len(row.calls)} calls, structure {row.structure}"
        for number, row in enumerate(segments, 1)
    ]
    chosen = {f"# {row.chosen}" for row in found.kernels}
    calls = [line for line in text.splitlines() if " = " in line]
    assert len(calls) == len(one.program.calls)
    assert {line.rpartition("  ")[2] for line in calls} == chosen
    assert text.count("  reads ") == text.count("  makes ") == len(segments)
    assert "  makes logits: bfloat16[rows, 128256]" in text
    mode = found["compilation.mode"]
    code = [line for line in text.splitlines() if line.startswith("  code: ")]
    assert len(code) == (0 if mode == "NONE" else sum(row.kind == "piece" for row in segments))
    expected = {"PIECEWISE": "inductor (", "STOCK_TORCH_COMPILE": "torch.compile, backend inductor"}
    assert all(line.startswith(f"  code: {expected[mode]}") for line in code)


def test_a_folder_is_used_again_and_says_nothing_of_the_start_before(tmp_path: Path) -> None:
    Dumper(tmp_path)("generated.py", "kept")
    (tmp_path / "mine.txt").write_text("kept")
    dumped(tmp_path, toy_plan(), toy_model())
    texts = dumped(tmp_path, toy_plan("-O0"), toy_model())
    assert sorted(texts) == ["generated.py", "pieces.txt", "plan.json", "program.txt"]
    assert (tmp_path / "mine.txt").read_text() == "kept"


def test_ranks_do_not_share_files(tmp_path: Path) -> None:
    for rank in (0, 1):
        dump_plan(toy_plan(), toy_model(), OPS, (), tmp_path, rank)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank_0", "rank_1"]


def test_a_name_that_no_file_can_have_is_written_in_another_way(tmp_path: Path) -> None:
    extra = tuple(dataclasses.replace(row, name="../odd name") for row in RULES if row.name == "fuse_rope_kvcache")
    found = toy_plan()
    (one,) = found.ranges
    renamed = dataclasses.replace(one, matched={"../odd name": 2})
    texts = dumped(tmp_path, dataclasses.replace(found, ranges=(renamed,)), toy_model(), extra)
    assert "program.1..._odd_name.txt" in texts


def test_a_folder_that_cannot_be_written_is_refused_with_flag_path_and_reason(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError) as caught:
        dump_plan(toy_plan(), toy_model(), OPS, (), tmp_path / "file")
    for word in ("-cc.debug_dump_path", str(tmp_path / "file" / "rank_0"), os.strerror(20), "drop the flag"):
        assert word in str(caught.value)

"""``python -m tests.native.serve MODEL``: as JSON, what this host is taken for, which kernels were chosen and why not
others, the library, and what the model says: log-probabilities of a prompt's tokens, and tokens that follow it."""

from __future__ import annotations

import json
import sys
from typing import Any

PROMPT = [3 + 11 * at % 90 for at in range(24)]


def served(model: str) -> dict[str, Any]:
    from engine import LLM, SamplingParams
    from kernels_cpu import library

    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, prompt_logprobs=0)
    with LLM(model, platform="cpu", max_model_len=64, max_num_seqs=2, kv_cache_memory_bytes=1 << 20) as llm:
        found = llm.generate([PROMPT], params, use_tqdm=False)[0]
        plan, opened = llm.plan, library._open
        said = [row[token].logprob for row, token in zip(found.prompt_logprobs, PROMPT, strict=True) if row]
        return {
            "arch": plan.profile.arch,
            "evidence": dict(plan.profile.evidence),
            "kernels": {row.op: [row.chosen, row.target] for row in plan.kernels},
            "reasons": {row.op: {name: verdict.reason for name, verdict in row.considered} for row in plan.kernels},
            "library": str(opened[0].path) if opened else "",
            "said": said,
            "tokens": list(found.outputs[0].token_ids),
        }


if __name__ == "__main__":
    print("\n" + json.dumps(served(sys.argv[1])))

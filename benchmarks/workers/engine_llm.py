"""The engine through ``LLM``: scheduler, plan, graphs and sampler as users get them."""

from __future__ import annotations

import time
from typing import Any

from answers import resident, serve


class Engine:
    def open(self, model: str, level: int = 2, kv_bytes: int = 1 << 30, bundle: str = "") -> dict[str, Any]:
        """``kv_bytes``: of the KV cache. ``bundle``: a folder of kernels built before, or none."""
        begin, before = time.perf_counter(), resident()
        import torch

        import_seconds, import_bytes = time.perf_counter() - begin, resident() - before
        from engine import LLM

        more = {"kernel_bundle": bundle} if bundle else {}
        self.llm = LLM(model, optimization_level=level, kv_cache_memory_bytes=kv_bytes, **more)
        core = self.llm._open_core()
        return {
            "version": f"torch {torch.__version__}",
            "import_bytes": import_bytes,
            "import_seconds": round(import_seconds, 2),
            "phases": dict(core.info.phases),
            "platform": core.info.platform,
            "context": core.info.num_blocks * core.info.block_size,
            "token_bytes": core._worker.space.block_bytes / core.info.block_size,
        }

    def generate(self, prompts: list[list[int]], tokens: int) -> dict[str, Any]:
        from engine import SamplingParams

        params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
        begin = time.perf_counter()
        found = self.llm.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - begin
        made = [len(result.outputs[0].token_ids) for result in found]
        assert made == [tokens] * len(prompts), made
        return {"seconds": seconds}

    def logits(self, ids: list[int], file: str) -> dict[str, Any]:
        """All logits of all positions but the last, as the sampler is given them to score a prompt; float32 .npy."""
        import numpy as np

        from engine import SamplingParams

        runner = self.llm._open_core()._worker.runner
        submit, parts = runner.submit, []

        def kept(batch: Any) -> Any:
            handle = submit(batch)
            parts.extend(handle.logits[rows.start : rows.stop].float().cpu().numpy() for rows in handle.scored.values())
            return handle

        runner.submit = kept
        try:
            self.llm.generate([ids], SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0), use_tqdm=False)
        finally:
            del runner.submit
        whole = np.concatenate(parts)
        assert len(whole) == len(ids) - 1, (whole.shape, len(ids))
        np.save(file, whole)
        return {"rows": len(whole)}


if __name__ == "__main__":
    serve(Engine())

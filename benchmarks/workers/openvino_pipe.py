"""OpenVINO GenAI reading the GGUF, through its pipeline with continuous batching."""

from __future__ import annotations

import time
from typing import Any

from answers import serve

BLOCK = 32
"""Tokens in a block of its KV cache on a host."""


class OpenVino:
    def open(self, model: str, threads: int, context: int = 16384, requests: int = 16) -> dict[str, Any]:
        """``context``: tokens of KV cache, all ``requests`` together."""
        import openvino_genai as genai

        self.genai = genai
        scheduler = genai.SchedulerConfig()
        scheduler.max_num_batched_tokens, scheduler.max_num_seqs = 2048, 2 * requests
        scheduler.num_kv_blocks = -(-context // BLOCK)
        self.pipe = genai.LLMPipeline(model, "CPU", scheduler_config=scheduler, INFERENCE_NUM_THREADS=threads)
        return {"version": f"openvino-genai {genai.__version__}", "context": scheduler.num_kv_blocks * BLOCK}

    def generate(self, prompts: list[list[int]], tokens: int) -> dict[str, Any]:
        import numpy as np
        import openvino as ov

        config = self.genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos = tokens, True
        config.do_sample, config.apply_chat_template = False, False
        ids = np.array(prompts, dtype=np.int64)
        begin = time.perf_counter()
        found = self.pipe.generate(self.genai.TokenizedInputs(ov.Tensor(ids), ov.Tensor(np.ones_like(ids))), config)
        seconds = time.perf_counter() - begin
        made = [len(one) for one in found.tokens]
        assert made == [tokens] * len(prompts), made
        return {"seconds": seconds}


if __name__ == "__main__":
    serve(OpenVino())

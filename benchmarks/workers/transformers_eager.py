"""transformers with the GGUF's weights dequantised to float32: a peer, and what accuracy is measured against."""

from __future__ import annotations

import filecmp
import os
import time
from typing import Any

from answers import serve


class Transformers:
    def open(self, model: str, threads: int, context: int = 0, requests: int = 0) -> dict[str, Any]:
        os.environ["HF_HUB_OFFLINE"] = "1"
        import torch
        import transformers

        from tests.checkpoints import builtin_gguf
        from tests.reference_model import reference_model

        if not filecmp.cmp(model, builtin_gguf(), shallow=False):
            raise SystemExit(f"the float32 weights are made of the built-in model alone, not of {model}")
        torch.set_num_threads(threads)
        self.torch, self.model = torch, reference_model()
        return {"version": f"transformers {transformers.__version__}", "context": context}

    def generate(self, prompts: list[list[int]], tokens: int) -> dict[str, Any]:
        torch = self.torch
        ids = torch.tensor(prompts)
        begin = time.perf_counter()
        with torch.inference_mode():
            found = self.model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=tokens,
                min_new_tokens=tokens,
                do_sample=False,
                pad_token_id=0,
            )
        seconds = time.perf_counter() - begin
        assert found.shape[1] == ids.shape[1] + tokens, found.shape
        return {"seconds": seconds}

    def logits(self, ids: list[int], file: str) -> dict[str, Any]:
        """Logits of all positions but the last, float32 .npy."""
        import numpy as np

        with self.torch.inference_mode():
            whole = self.model(self.torch.tensor([ids[:-1]])).logits[0]
        np.save(file, whole.numpy())
        return {"rows": len(whole)}


if __name__ == "__main__":
    serve(Transformers())

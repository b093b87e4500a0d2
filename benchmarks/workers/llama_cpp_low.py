"""llama.cpp through the low-level half of llama-cpp-python: batches over several sequences, greedy."""

from __future__ import annotations

import time
from typing import Any

from answers import serve

BATCH = 2048


class LlamaCpp:
    def open(self, model: str, threads: int, context: int = 16384, requests: int = 16) -> dict[str, Any]:
        """``context``: tokens of KV cache, shared by ``requests`` sequences."""
        import llama_cpp as low

        self.low = low
        low.llama_backend_init()
        given = low.llama_model_default_params()
        given.n_gpu_layers = 0
        self.model = low.llama_model_load_from_file(model.encode(), given)
        params = low.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = context, BATCH, 512, requests
        params.n_threads = params.n_threads_batch = threads
        self.context = low.llama_init_from_model(self.model, params)
        assert self.context, f"llama.cpp made no context of {context} tokens"
        self.vocab = low.llama_vocab_n_tokens(low.llama_model_get_vocab(self.model))
        self.batch = low.llama_batch_init(BATCH, 0, 1)
        return {"version": f"llama-cpp-python {low.__version__}", "context": low.llama_n_ctx(self.context)}

    def generate(self, prompts: list[list[int]], tokens: int) -> dict[str, Any]:
        begin = time.perf_counter()
        self._clear()
        last: dict[int, int] = {}
        whole = [
            (token, at, number, at == len(prompt) - 1)
            for number, prompt in enumerate(prompts)
            for at, token in enumerate(prompt)
        ]
        for start in range(0, len(whole), BATCH):
            part = whole[start : start + BATCH]
            self._run(part)
            last |= {number: self._best(row) for row, (_, _, number, ends) in enumerate(part) if ends}
        for made in range(tokens - 1):
            self._run([(last[number], len(prompt) + made, number, True) for number, prompt in enumerate(prompts)])
            last = {number: self._best(number) for number in range(len(prompts))}
        return {"seconds": time.perf_counter() - begin}

    def logits(self, ids: list[int], file: str) -> dict[str, Any]:
        """Logits of all positions but the last, float32 .npy."""
        import numpy as np

        self._clear()
        rows = len(ids) - 1
        self._run([(token, at, 0, True) for at, token in enumerate(ids[:rows])])
        np.save(file, np.stack([self._row(row) for row in range(rows)]))
        return {"rows": rows}

    def _clear(self) -> None:
        self.low.llama_memory_clear(self.low.llama_get_memory(self.context), True)

    def _run(self, items: list[tuple[int, int, int, bool]]) -> None:
        batch = self.batch
        batch.n_tokens = len(items)
        for row, (token, position, sequence, wanted) in enumerate(items):
            batch.token[row], batch.pos[row], batch.logits[row] = token, position, wanted
            batch.n_seq_id[row] = 1
            batch.seq_id[row][0] = sequence
        status = self.low.llama_decode(self.context, batch)
        assert status == 0, f"llama_decode of {len(items)} tokens gave {status}"
        self.low.llama_synchronize(self.context)

    def _row(self, row: int) -> Any:
        import numpy as np

        return np.ctypeslib.as_array(self.low.llama_get_logits_ith(self.context, row), (self.vocab,))

    def _best(self, row: int) -> int:
        return int(self._row(row).argmax())


if __name__ == "__main__":
    serve(LlamaCpp())

"""What a type of KV cache moves: ``python benchmarks/kv_cache.py [--types float16,int8] [--pieces 4]``.

Kernels as planned, and references, whose activations stay float32; each beside the same over a float32 cache, and
beside references over one.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.compare.accuracy import Score, chunks
from benchmarks.compare.roster import engine
from engine.weights.resolve import resolve_model

WIDE = "float32"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a GGUF file; default: the built-in model")
    parser.add_argument("--types", default="float16,int8", help="of caches, as --kv-cache-dtype has them")
    parser.add_argument("--pieces", type=int, default=4, help="of 257 tokens")
    asked = parser.parse_args()
    import numpy as np

    model = resolve_model(asked.model).path.absolute()
    pieces = chunks(model, asked.pieces)
    with tempfile.TemporaryDirectory(prefix="engine-kv-") as folder:
        for kernels in ("reference", "auto"):
            for kind in (WIDE, *asked.types.split(",")):
                process = engine(folder).start({"ENGINE_KV_CACHE_DTYPE": kind, "ENGINE_KERNELS": kernels})
                process.ask("open", model=str(model), level=0 if kernels == "reference" else 2)
                same, truth = Score(), Score()
                for index, ids in enumerate(pieces):
                    process.ask("logits", ids=ids, file=f"{folder}/{kernels}-{kind}-{index}.npy")
                    found = np.load(f"{folder}/{kernels}-{kind}-{index}.npy")
                    for score, beside in ((same, kernels), (truth, "reference")):
                        score.add(np.load(f"{folder}/{beside}-{WIDE}-{index}.npy"), found)
                process.close()
                print(f"{kernels:9} {kind:13}", end="")
                for name, score in (("the same", same), ("references", truth)):
                    told = score.report()
                    print(f"  beside {name} over {WIDE}: KL {told['kl']:.1e}, likeliest {told['same']:6.1%}", end="")
                print(flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

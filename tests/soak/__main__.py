"""``python -m tests.soak [SECONDS]``: a server at saturation, with clients as they are met."""

from __future__ import annotations

import argparse
import sys
import time

from tests.soak.run import soak


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seconds", nargs="?", type=float, default=1200)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    asked = parser.parse_args()
    print(f"seed {asked.seed}", flush=True)
    report = soak(asked.seconds, asked.seed)
    print(report.table())
    for problem in report.problems:
        print("-", problem)
    return 1 if report.problems else 0


if __name__ == "__main__":
    sys.exit(main())

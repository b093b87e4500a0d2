"""Writes the tables that documents take from the code, between their markers. ``--check`` only compares."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))


def level_table() -> str:
    from engine.fusion.catalog import LEVEL_OF
    from engine.levels import describe

    rows = describe(LEVEL_OF)
    titles = {"level": "level", "mode": "compile mode", "graph_mode": "graphs", "fusions": "fusions on by default",
              "tuning": "tuning", "purpose": "for"}
    lines = ["| " + " | ".join(titles.values()) + " |", "|" + " --- |" * len(titles)]
    return "\n".join(lines + ["| " + " | ".join(row[key] for key in titles) + " |" for row in rows])


def support_tables() -> str:
    """One table per platform of this repository."""
    from engine.conformance.report import as_markdown, support
    from engine.conformance.subject import find

    names = ("cuda", "rocm", "cpu")
    return "\n".join(f"## {name}\n\n{as_markdown(support(find(name)))}" for name in names).rstrip()


TABLES = {"levels": level_table, "support": support_tables}
DOCUMENTS = ("README.md", "docs/support.md")


def main(check: bool) -> int:
    stale = []
    for name in DOCUMENTS:
        old = (ROOT / name).read_text()
        new = old
        for key, make in TABLES.items():
            if f"<!-- {key} -->" not in old:
                continue
            marked = re.compile(rf"(?<=<!-- {key} -->\n).*?(?=<!-- /{key} -->)", re.S)
            new = marked.sub(make().replace("\\", r"\\") + "\n", new)
        if new != old:
            stale.append(name)
            if not check:
                (ROOT / name).write_text(new)
    if stale:
        print(f"{'stale, run python docs/tables.py' if check else 'written'}: {', '.join(stale)}")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv))

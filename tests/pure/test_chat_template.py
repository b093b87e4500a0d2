"""The template of ``--chat-template``, read before anything is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.chat_template import read_template
from engine.errors import UserError


@pytest.mark.parametrize(
    ("text", "line"),
    [("{% for m in messages %}", 1), ("a\n{{ m. }}", 2), ("\n\n{{ m | nosuchfilter }}", 3), ("{{ 'a }}", 1)],
)
def test_a_broken_template_is_refused_with_its_line(text: str, line: int, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"^--chat-template: line {line}: "):
        read_template(text)
    file = tmp_path / "broken.jinja"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=f"broken.jinja: line {line}: "):
        read_template(str(file))


def test_a_template_that_is_too_deep_is_refused() -> None:
    with pytest.raises(UserError, match="--chat-template"):
        read_template("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}")


def test_a_template_of_model_authors_is_taken() -> None:
    text = "{% for m in messages %}{% generation %}{{ m | tojson }}{% endgeneration %}{% break %}{% endfor %}"
    assert read_template(text) == text and read_template(None) is None

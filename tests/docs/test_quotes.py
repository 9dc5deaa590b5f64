"""Every message that the documentation quotes is one that the code can say."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
QUOTE = re.compile(r"^```text\n(.*?)^```", re.DOTALL | re.MULTILINE)
QUOTES = QUOTE.findall((ROOT / "docs" / "troubleshooting.md").read_text())


@cache
def texts() -> str:
    """All string literals of the package, f-strings without what they format."""
    trees = (ast.parse(file.read_text()) for file in (ROOT / "faststream_outbox").rglob("*.py"))
    nodes = (node for tree in trees for node in ast.walk(tree))
    constants = (node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return "\n".join(re.sub(r"\{\w+\}", "…", constant) for constant in constants)


def test_there_is_something_to_check() -> None:
    assert len(QUOTES) >= 10


@pytest.mark.parametrize("quote", QUOTES)
def test_quote(quote: str) -> None:
    known = texts().replace("…", "")
    for part in quote.strip().split("…"):
        assert part.strip(" .():") in known, part

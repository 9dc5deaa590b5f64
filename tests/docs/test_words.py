"""The package is written in plain words: what style forbids is not in its docstrings, comments and messages."""

import ast
import re
from pathlib import Path

import pytest

import faststream_outbox

PACKAGE = Path(faststream_outbox.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
# Words that hide who does what, and old-fashioned ones that a reader has to look up.
HARD_WORDS = re.compile(
    r"\b(whoever|whatever it is|lest|thereby|all the same|in earnest|somebody|told|tells? of|take note|hears? of)\b",
    re.IGNORECASE,
)
# A docstring starts with what the thing does or is: "Return whether …", not "Tell whether …".
HARD_BEGINNINGS = re.compile(r"(Tell|Tells|Say|Says|Hear|Hears|Have|Let)\b")


def name(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_no_module_uses_words_that_hide_who_does_what(path: Path) -> None:
    lines = path.read_text().splitlines()
    found = [f"{number}: {line.strip()}" for number, line in enumerate(lines, 1) if HARD_WORDS.search(line)]
    assert not found


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_docstrings_begin_plainly(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree), "a module opens with one plain sentence"
    documented = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    nodes = [node for node in ast.walk(tree) if isinstance(node, documented)]
    docs = [(node.name, doc) for node in nodes if (doc := ast.get_docstring(node))]
    assert [each for each in docs if HARD_BEGINNINGS.match(each[1])] == []

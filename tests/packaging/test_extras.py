"""Errors about a missing extra name one that exists, and never the package of PyPI that has our name."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

from faststream_outbox._installation import needs_extra

ROOT = Path(__file__).parents[2]
MODULES = sorted((ROOT / "faststream_outbox").rglob("*.py"))
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
CALLS = [
    node
    for module in MODULES
    for node in ast.walk(ast.parse(module.read_text()))
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "needs_extra"
]
NAMED = [extra.value for _, extra in (call.args for call in CALLS) if isinstance(extra, ast.Constant)]


def test_the_words() -> None:
    assert needs_extra("The live view", "cli") == (
        "The live view needs the extra `cli` of this package: pip install '<checkout or wheel>[cli]' (docs/install.md)"
    )
    assert (ROOT / "docs" / "install.md").is_file()


@pytest.mark.parametrize("extra", sorted({*map(str, NAMED)}))
def test_an_extra_that_an_error_names_exists(extra: str) -> None:
    assert extra in EXTRAS


def test_they_were_found() -> None:
    # Two more take the name of the driver, or of the broker, that is missing.
    assert len(CALLS) - len(NAMED) == 2
    assert len(NAMED) >= 9


def test_no_text_says_to_install_the_package_by_its_name() -> None:
    by_name = re.compile(r"install '?faststream-outbox\[\w")
    assert [module.name for module in MODULES if by_name.search(module.read_text())] == []

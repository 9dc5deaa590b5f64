"""A reader can paste the blocks of a page: what a block uses is in it, or in a block above it, and the page says so."""

import ast
import builtins
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(DOCS.glob("*.md"))
BLOCK = re.compile(r'^```(?:python|py)(?: title="(?P<title>[^"]*)")?\n(?P<source>.*?)^```', re.DOTALL | re.MULTILINE)
SAID = re.compile(r"blocks (of this page )?are one (program|file)")
BUILTINS = {*dir(builtins), "__name__", "__file__"}


def trees(page: Path) -> list[ast.Module]:
    """Parse the blocks of a page. A block with a title is a file of its own, which other tests run."""
    sources = [found["source"] for found in BLOCK.finditer(page.read_text()) if not found["title"]]
    # Page by page, `await` outside a function means one inside a function of the reader's.
    return [compile(source, page, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST) for source in sources]


def used(tree: ast.Module) -> set[str]:
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    return names - BUILTINS


def defined(tree: ast.Module) -> set[str]:
    return {name for node in ast.walk(tree) for name in defined_by(node)}


def defined_by(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
            yield name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.ExceptHandler(name=str(name)):
            yield name
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            yield from ((alias.asname or alias.name).partition(".")[0] for alias in aliases)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_a_block_uses_is_shown_in_it_or_above_it(page: Path) -> None:
    shown: set[str] = set()
    for tree in trees(page):
        shown |= defined(tree)
        assert used(tree) - shown == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_says_whether_its_blocks_continue_each_other(page: Path) -> None:
    continues = any(used(tree) - defined(tree) for tree in trees(page))
    before_the_first_block = " ".join(page.read_text().partition("```python\n")[0].split())
    assert bool(SAID.search(before_the_first_block)) is continues


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_is_run(page: Path) -> None:
    assert "```py\n" not in page.read_text(), "the tests run blocks that begin with ```python"

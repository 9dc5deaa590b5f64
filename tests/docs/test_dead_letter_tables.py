"""Every broker of the documentation that consumes has a dead-letter table, because readers copy it."""

import ast
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```python.*?\n(.*?)^```", re.DOTALL | re.MULTILINE)
EXAMPLE = re.compile(r"^Example:\n((?:    .*\n|\n)+)", re.MULTILINE)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
CODE = sorted((ROOT / "examples").rglob("*.py"))
# A handler is declared on the broker, or comes with a router.
CONSUMES = {"subscriber", "include_router"}


def sources() -> Iterator[tuple[str, str]]:
    """Every page as one program, every example, and the examples in docstrings."""
    for page in PAGES:
        yield page.name, "\n".join(BLOCK.findall(page.read_text()))
    for file in CODE:
        yield str(file.relative_to(ROOT)), file.read_text()
    for file in sorted((ROOT / "faststream_outbox").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.Module):
                for example in EXAMPLE.findall(f"{ast.get_docstring(node)}\n"):
                    yield f"{file.relative_to(ROOT)}:{getattr(node, 'name', '')}", textwrap.dedent(example)


def tree_of(source: str) -> ast.AST:
    tree: ast.AST = compile(source, "source", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    return tree


SOURCES = dict(sources())


def without_a_table(source: str) -> list[str]:
    """The brokers in a program that can consume and have no dead-letter table.

    A broker that only publishes has no engine, and is given no handler.
    """
    nodes = list(ast.walk(tree_of(source)))
    consumers = {ast.unparse(node.value) for node in nodes if isinstance(node, ast.Attribute) and node.attr in CONSUMES}
    names = {
        node.value: ast.unparse(node.targets[0])
        for node in nodes
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
    }
    return [
        ast.unparse(node)
        for node in nodes
        if isinstance(node, ast.Call)
        and makes_a_broker(node)
        and (node.args or names.get(node) in consumers)
        and "dlq_table" not in {keyword.arg for keyword in node.keywords}
    ]


def makes_a_broker(call: ast.Call) -> bool:
    """Return whether this is `OutboxBroker(…)`, or FastAPI's router, which has tables too."""
    tables = {keyword.arg for keyword in call.keywords}
    return ast.unparse(call.func) in {"OutboxBroker", "OutboxRouter"} and "outbox_table" in tables


@pytest.mark.parametrize("name", [name for name, source in SOURCES.items() if "outbox_table=" in source])
def test_a_broker_that_consumes_has_a_dead_letter_table(name: str) -> None:
    assert without_a_table(SOURCES[name]) == []


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("b = OutboxBroker(e, outbox_table=t)\n@b.subscriber('q')\ndef f(): ...", 1),
        ("b = OutboxBroker(e, outbox_table=t, dlq_table=d)\n@b.subscriber('q')\ndef f(): ...", 0),
        ("self.b = OutboxBroker(e, outbox_table=t)\nself.b.include_router(r)", 1),
        ("r = OutboxRouter(e, outbox_table=t)\n@r.subscriber('q')\ndef f(): ...", 1),
        ("r = OutboxRouter('prefix')\n@r.subscriber('q')\ndef f(): ...", 0),
        ("b = OutboxBroker(outbox_table=t)\nawait b.publish(1)", 0),
        ("relay = Relay(OutboxBroker(e, outbox_table=t), to=k, routes={})", 1),
    ],
)
def test_it_is_noticed(source: str, count: int) -> None:
    assert len(without_a_table(source)) == count

"""What docs/stability.md calls public in 1.0 is there, with the parameters that it had."""

import importlib
import inspect
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "stability.md").read_text()
# Written by `python -m tests.test_stability`, for a new minor release. What was public in 1.0 is never taken out.
RECORD = Path(__file__).with_name("public_names.json")
PUBLIC: dict[str, dict[str, list[str] | None]] = json.loads(RECORD.read_text()) if RECORD.exists() else {}
MODULES = (
    "faststream_outbox",
    "faststream_outbox.annotations",
    "faststream_outbox.console",
    "faststream_outbox.django",
    "faststream_outbox.embedded",
    "faststream_outbox.fastapi",
    "faststream_outbox.opentelemetry",
    "faststream_outbox.prometheus",
    "faststream_outbox.relay",
    "faststream_outbox.router",
    "faststream_outbox.schema",
    "faststream_outbox.testing",
)
# Modules that are public in part: what their pages import.
PARTS = tuple(f"faststream_outbox.{name}" for name in ("client", "metrics", "operations", "storage"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def parameters(value: object) -> list[str] | None:
    """Return the names of what a function or a class takes; `None` of what cannot be called or does not say."""
    try:
        return [name for name in inspect.signature(value).parameters if name not in {"self", "args", "kwargs"}]  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None


def members(value: object) -> Iterator[tuple[str, object]]:
    """Return the public methods and attributes that our own code defines for a class; FastStream's may change."""
    if inspect.isclass(value):
        ours = [each for each in value.__mro__ if each.__module__.startswith("faststream_outbox")]
        for name in sorted({name for each in ours for name in vars(each) if not name.startswith("_")}):
            yield name, inspect.getattr_static(value, name)


def public_names(module: str) -> dict[str, list[str] | None]:
    """Return all that a module exports, with what it takes: `OutboxBroker`, `OutboxBroker.publish`, …"""
    found: dict[str, list[str] | None] = {}
    exporting = importlib.import_module(module)
    for name in exporting.__all__:
        value = getattr(exporting, name)
        found[name] = parameters(value)
        for member, what in members(value):
            found[f"{name}.{member}"] = parameters(what) if inspect.isfunction(what) else None
    return found


def resolve(module: str, name: str) -> object:
    first, _, member = name.partition(".")
    value = getattr(importlib.import_module(module), first)
    return inspect.getattr_static(value, member) if member else value


def test_there_is_something_to_compare() -> None:
    assert PUBLIC.keys() == set(MODULES)
    assert PUBLIC["faststream_outbox"]["OutboxBroker.publish"] is not None
    assert "session" in PUBLIC["faststream_outbox"]["OutboxBroker.publish"]


@pytest.mark.parametrize("module", PUBLIC)
def test_what_was_public_is_still_there(module: str) -> None:
    now = public_names(module)
    assert sorted(PUBLIC[module].keys() - now.keys()) == []
    lost = {
        name: sorted(set(taken) - set(parameters(resolve(module, name)) or ()))
        for name, taken in PUBLIC[module].items()
        if taken
    }
    assert {name: gone for name, gone in lost.items() if gone} == {}


@pytest.mark.parametrize("module", MODULES)
def test_the_page_names_every_public_module(module: str) -> None:
    assert f"`{module}`" in PAGE or f"`{module.removeprefix('faststream_outbox')}`" in PAGE


def test_the_documentation_imports_nothing_else() -> None:
    text = "\n".join(page.read_text() for page in PAGES)
    imported = set(re.findall(r"^\s*from (faststream_outbox\S*) import", text, re.MULTILINE))
    assert {name for name in imported if name not in MODULES and not name.startswith(PARTS)} == set()


if __name__ == "__main__":
    # One line for each name, so that a change is a line of a diff.
    written = {module: public_names(module) for module in MODULES}
    parts = (
        f"{json.dumps(module)}: {{\n"
        + ",\n".join(f"  {json.dumps(name)}: {json.dumps(taken)}" for name, taken in names.items())
        + "\n}"
        for module, names in written.items()
    )
    sys.stdout.write("{\n" + ",\n".join(parts) + "\n}\n")

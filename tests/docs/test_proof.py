"""Every test and every broken variant that docs/proof.md names exists, and no variant is left out."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.exactly_once import test_broken as exactly_once
from tests.order import variants as order
from tests.relay.faults import variants as relay
from tests.soak import test_soak
from tests.soak_report.proof import PROOF, SOAK, renewed, summary

TESTS = Path(__file__).parents[1]
PAGE = PROOF.read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith("| promise")
]
NAME = re.compile(r"`([\w/]+\.py)::(\w+)`")


@cache
def names_in(file: str) -> set[str]:
    tree = ast.parse((TESTS / file).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}


def test_there_are_promises_of_every_kind() -> None:
    assert len(ROWS) >= 40
    assert len(re.findall(r"^## ", PAGE, re.MULTILINE)) >= 8


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0][:60])
def test_what_a_promise_names_exists(row: list[str]) -> None:
    _, tests, broken = row
    held_by = NAME.findall(tests)
    assert held_by, "a promise without a test is none"
    assert [name for _, name in held_by if not name.startswith("test_")] == []
    named = [*held_by, *NAME.findall(broken)]
    assert [f"{file}::{name}" for file, name in named if name not in names_in(file)] == []
    # Nothing else is in these cells, such as a name without its file.
    assert NAME.sub("", tests + broken).replace("<br>", "").strip() == ""


def test_every_test_that_the_readme_names_for_a_promise_is_here() -> None:
    readme = (TESTS.parent / "README.md").read_text()
    named = re.findall(r'\]\(tests/([\w/]+\.py) "(\w+)"\)', readme)
    assert len(named) >= 10
    assert set(named) - {name for row in ROWS for name in NAME.findall(row[1])} == set()


def test_every_broken_variant_is_named_and_run() -> None:
    named = {(Path(file).parts[0], name) for row in ROWS for file, name in NAME.findall(row[2])}
    run = {
        *(("soak", variant.name) for variant in test_soak.VARIANTS),
        *(("order", variant.name) for variant in [*order.OURS, *order.STRANGERS]),
        # Those of the store are named once, where the order of handlers is promised.
        *(("relay", variant.name) for variant in relay.BROKEN if "broken" in variant.changes),
        *(("exactly_once", name) for name in exactly_once.VARIANTS),
        ("upgrade", "test_a_relay_that_takes_keys_of_the_other_version_is_found"),
        ("upgrade", "test_a_version_that_takes_keys_of_the_other_is_found"),
    }
    assert named == run


def test_the_last_soak_is_that_of_its_page() -> None:
    assert renewed(PAGE, SOAK.read_text()) == PAGE, "python -m tests.soak_report.proof writes it"


def test_the_totals_of_a_soak_are_added_up() -> None:
    page = """`make soak-report ARGS="--seed 7"` wrote this page, on the commit abc of 2026-01-01: 1.5 hours, 4 rounds.

| what | minutes | seeds | messages | processes killed | paused | connections cut | Postgres crashes | broker outages | violations |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
| rows without a key | 60.0 | 7 | 1,200 | 4 | 3 | 68 | 1 | 0 | **0** |
| relay to kafka | 30.0 | 7 | 300 | 1 | 2 | 3 | 1 | 2 | **1** |
| relay to nats | not run: no server |  |  |  |  |  |  |  |  |

```sh
make soak-report ARGS="--seed 7"
make soak ARGS="--relay kafka"
```
"""  # noqa: E501 - a table
    total, _, recipe = summary(page).partition("\n\n")
    assert total.startswith(
        "On the commit abc of 2026-01-01: **1.5 hours** of 2 soaks, 1,500 messages, 5 processes killed, "
        "5 processes paused, 71 connections cut, 2 crashes of Postgres, 2 outages of brokers: **1 violations**."
    )
    assert recipe == '```sh\nmake soak-report ARGS="--seed 7"\nmake soak ARGS="--relay kafka"\n```\n'
    with pytest.raises(ValueError, match="no page"):
        summary("# Another page")

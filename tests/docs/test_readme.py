"""The README: its example runs as printed, its promises name tests that are there, its pictures and versions fit."""

import re
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.ext.asyncio import async_sessionmaker

from benchmarks.peers.contestants import ORIGINAL, PGQUEUER, PROCRASTINATE
from faststream_outbox.embedded import Database
from tests.waiting import until

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "README.md").read_text()
SECTIONS = {part.partition("\n")[0]: part for part in PAGE.split("\n## ")[1:]}
PROMISES = re.findall(r"^- .*$", SECTIONS["What it promises"], re.MULTILINE)
# [fencing](tests/storage/contract/test_settle.py "test_a_lost_lease_settles_nothing")
TESTS = re.compile(r'\[[^\]]+\]\((tests/[\w/]+\.py) "(test_\w+)"\)')
[EXAMPLE] = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("promise", PROMISES)
def test_a_promise_names_a_test_that_is_there(promise: str) -> None:
    named = TESTS.findall(promise)
    assert named
    assert len(named) == promise.count("](tests/")
    for file, test in named:
        assert re.search(rf"^(async )?def {test}\(", (ROOT / file).read_text(), re.MULTILINE), f"{file}: {test}"


def test_there_are_promises() -> None:
    assert len(PROMISES) >= 10


def test_the_example_has_15_lines() -> None:
    assert "## In 15 lines" in PAGE
    assert len([line for line in EXAMPLE.splitlines() if line]) == 15


async def test_the_example_runs(outbox_postgres: Database) -> None:
    url = outbox_postgres.url("asyncpg")
    program: dict[str, Any] = {}
    exec(compile(EXAMPLE.replace("postgresql+asyncpg://localhost/app", url), "service.py", "exec"), program)  # noqa: S102 - our own page
    engine, broker = program["engine"], program["broker"]
    async with engine.begin() as connection:
        await connection.run_sync(program["metadata"].create_all)
    async with async_sessionmaker(engine)() as session:
        async with session.begin():
            await program["place_order"](session, 7, "Ada")
        await program["place_order"](session, 8, "Ada")
        await session.rollback()

    async def states() -> list[tuple[int, str]]:
        async with engine.connect() as connection:
            return [(row.id, row.state) for row in await connection.execute(select(program["orders"]))]

    assert await states() == [(7, "placed")]
    await broker.start()
    await until(states, lambda found: found == [(7, "packed")])
    await broker.stop()
    await engine.dispose()


def test_pictures_are_there() -> None:
    pictures = re.findall(r'<img src="([^"]+)" width="\d+" alt="[^"]+">', PAGE)
    assert len(pictures) == PAGE.count("<img") == 3
    assert [picture for picture in pictures if not (ROOT / picture).is_file()] == []


def test_the_versions_that_it_compares_with_are_those_of_the_benchmarks() -> None:
    for page in (SECTIONS["Which one to take"], (ROOT / "docs" / "comparison.md").read_text()):
        named = re.findall(r"\b(original|PgQueuer|Procrastinate)(?: `faststream-outbox`)? (\d+\.\d+\.\d+)", page)
        assert dict(named) == {
            "original": ORIGINAL.version,
            "PgQueuer": PGQUEUER.version,
            "Procrastinate": PROCRASTINATE.version,
        }


def test_it_is_short() -> None:
    words = re.sub(r"\((?:tests|docs)/[^)]*\)|<img[^>]*>", "", PAGE).split()
    assert len(words) < 1300


def test_it_warns_of_the_other_package_before_it_installs() -> None:
    install = SECTIONS["Install"]
    assert "> [!WARNING]" in install.partition("```sh")[0]
    assert "`pip install faststream-outbox` installs [another package]" in install

from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace

import asyncpg
import pytest

from benchmarks.__main__ import COUNTING
from benchmarks.measure import Meter
from benchmarks.peers.child import Child
from benchmarks.peers.contestants import (
    ALL,
    BARE_LOOP,
    FASTSTREAM,
    INSTALL,
    ORIGINAL,
    ORIGINAL_BEST,
    OURS,
    OURS_DEFAULTS,
    ROOT,
    SESSION,
    Contestant,
    Entry,
)
from benchmarks.peers.latency import percentile
from benchmarks.peers.stage import Stage
from benchmarks.peers.turns import Load, drain
from benchmarks.scenario import Bench
from faststream_outbox.embedded import Database, EmbeddedPostgres


class OnPurposeError(Exception):
    pass


QUEUES = [contestant for contestant in ALL if contestant not in (FASTSTREAM, SESSION)]


@pytest.fixture
async def stage(bench: Bench) -> AsyncIterator[Stage]:
    async with Stage(bench) as stage:
        yield stage


def need(contestant: Contestant) -> None:
    if not contestant.installed:
        pytest.skip(f"{contestant.name} is not installed: {INSTALL}")


@pytest.mark.parametrize("contestant", QUEUES, ids=lambda contestant: contestant.name)
async def test_every_contestant_settles_what_it_was_given(stage: Stage, contestant: Contestant) -> None:
    need(contestant)
    turn = await drain(stage, Entry(contestant), Load(60, 60))
    assert turn.rate > 0
    assert turn.python_us > 0
    assert turn.connections >= 1
    left = await stage.bench.control.fetchval(f"SELECT count(*) FROM {contestant.table} WHERE {contestant.unsettled}")
    assert left == 0


@pytest.mark.parametrize("contestant", [each for each in QUEUES if each.name != "bare asyncpg"], ids=lambda c: c.name)
async def test_every_message_is_tried_as_often_as_it_fails_and_once_more(stage: Stage, contestant: Contestant) -> None:
    need(contestant)
    entry = Entry(contestant)
    child = await stage.child(entry)
    await child.ask("create")
    await child.ask("fill", count=5)
    await child.ask("start", expected=5, failures=2, retry_after=0.01, watched=True)
    await child.ask("wait")
    times = (await child.ask("times"))["times"]
    assert {number: len(seen) for number, seen in times.items()} == {str(number): 3 for number in range(5)}
    await child.ask("stop")


@pytest.mark.parametrize("contestant", QUEUES, ids=lambda contestant: contestant.name)
async def test_a_message_is_published_before_its_commit_and_handled_after(stage: Stage, contestant: Contestant) -> None:
    need(contestant)
    worker, publisher = await stage.child(Entry(contestant), 0), await stage.child(Entry(contestant), 1)
    await worker.ask("create")
    await worker.ask("start", expected=1, watched=True)
    await publisher.ask("open", clients=1)
    told = await publisher.ask("commit", number=7)
    await worker.ask("wait")
    (came,) = (await worker.ask("times"))["times"]["7"]
    assert told["began"] < told["at"] < came
    await publisher.ask("close")
    await worker.ask("stop")


async def test_both_outboxes_are_told_apart(stage: Stage) -> None:
    need(ORIGINAL)
    ours, original = [(await stage.child(entry)).hello["origin"] for entry in (OURS_DEFAULTS, ORIGINAL_BEST)]
    assert ours.startswith(str(ROOT / "faststream_outbox"))
    assert ORIGINAL.venv in original


async def test_another_version_than_the_one_that_was_meant_is_refused(outbox_postgres: Database) -> None:
    need(ORIGINAL)
    child = Child(replace(ORIGINAL, version="0.18.0"), outbox_postgres.dsn, uvloop=False)
    with pytest.raises(AssertionError, match=r"original is 0\.19\.0 here, not 0\.18\.0"):
        await child.start()
    await child.end()


async def test_a_contestant_that_fails_is_told_with_its_traceback(stage: Stage) -> None:
    child = await stage.child(OURS_DEFAULTS)
    with pytest.raises(RuntimeError, match=r"ours failed to commit(.|\n)*AssertionError"):
        await child.ask("commit", number=1)
    assert (await child.ask("rest"))["cpu"] > 0


async def test_a_program_serves_the_next_scenario_too_unless_one_failed(bench: Bench) -> None:
    async with Stage(bench) as stage:
        first = await stage.child(BARE_LOOP)
    with suppress(OnPurposeError):
        async with Stage(bench) as stage:
            assert await stage.child(BARE_LOOP) is first
            raise OnPurposeError
    async with Stage(bench) as stage:
        another = await stage.child(BARE_LOOP)
    assert another is not first
    assert (await another.ask("rest"))["cpu"] > 0


async def test_who_is_not_installed_is_left_out_and_named(stage: Stage) -> None:
    absent = Entry(replace(ORIGINAL, name="nobody", venv="peer-nobody"))
    there, note = await stage.present(OURS_DEFAULTS, BARE_LOOP, absent)
    assert there == [OURS_DEFAULTS, BARE_LOOP]
    assert "nobody" in note
    assert INSTALL in note


def test_ours_needs_no_environment_of_its_own() -> None:
    assert replace(OURS, venv="peer-nobody").installed


def test_a_percentile_is_one_of_the_values() -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert [percentile(values, rank) for rank in (50, 95, 99)] == [51, 96, 100]
    assert percentile([3.0], 99) == 3


async def test_statements_are_counted_by_a_server_that_can(bench: Bench) -> None:
    assert await bench.meter.sent() is None, "that of the tests cannot"
    with EmbeddedPostgres(fast=True, settings=COUNTING) as server:
        control, other = [await asyncpg.connect(server.database.dsn) for _ in range(2)]
        meter = Meter(control)
        before = await meter.sent()
        async with other.transaction():
            await other.execute("SELECT 1")
        await control.execute("SELECT 1")
        after = await meter.sent()
        assert before is not None
        assert after == before + 3, "BEGIN and COMMIT are counted, what we ask ourselves is not"
        await control.close()
        await other.close()

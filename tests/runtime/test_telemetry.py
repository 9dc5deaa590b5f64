"""What a subscriber says of the rows that pass through it: each fact once, and only after it is one."""

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from faststream_outbox.runtime.telemetry import Monitor, describe
from faststream_outbox.storage import Ack, Dead, OutboxRow, Outcome, Retry
from tests.backends import Backend, MemoryBackend, everywhere
from tests.engine.pipelines import Reports, fill, running
from tests.waiting import until, until_empty

CLOSING = {"acked", "nacked_retried", "nacked_terminal", "lease_lost", "dispatch_abandoned"}


def assert_closed(reports: Reports) -> None:
    """Every dispatch has its end, and nothing that was not dispatched has a duration."""
    closings = [name for name, tags in reports.metrics if "duration_seconds" in tags]
    assert set(closings) <= CLOSING
    assert len(closings) == len(reports.counted("dispatched"))


async def test_the_facts_of_three_fates(backend: Backend) -> None:
    reports = Reports()

    async def handle(row: OutboxRow) -> Outcome:
        if row.payload == b"0":
            return Dead("rejected", error=ValueError("no"))
        if row.payload == b"1" and row.attempts_count == 0:
            return Retry(0.01, 1, error=KeyError("later"))
        return Ack()

    await fill(backend, 3)
    async with running(backend, handle, reports=reports):
        await until_empty(backend)
    assert_closed(reports)
    assert [tags["size_bytes"] for tags in reports.counted("dispatched")] == [1] * 4
    assert [tags["deliveries_count"] for tags in reports.counted("acked")] == [1, 2]
    [retried] = reports.counted("nacked_retried")
    assert retried.pop("duration_seconds") >= 0
    expected: dict[str, Any] = {"queue": "q", "deliveries_count": 1}
    assert retried == {**expected, "next_delay_seconds": 0.01, "exception_type": "KeyError"}
    [dead] = reports.counted("nacked_terminal")
    assert dead.pop("duration_seconds") >= 0
    assert dead == {**expected, "reason": "rejected", "exception_type": "ValueError"}
    [kept] = reports.counted("dlq_written")
    assert kept == {**expected, "failure_reason": "rejected", "exception_type": "ValueError"}
    assert sum(tags["count"] for tags in reports.counted("fetched")) == 4
    [scheduled] = reports.named("retry_scheduled")
    assert (scheduled["level"], scheduled["delay"], scheduled["attempts"]) == (logging.INFO, 0.01, 1)
    [lettered] = reports.named("dead_lettered")
    assert (lettered["level"], lettered["reason"], lettered["kept"]) == (logging.ERROR, "rejected", True)


async def test_without_a_dead_letter_table_the_row_is_said_to_be_gone() -> None:
    backend, reports = MemoryBackend(keep_dead=False), Reports()

    async def handle(_row: OutboxRow) -> Outcome:
        return Dead("rejected")

    await fill(backend, 1)
    async with running(backend, handle, reports=reports):
        await until_empty(backend)
    assert reports.counted("dlq_written") == []
    [lettered] = reports.named("dead_lettered")
    assert not lettered["kept"]
    assert "gone" in lettered["message"]


async def test_what_was_claimed_is_counted_by_queue_and_nothing_is_counted_too() -> None:
    backend, reports = MemoryBackend(), Reports()
    await fill(backend, 2, "a")
    await fill(backend, 3, "b")

    async def handle(_row: OutboxRow) -> Outcome:
        return Ack()

    async with running(backend, handle, "a", "b", reports=reports):
        await until_empty(backend)
        await until(lambda: {"queue": "a", "count": 0} in reports.counted("fetched"))
    found = [(tags["queue"], tags["count"]) for tags in reports.counted("fetched") if tags["count"]]
    assert sorted(found) == [("a", 2), ("b", 3)]
    assert ("b", 0) not in [(tags["queue"], tags["count"]) for tags in reports.counted("fetched")]


async def test_a_row_over_max_deliveries_has_no_duration() -> None:
    backend, reports = MemoryBackend(), Reports()
    await fill(backend, 1)
    await backend.claim("q", lease_seconds=1)
    await backend.pass_time(2)

    async def handle(_row: OutboxRow) -> Outcome:
        raise AssertionError("not to be run")

    async with running(backend, handle, reports=reports, max_deliveries=1):
        await until_empty(backend)
    [dead] = reports.counted("nacked_terminal")
    assert dead == {"queue": "q", "deliveries_count": 2, "reason": "max_deliveries"}
    assert reports.counted("dispatched") == []


@pytest.mark.parametrize("outcome", [Ack(), Retry(0, 1), Dead("rejected")], ids=lambda o: type(o).__name__)
async def test_a_lost_lease_is_told_instead_of_the_outcome(backend: Backend, outcome: Outcome) -> None:
    reports = Reports()

    async def handle(_row: OutboxRow) -> Outcome:
        await backend.pass_time(500)
        async with backend.store.connect() as lane:
            assert (await lane.claim_suspect(everywhere("q"), lease_seconds=60)).rows
        return outcome

    # Long intervals: its own claimer is not to be the thief.
    async with running(
        backend, handle, reports=reports, min_fetch_interval=30, max_fetch_interval=30, lease_ttl_seconds=300
    ) as pipeline:
        async with asyncio.timeout(60):
            await until(
                lambda: len(reports.counted("fetched")) >= 2
            )  # it has looked for suspects, and does not again for long
            await fill(backend, 1)
            pipeline.wake()
            await until(lambda: reports.counted("lease_lost"))
    assert_closed(reports)
    assert {name for name, _ in reports.metrics} == {"fetched", "dispatched", "lease_lost"}
    [lost] = reports.named("lease_lost")
    phase = "retry" if isinstance(outcome, Retry) else "terminal"
    assert (lost["phase"], lost["deliveries_count"], lost["queue"]) == (phase, 1, "q")
    assert reports.counted("lease_lost")[0]["phase"] == phase


async def test_a_handler_that_is_stopped_has_its_end(backend: Backend) -> None:
    reports, started = Reports(), asyncio.Event()
    await fill(backend, 3)

    async def handle(_row: OutboxRow) -> Outcome:
        started.set()
        await asyncio.Event().wait()
        return Ack()

    async with running(backend, handle, reports=reports) as pipeline:
        await started.wait()
        await pipeline.stop(0.05)
    assert_closed(reports)
    [retried] = reports.counted("nacked_retried")
    assert (retried["exception_type"], retried["next_delay_seconds"]) == ("CancelledError", 0.0)
    assert reports.counted("drain_timeout") == [{"queue": "q", "drain_timeout_seconds": 0.05}]
    assert reports.named("drain_timeout")[0]["graceful_timeout"] == 0.05


class Broken:
    """A logger and a recorder that fail."""

    def __init__(self, error: type[BaseException]) -> None:
        self._error = error

    def log(self, level: int, msg: Any, /, *, exc_info: Any = None, extra: Mapping[str, Any] | None = None) -> None:
        raise self._error(level, msg, exc_info, extra)

    def __call__(self, event: str, tags: Mapping[str, Any]) -> None:
        raise self._error(event, tags)


class PanicError(BaseException):
    """What an extension that is written in Rust raises when it panics: no `Exception`."""


@pytest.mark.parametrize("error", [OSError, PanicError, asyncio.CancelledError])
async def test_a_logger_and_a_recorder_that_fail_break_nothing(
    backend: Backend, caplog: pytest.LogCaptureFixture, error: type[BaseException]
) -> None:
    await fill(backend, 10)

    async def handle(row: OutboxRow) -> Outcome:
        return Dead("rejected") if row.attempts_count else Retry(0, 1)

    broken = Broken(error)
    async with running(backend, handle, reports=Monitor(get_logger=lambda: broken, recorder=broken)) as pipeline:
        await until_empty(backend)
        assert pipeline.alive
    # The library's own logger has what the broken one refused, and the broken recorder is reported once.
    events = Counter(vars(record).get("event") for record in caplog.records if record.name == "faststream_outbox")
    assert (events["dead_lettered"], events["metrics_failed"]) == (10, 1)


async def test_an_error_that_cannot_be_named_ends_no_loop(backend: Backend) -> None:
    class NamelessError(Exception):
        def __repr__(self) -> str:
            raise ValueError

        __str__ = __repr__

    await fill(backend, 1)
    reports, failed = Reports(), False

    async def handle(_row: OutboxRow) -> Outcome:
        nonlocal failed
        if not failed:
            failed = True
            raise NamelessError
        return Ack()

    async with running(backend, handle, reports=reports) as pipeline:
        await until(lambda: reports.named("retry_scheduled"))
        await backend.pass_time(1)
        await until_empty(backend)
        assert pipeline.alive
    assert "NamelessError" in reports.named("dispatch_failed")[0]["message"]
    assert "NamelessError" in describe(NamelessError())

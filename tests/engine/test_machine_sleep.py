"""A machine that sleeps: its monotonic clock stands still, and the leases of its rows run out."""

import asyncio
import time

import pytest

from faststream_outbox.storage import Ack, NewRow, OutboxRow, Outcome, clock
from tests.backends import Backend
from tests.engine.pipelines import Reports, running
from tests.waiting import until


class SleepingClocks:
    """The clocks of a machine that has slept for `slept` seconds: only CLOCK_BOOTTIME has gone on."""

    slept = 0.0

    def clock_gettime(self, which: int) -> float:
        return time.clock_gettime(which) + (self.slept if which == time.CLOCK_BOOTTIME else 0.0)


@pytest.mark.parametrize("key", [None, "k"])
async def test_no_row_is_started_after_its_lease_ran_out_in_a_sleep(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    clocks = SleepingClocks()
    monkeypatch.setattr(clock, "time", clocks)
    await backend.insert(NewRow("q", b"0", key=key), NewRow("q", b"1", key=key))
    started, reports = list[bytes](), Reports()
    running_one, free = asyncio.Event(), asyncio.Event()

    async def handle(row: OutboxRow) -> Outcome:
        started.append(row.payload)
        running_one.set()
        await free.wait()
        return Ack()

    async with running(backend, handle, reports=reports, lease_ttl_seconds=60.0) as pipeline:
        await running_one.wait()
        pipeline._claimer.pause()  # as if another process claimed what is free again
        clocks.slept = 120.0
        free.set()
        await until(lambda: not len(pipeline._ledger))
        assert started == [b"0"]

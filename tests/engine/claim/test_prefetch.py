"""How far ahead rows are claimed, and that slow handlers leave rows to others."""

import asyncio
from collections import Counter

import pytest

from faststream_outbox.engine.claim.prefetch import MOST_BYTES, CallerDemand, Prefetch
from faststream_outbox.engine.ledger import Ledger
from faststream_outbox.storage import Ack, OutboxRow, Outcome
from tests.backends import MemoryBackend, PostgresBackend
from tests.engine.pipelines import Reports, fill, running
from tests.waiting import until, until_empty


@pytest.mark.parametrize(
    ("options", "observed", "capacity", "refill_at"),
    [
        pytest.param({"max_workers": 4, "most": 200}, [], 200, 102, id="at first handlers are believed to be fast"),
        pytest.param({"max_workers": 1, "most": 500}, [], 201, 101, id="but no more than 200 rows are claimed ahead"),
        pytest.param({"max_workers": 500, "most": 1000}, [], 1000, 750, id="or than can run at once"),
        pytest.param({"max_workers": 4, "most": 200}, [1e-4] * 100, 200, 102, id="fast handlers get a batch ahead"),
        pytest.param({"max_workers": 1, "most": 500}, [1e-4], 500, 250, id="as large as the options allow"),
        pytest.param({"max_workers": 1, "most": 500}, [0.0], 500, 250, id="handlers that take no time too"),
        pytest.param({"max_workers": 4, "most": 200}, [0.1], 24, 14, id="others get half a second of work ahead"),
        pytest.param({"max_workers": 4, "most": 200}, [10.0], 4, 3, id="slow ones get a row when a worker is free"),
        pytest.param({"max_workers": 1, "most": 200}, [60.0], 1, 0, id="a single slow one when it is free"),
        pytest.param(
            {"max_workers": 1, "most": 200}, [60.0] + [1e-3] * 60, 200, 100, id="a slow row is soon forgotten"
        ),
        pytest.param(
            {"max_workers": 2, "most": 100, "max_records": 10},
            [10.0],
            20,
            19,
            id="slow batches get a row for each place",
        ),
    ],
)
def test_how_many_rows_are_held(options: dict[str, int], observed: list[float], capacity: int, refill_at: int) -> None:
    prefetch = Prefetch(**options)
    for seconds in observed:
        prefetch.observe(seconds)
    assert (prefetch.capacity, prefetch.refill_at) == (capacity, refill_at)


@pytest.mark.parametrize(
    ("rows", "answers", "wants"),
    [
        pytest.param(MOST_BYTES, 0, False, id="rows"),
        pytest.param(0, MOST_BYTES, False, id="answers that are not written yet"),
        pytest.param(MOST_BYTES // 2, MOST_BYTES // 2, False, id="both together"),
        pytest.param(MOST_BYTES // 2, MOST_BYTES // 2 - 1, True, id="a byte less"),
    ],
)
def test_no_rows_are_wanted_while_those_in_hand_have_many_bytes(rows: int, answers: int, wants: bool) -> None:
    ledger = Ledger()
    ledger.bytes, ledger.output_bytes = rows, answers
    assert bool(Prefetch(max_workers=1, most=200).rows_wanted(ledger)) is wants


@pytest.mark.parametrize(
    ("max_records", "observed", "run_length"),
    [
        pytest.param(1, [0.01], 10, id="a run of one key takes a tenth of a second"),
        pytest.param(1, [60.0], 1, id="a slow handler gets one row of a key"),
        pytest.param(50, [60.0], 50, id="a batch handler gets a whole call"),
        pytest.param(50, [0.001], 100, id="a fast batch handler gets more than a call"),
    ],
)
def test_how_many_rows_of_a_key_are_claimed_together(max_records: int, observed: list[float], run_length: int) -> None:
    prefetch = Prefetch(max_workers=4, most=200, max_records=max_records)
    for seconds in observed:
        prefetch.observe(seconds)
    assert prefetch.run_length == run_length


async def test_rows_behind_a_slow_one_are_left_to_others(postgres: PostgresBackend) -> None:
    await fill(postgres, 30)
    slow, release = asyncio.Event(), asyncio.Event()
    ran: Counter[str] = Counter()

    async def hold_up(_row: OutboxRow) -> Outcome:
        slow.set()
        await release.wait()
        ran["slow"] += 1
        return Ack()

    async def handle(row: OutboxRow) -> Outcome:
        assert row.deliveries_count == 1, "giving back uncounts the delivery"
        ran["other"] += 1
        return Ack()

    reports = Reports()
    async with running(postgres, hold_up, reports=reports):
        await slow.wait()
        assert await postgres.one("SELECT count(*) FROM outbox WHERE acquired_token IS NULL") == 0
        async with running(postgres, handle):
            await until(lambda: ran["other"] >= 29)
        release.set()
        await until_empty(postgres)
    assert ran == {"slow": 1, "other": 29}
    assert reports.named("lease_lost") == []


@pytest.mark.parametrize(
    ("callers", "rows", "wanted"),
    [
        pytest.param(0, 0, 0, id="no caller, no claim"),
        pytest.param(3, 0, 3, id="a row for each caller"),
        pytest.param(3, 2, 1, id="rows that wait for callers count"),
        pytest.param(1, 2, 0, id="rows of callers that left are too many"),
    ],
)
async def test_callers_want_a_row_each(callers: int, rows: int, wanted: int) -> None:
    backend, ledger, demand = MemoryBackend(), Ledger(), CallerDemand()
    await fill(backend, rows)
    ledger.add((await backend.claim("q", limit=rows)).rows if rows else [], 0.0)
    ledger.admit_added()
    demand.callers = callers
    assert demand.rows_wanted(ledger) == wanted

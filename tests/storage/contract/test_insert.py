import math
from datetime import UTC, datetime, timedelta, timezone

import pytest

from faststream_outbox.storage import NewRow
from tests.backends import Backend

CIRCULAR: dict[str, object] = {}
CIRCULAR["self"] = CIRCULAR


async def test_a_row_is_stored_as_it_was_given(backend: Backend) -> None:
    before = datetime.now(UTC)
    headers = {"content-type": "text/plain", "näme": "wért ✓", "n": 1, "none": None, "list": [1.5, True]}

    [row_id] = await backend.insert(NewRow("orders", b"\x00\xff raw", headers, key="customer-1", timer_id="t-1"))

    [row] = await backend.rows()
    assert row.id == row_id
    assert (row.queue, row.payload, row.headers) == ("orders", b"\x00\xff raw", headers)
    assert (row.entity_key, row.timer_id) == ("customer-1", "t-1")
    assert (row.attempts_count, row.deliveries_count) == (0, 0)
    assert (row.acquired_token, row.acquired_at, row.first_attempt_at, row.last_attempt_at) == (None,) * 4
    assert abs(row.created_at - before) < timedelta(minutes=1)
    assert row.next_attempt_at == row.created_at


async def test_no_headers_and_no_payload_are_fine(backend: Backend) -> None:
    await backend.insert(NewRow("q", b""), NewRow("q", b"x", {}))
    first, second = await backend.rows()
    assert (first.payload, first.headers) == (b"", None)
    assert second.headers == {}


async def test_ids_rise(backend: Backend) -> None:
    ids = await backend.insert(*(NewRow("q", b"%d" % n) for n in range(5)))
    assert ids == sorted(ids)
    assert [row.payload for row in await backend.rows()] == [b"0", b"1", b"2", b"3", b"4"]


async def test_activate_in_counts_from_the_stores_now(backend: Backend) -> None:
    await backend.insert(NewRow("q", b"", activate_in=timedelta(minutes=5)))
    [row] = await backend.rows()
    assert row.next_attempt_at - row.created_at == timedelta(minutes=5)


@pytest.mark.parametrize(
    "at",
    [
        datetime(2040, 2, 29, 12, 30, 15, 123456, tzinfo=UTC),
        datetime(1999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        datetime(2030, 6, 1, 9, tzinfo=UTC).astimezone(tz=None),
        datetime(2030, 6, 1, 9, tzinfo=timezone(timedelta(hours=14))),
    ],
)
async def test_activate_at_is_kept_to_the_microsecond(backend: Backend, at: datetime) -> None:
    await backend.insert(NewRow("q", b"", activate_at=at))
    [row] = await backend.rows()
    assert row.next_attempt_at == at


async def test_many_rows_get_their_ids_in_the_order_given(backend: Backend) -> None:
    rows = [NewRow(f"q{n % 3}", b"%d" % n, {"n": n}, key=f"k{n % 7}" if n % 2 else None) for n in range(500)]
    async with backend.transaction() as session:
        ids = await backend.store.insert_many(session, rows)
    stored = {row.id: row for row in await backend.rows()}
    assert ids == sorted(set(ids))
    assert [stored[row_id].payload for row_id in ids] == [row.payload for row in rows]
    assert [stored[row_id].queue for row_id in ids] == [row.queue for row in rows]
    assert [stored[row_id].entity_key for row_id in ids] == [row.key for row in rows]
    assert [stored[row_id].headers for row_id in ids] == [{"n": n} for n in range(500)]


async def test_many_rows_keep_their_schedules(backend: Backend) -> None:
    at = datetime(2040, 1, 1, tzinfo=UTC)
    rows = [NewRow("q", b""), NewRow("q", b"", activate_in=timedelta(seconds=90)), NewRow("q", b"", activate_at=at)]
    async with backend.transaction() as session:
        await backend.store.insert_many(session, rows)
    now, later, absolute = await backend.rows()
    assert now.next_attempt_at == now.created_at
    assert later.next_attempt_at - now.created_at == pytest.approx(timedelta(seconds=90), abs=timedelta(seconds=1))
    assert absolute.next_attempt_at == at


async def test_rows_that_are_alike_get_their_ids_in_the_order_given(backend: Backend) -> None:
    at = datetime(2040, 1, 1, tzinfo=UTC)
    first = NewRow("q", b"0", {"n": 1}, activate_at=at)
    async with backend.transaction() as session:
        ids = await backend.store.insert_many(session, [first, *(first.beside(b"%d" % n) for n in range(1, 500))])
        later = NewRow("q", b"", activate_in=timedelta(seconds=90))
        [last, _] = await backend.store.insert_many(session, [later, later.beside(b"")])
    stored = {row.id: row for row in await backend.rows()}
    assert ids == sorted(set(ids))
    assert [stored[row_id].payload for row_id in ids] == [b"%d" % n for n in range(500)]
    shared = [(row.queue, row.entity_key, row.headers, row.next_attempt_at) for row in map(stored.__getitem__, ids)]
    assert shared == [("q", None, {"n": 1}, at)] * 500
    waits = stored[last].next_attempt_at - stored[last].created_at
    assert waits == pytest.approx(timedelta(seconds=90), abs=timedelta(seconds=1))
    assert stored[last].headers is None


@pytest.mark.parametrize(
    "other",
    [
        NewRow("other", b"", {"n": 1}),
        NewRow("q", b"", {"n": 2}),
        NewRow("q", b""),
        NewRow("q", b"", {"n": 1}, key="k"),
        NewRow("q", b"", {"n": 1}, activate_in=timedelta(hours=1)),
        NewRow("q", b"", {"n": 1}, activate_at=datetime(2040, 1, 1, tzinfo=UTC)),
    ],
    ids=["queue", "headers", "no headers", "key", "delay", "instant"],
)
@pytest.mark.parametrize("other_first", [False, True], ids=["last", "first"])
async def test_one_row_among_many_may_be_different(backend: Backend, other: NewRow, *, other_first: bool) -> None:
    usual = NewRow("q", b"", {"n": 1})
    rows = [other, usual] if other_first else [usual, other]
    async with backend.transaction() as session:
        await backend.store.insert_many(session, rows)
    stored = await backend.rows()
    assert [(row.queue, row.entity_key, row.headers_json) for row in stored] == [
        (row.queue, row.key, row.headers_json) for row in rows
    ]
    assert [row.next_attempt_at > row.created_at for row in stored] == [
        row.delay_seconds is not None or row.due_epoch is not None for row in rows
    ]


def test_a_row_beside_another_is_checked_where_it_differs() -> None:
    row = NewRow("q", b"1", {"n": 1}, activate_in=timedelta(seconds=5))
    assert row.beside(b"2", "k") == NewRow("q", b"2", {"n": 1}, key="k", activate_in=timedelta(seconds=5))
    with pytest.raises(ValueError, match="key is empty"):
        row.beside(b"", "")
    with pytest.raises(TypeError, match="bytes"):
        row.beside("text")  # type: ignore[arg-type]


async def test_no_rows_are_no_work(backend: Backend) -> None:
    async with backend.transaction() as session:
        assert await backend.store.insert_many(session, []) == []


async def test_what_is_no_row_is_refused(backend: Backend) -> None:
    async with backend.transaction() as session:
        with pytest.raises(TypeError, match="NewRow"):
            await backend.store.insert(session, {"queue": "q"})  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="NewRow"):
            await backend.store.insert_many(session, [b"x"])  # type: ignore[list-item]
        assert len(await backend.store.insert_many(session, (NewRow("q", b"") for _ in range(2)))) == 2


async def test_a_batch_takes_no_timers(backend: Backend) -> None:
    async with backend.transaction() as session:
        with pytest.raises(ValueError, match="one by one"):
            await backend.store.insert_many(session, [NewRow("q", b"", timer_id="t")])


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"queue": ""}, ValueError, "queue is empty"),
        ({"queue": None}, TypeError, "queue is a str"),
        ({"queue": "x" * 256}, ValueError, "256 characters"),
        ({"queue": "a\x00b"}, ValueError, "NUL"),
        ({"queue": "a\ud800"}, ValueError, "surrogate"),
        ({"payload": "text"}, TypeError, "bytes"),
        ({"payload": None}, TypeError, "bytes"),
        ({"key": ""}, ValueError, "key is empty"),
        ({"key": 7}, TypeError, "key is a str"),
        ({"timer_id": "t" * 256}, ValueError, "256 characters"),
        ({"timer_id": True}, TypeError, "timer_id is a str"),
        ({"headers": {"a": "b\x00"}}, ValueError, "NUL"),
        ({"headers": {"a\x00": "b"}}, ValueError, "NUL"),
        ({"headers": {"a": ["\udfff"]}}, ValueError, "surrogate"),
        ({"headers": {"a": math.nan}}, ValueError, "JSON"),
        ({"headers": {"a": math.inf}}, ValueError, "JSON"),
        ({"headers": {"a": object()}}, ValueError, "JSON"),
        ({"headers": {1: "b"}}, TypeError, "name is a str"),
        ({"headers": ["a"]}, TypeError, "mapping"),
        ({"headers": CIRCULAR}, ValueError, "hold themselves"),
        ({"activate_in": 5}, TypeError, "timedelta"),
        ({"activate_in": timedelta(seconds=-1)}, ValueError, "between 0 and"),
        ({"activate_in": timedelta.max}, ValueError, "between 0 and"),
        ({"activate_at": 5}, TypeError, "datetime"),
        ({"activate_at": datetime(2030, 1, 1)}, ValueError, "time zone"),  # noqa: DTZ001 - naive on purpose
        ({"activate_at": datetime.min.replace(tzinfo=UTC)}, ValueError, "no instant"),
        ({"activate_at": datetime.max.replace(tzinfo=UTC)}, ValueError, "no instant"),
        (
            {"activate_in": timedelta(0), "activate_at": datetime(2030, 1, 1, tzinfo=UTC)},
            ValueError,
            "not both",
        ),
    ],
)
def test_what_postgres_would_refuse_is_refused_before(
    arguments: dict[str, object], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        NewRow(**{"queue": "q", "payload": b"", **arguments})  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize("text", ["\\u0000", "\x01\x1f\x7f", "\U0001f600", "x" * 100_000])
async def test_odd_but_storable_text_is_stored(backend: Backend, text: str) -> None:
    await backend.insert(NewRow(text[:255], text.encode(), {"h": text}, key=text[:255], timer_id=text[:255]))
    [row] = await backend.rows()
    assert (row.queue, row.payload, row.headers) == (text[:255], text.encode(), {"h": text})
    assert row.entity_key == row.timer_id == text[:255]


async def test_the_longest_names_fit_together(backend: Backend) -> None:
    widest = "\U0001f600" * 255
    [row_id] = await backend.insert(NewRow(widest, b"", key=widest, timer_id=widest))
    assert [row.id for row in await backend.rows()] == [row_id]


async def test_reading_is_by_queue_and_bounded(backend: Backend) -> None:
    ids = await backend.insert(*(NewRow("ab"[n % 2], b"") for n in range(6)))
    async with backend.transaction() as session:
        assert [row.id for row in await backend.store.read(session, queue="a")] == ids[::2]
        assert [row.id for row in await backend.store.read(session, limit=2)] == ids[:2]
        assert await backend.store.read(session, queue="nowhere") == []
        with pytest.raises(ValueError, match="limit"):
            await backend.store.read(session, limit=0)

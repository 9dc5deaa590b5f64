"""Pages of messages: filters, order, cursors, searches, on both stores."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

import pytest

from faststream_outbox.operations import Message, MessageFilter, OutboxOperations
from faststream_outbox.storage import Dead, NewRow, Park, Retry, Settlement
from faststream_outbox.storage.operating.filters import MessageState
from tests.backends import Backend, PostgresBackend
from tests.storage.contract.test_runs import begun as seen
from tests.storage.contract.test_runs import claim, settle

HOUR = timedelta(hours=1)


def operations_of(backend: Backend) -> OutboxOperations:
    return OutboxOperations.on_store(backend.store)


async def all_of(backend: Backend, where: MessageFilter | None = None, *, limit: int = 2) -> list[Message]:
    """Read page after page, as few as possible in each."""
    operations, found, after = operations_of(backend), list[Message](), None
    while True:
        page = await operations.messages(where, after=after, limit=limit)
        assert len(page.items) <= limit
        assert page.complete
        found.extend(page.items)
        after = page.after
        if after is None:
            return found


async def fill(backend: Backend) -> dict[str, int]:
    """Insert one message of every sort; return the ids by their bodies."""
    rows = [
        NewRow("b", b"keyed 1", key="k"),
        NewRow("a", b"ready", {"correlation_id": "c-1", "tenant": "t", "n": 1}),
        NewRow("a", b"delayed", activate_in=HOUR),
        NewRow("a", b"flying"),
        NewRow("b", b"keyed 2", {"correlation_id": "c-1"}, key="k"),
        NewRow("a", b"keyed 3", key="k"),
        NewRow("b", b"timer", timer_id="t-1", activate_in=HOUR),
        NewRow("a", b"retrying"),
    ]
    ids = dict(zip((row.payload.decode() for row in rows), await backend.insert(*rows), strict=True))
    claimed = {row.payload: row for row in (await backend.claim("a")).rows}
    async with backend.store.connect() as lane:
        await lane.settle([Settlement(claimed[b"retrying"].lease, Retry(7200.0, 1))])
        await lane.release([claimed[b"ready"]])
    return ids


async def bodies(backend: Backend, where: MessageFilter | None = None) -> list[str | None]:
    return [message.body.text for message in await all_of(backend, where)]


async def test_all_messages_come_by_id(backend: Backend) -> None:
    ids = await fill(backend)
    assert [message.id for message in await all_of(backend)] == sorted(ids.values())


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (MessageFilter(queue="a"), ["ready", "flying", "delayed", "retrying", "keyed 3"]),
        (MessageFilter(queue="b"), ["timer", "keyed 1", "keyed 2"]),
        (MessageFilter(queue="c"), []),
        (MessageFilter(key="k"), ["keyed 3", "keyed 1", "keyed 2"]),
        (MessageFilter(queue="b", key="k"), ["keyed 1", "keyed 2"]),
        (MessageFilter(queue="b", key="other"), []),
        (MessageFilter(state="ready"), ["ready", "keyed 3", "keyed 1", "keyed 2"]),
        (MessageFilter(state="in_flight"), ["flying"]),
        (MessageFilter(queue="a", state="delayed"), ["delayed"]),
        (MessageFilter(state="delayed"), ["delayed", "timer"]),
        (MessageFilter(state="retrying"), ["retrying"]),
        (MessageFilter(state="parked"), []),
        (MessageFilter(correlation_id="c-1"), ["ready", "keyed 2"]),
        (MessageFilter(queue="b", correlation_id="c-1"), ["keyed 2"]),
        (MessageFilter(header=("tenant", "t")), ["ready"]),
        (MessageFilter(header=("n", "1")), ["ready"]),
        (MessageFilter(header=("n", "2")), []),
        (MessageFilter(timer_id="t-1"), ["timer"]),
        (MessageFilter(queue="b", timer_id="t-1"), ["timer"]),
        (MessageFilter(queue="a", timer_id="t-1"), []),
        (MessageFilter(node="unknown"), ["flying"]),
        (MessageFilter(node="01234567-89ab"), []),
        (MessageFilter(published_before=datetime(2000, 1, 1, tzinfo=UTC)), []),
        (MessageFilter(queue="a", key="k", published_after=datetime(2000, 1, 1, tzinfo=UTC)), ["keyed 3"]),
    ],
    ids=lambda value: ",".join(dict(value)) if isinstance(value, MessageFilter) else None,
)
async def test_a_filter_finds_what_has_all_that_it_names(
    backend: Backend, where: MessageFilter, expected: list[str]
) -> None:
    await fill(backend)
    assert await bodies(backend, where) == expected


async def test_an_expired_message_is_found_by_its_state(backend: Backend) -> None:
    await backend.insert(NewRow("q", b"1"))
    await backend.claim("q", lease_seconds=5)
    await backend.pass_time(10)
    [message] = await all_of(backend, MessageFilter(state="expired"))
    assert (message.body.text, message.state) == ("1", "expired")


HEADS = ("delayed", "expired", "in_flight", "parked", "ready", "retrying")


async def fill_keys(backend: Backend) -> dict[str, int]:
    """Insert keys whose heads are in every state, with a message behind each; return the ids by their bodies."""
    heads = [NewRow("q", f"{key} 1".encode(), key=key) for key in ("expired", "parked", "retrying")]
    ids = await backend.insert(*heads)
    runs = {run.key: run for run in (await claim(backend, cursor=seen())).runs}
    await settle(backend, runs["parked"], Park(Dead("rejected", "ValueError: no such order")))
    await settle(backend, runs["retrying"], Retry(7200.0, 2, failure="TimeoutError: too slow"))
    await backend.pass_time(100)
    more = [NewRow("q", b"in_flight 1", key="in_flight"), NewRow("q", b"ready 1", key="ready")]
    more.append(NewRow("q", b"delayed 1", key="delayed", activate_in=HOUR))
    ids += await backend.insert(*more)
    await claim(backend, keys=1, cursor=seen())
    behind = [NewRow("q", f"{key} 2".encode(), key=key) for key in HEADS]
    behind += [NewRow("q", b"later", key="parked", activate_in=HOUR), NewRow("q", b"no key")]
    ids += await backend.insert(*behind)
    return dict(zip((row.payload.decode() for row in (*heads, *more, *behind)), ids, strict=True))


async def test_a_message_behind_one_that_waits_is_blocked_by_it(backend: Backend) -> None:
    ids = await fill_keys(backend)
    found = {message.body.text: message for message in await all_of(backend)}
    assert {name: message.state for name, message in found.items()} == {
        **{f"{state} 1": state for state in HEADS},
        **{f"{state} 2": "blocked" for state in HEADS},
        "ready 2": "ready",
        "later": "delayed",
        "no key": "ready",
    }
    blocked = {f"{state} 2": ids[f"{state} 1"] for state in HEADS if state != "ready"}
    assert {name: message.blocked_by for name, message in found.items() if message.blocked_by is not None} == {
        **blocked,
        "later": ids["parked 1"],
    }


async def test_messages_are_found_by_the_states_that_are_shown(backend: Backend) -> None:
    await fill_keys(backend)
    shown = await all_of(backend)
    for state in get_args(MessageState):
        expected = sorted(message.id for message in shown if message.state == state)
        for where in (MessageFilter(state=state), MessageFilter(queue="q", state=state)):
            assert sorted(message.id for message in await all_of(backend, where)) == expected
            selection = await operations_of(backend).select(where)
            assert selection.count.number == len(expected)
            assert {message.state for message in selection.sample} <= {state}  # type: ignore[union-attr]  # messages
    [queue] = await operations_of(backend).queues()
    assert queue.ready.number == sum(message.state == "ready" for message in shown)


async def test_a_blocked_message_says_what_is_in_front_of_it_and_why(backend: Backend) -> None:
    ids = await fill_keys(backend)
    messages = {state: await operations_of(backend).message(ids[f"{state} 2"]) for state in HEADS}
    assert {state: message and message.blocked_because for state, message in messages.items()} == {
        "delayed": "delayed: not due yet",
        "expired": "expired: its lease ran out: the process that handled it died or hangs",
        "in_flight": "in flight: being handled",
        "parked": "parked: rejected: ValueError: no such order",
        "ready": None,
        "retrying": "retrying: failed 2 times: TimeoutError: too slow",
    }


async def test_blocked_messages_can_be_discarded_and_their_heads_stay(backend: Backend) -> None:
    ids = await fill_keys(backend)
    where = MessageFilter(queue="q", state="blocked")
    done = await operations_of(backend).discard(await operations_of(backend).select(where), reason="a test")
    # What is behind a message that is being handled is left alone.
    assert (done.done, [message.id for message in await all_of(backend, where)]) == (4, [ids["in_flight 2"]])
    assert {f"{state} 1" for state in HEADS} <= {message.body.text for message in await all_of(backend)}


async def test_timers_come_by_queue_and_name(backend: Backend) -> None:
    timers = [("b", "2"), ("a", "1"), ("b", "1")]
    await backend.insert(NewRow("a", b""), *(NewRow(queue, b"", timer_id=name) for queue, name in timers))
    operations = operations_of(backend)
    first = await operations.timers(limit=2)
    assert [(timer.queue, timer.timer_id) for timer in first.items] == [("a", "1"), ("b", "1")]
    rest = await operations.timers(after=first.after)
    assert [(timer.queue, timer.timer_id) for timer in rest.items] == [("b", "2")]
    assert rest.after is None
    of_one_queue = await operations.timers(MessageFilter(queue="b"))
    assert [timer.timer_id for timer in of_one_queue.items] == ["1", "2"]


async def test_messages_due_at_the_same_time_are_not_lost_between_pages(backend: Backend) -> None:
    at = datetime(2286, 11, 20, 17, 46, 39, 999_999, tzinfo=UTC)
    async with backend.transaction() as session:
        ids = await backend.store.insert_many(
            session, [NewRow("q", b"", activate_at=at - timedelta(days=250 * 365)) for _ in range(5)]
        )
    assert [message.id for message in await all_of(backend, MessageFilter(queue="q"))] == ids


@pytest.mark.parametrize("after", ["x", "", "W10", "WyJhIl0", "é"])
async def test_a_cursor_that_is_none_is_refused(backend: Backend, after: str) -> None:
    with pytest.raises(ValueError, match="after is not of a page of this list"):
        await operations_of(backend).messages(after=after)


async def test_a_cursor_of_another_filter_is_refused(backend: Backend) -> None:
    await backend.insert(NewRow("q", b""), NewRow("q", b""))
    page = await operations_of(backend).messages(MessageFilter(queue="q"), limit=1)
    assert page.after is not None
    with pytest.raises(ValueError, match="Give the same filter"):
        await operations_of(backend).messages(MessageFilter(queue="r"), after=page.after)
    with pytest.raises(TypeError, match="after is the"):
        await operations_of(backend).messages(after=7)  # type: ignore[arg-type]  # what is refused
    with pytest.raises(ValueError, match="limit"):
        await operations_of(backend).messages(limit=0)


async def test_a_correlation_id_is_found_in_both_tables(backend: Backend) -> None:
    await backend.insert(*(NewRow("q", name, {"correlation_id": "c"}) for name in (b"1", b"2", b"3")))
    [row] = (await backend.claim("q", limit=1)).rows
    async with backend.store.connect() as lane:
        await lane.settle([Settlement(row.lease, Dead("rejected"))])
    found = await operations_of(backend).find(correlation_id="c")
    assert [message.body.text for message in found.messages] == ["2", "3"]
    assert [letter.body.text for letter in found.dead_letters] == ["1"]
    assert found.complete
    few = await operations_of(backend).find(correlation_id="c", limit=1)
    assert (len(few.messages), len(few.dead_letters), few.complete) == (1, 1, False)
    assert (await operations_of(backend).find(correlation_id="d")).messages == []


async def test_a_correlation_id_must_be_given(backend: Backend) -> None:
    nothing: Any = None
    with pytest.raises((TypeError, ValueError), match="correlation_id"):
        await OutboxOperations.on_store(backend.store).find(correlation_id=nothing)


async def test_a_read_takes_part_in_the_callers_transaction(backend: Backend) -> None:
    async with backend.transaction() as session:
        await backend.store.insert(session, NewRow("q", b"1"))
        page = await operations_of(backend).messages(MessageFilter(queue="q"), session=session)
    assert [message.body.text for message in page.items] == ["1"]


async def test_a_tail_shows_what_comes_after_it_began(backend: Backend) -> None:
    await backend.insert(NewRow("q", b"old"))
    tail = operations_of(backend).tail("q", interval=0.01)
    waiting = asyncio.ensure_future(anext(tail))
    await begun(waiting)
    await backend.insert(NewRow("r", b"another queue"), NewRow("q", b"new"))
    async with asyncio.timeout(30):
        assert (await waiting).body.text == "new"
    waiting = asyncio.ensure_future(anext(tail))
    await backend.insert(NewRow("q", b"newer"))
    async with asyncio.timeout(30):
        assert (await waiting).body.text == "newer"
    await close(tail)


async def test_a_tail_shows_what_commits_late(postgres: PostgresBackend) -> None:
    operations = operations_of(postgres)
    async with postgres.sessions() as late, late.begin():
        await postgres.store.insert(late, NewRow("q", b"late"))
        tail = operations.tail(interval=0.01)
        waiting = asyncio.ensure_future(anext(tail))
        await begun(waiting)
        await postgres.insert(NewRow("q", b"early"))
        async with asyncio.timeout(30):
            assert (await waiting).body.text == "early"
    async with asyncio.timeout(30):
        assert (await anext(tail)).body.text == "late"
    await close(tail)


async def begun(waiting: "asyncio.Future[Message]") -> None:
    """Wait until a tail has had time to look once."""
    await asyncio.wait([waiting], timeout=1.0)
    assert not waiting.done()


async def close(tail: AsyncIterator[Message]) -> None:
    closable: Any = tail
    await closable.aclose()


async def test_a_search_stops_after_so_many_rows_and_goes_on(postgres: PostgresBackend) -> None:
    await postgres.fill(25_000, payload_bytes=1)
    [row_id] = await postgres.insert(NewRow("q", b"", {"correlation_id": "c"}))
    operations, after, pages = operations_of(postgres), None, 0
    while True:
        page = await operations.messages(MessageFilter(correlation_id="c"), after=after)
        pages += 1
        if page.items:
            break
        assert not page.complete
        after = page.after
        assert after is not None
    assert [message.id for message in page.items] == [row_id]
    assert pages == 3
    found = await operations.find(correlation_id="c")
    assert [message.id for message in found.messages] == [row_id]
    assert not found.complete


async def test_our_own_reads_cannot_write(postgres: PostgresBackend) -> None:
    operations = operations_of(postgres)
    await postgres.run("CREATE SEQUENCE writes")

    def write(session: Any) -> None:
        session.exec_driver_sql("SELECT nextval('writes')")

    with pytest.raises(Exception, match="read-only transaction"):
        await operations._read(None, write)  # what all reads go through

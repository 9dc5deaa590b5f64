"""What waits in each queue, and in each key, on both stores."""

from dataclasses import replace
from datetime import timedelta

import pytest

from faststream_outbox.operations import Count, OutboxOperations
from faststream_outbox.storage import Dead, NewRow, Park, Retry, Settlement
from tests.backends import Backend, PostgresBackend
from tests.storage.contract.test_runs import begun, claim, settle

HOUR = timedelta(hours=1)


async def test_each_queue_is_counted_by_state(backend: Backend) -> None:
    await backend.insert(*(NewRow("a", b"") for _ in range(5)), NewRow("b", b"dies"))
    await backend.pass_time(50)
    first, second, *_ = (await backend.claim("a", limit=3)).rows
    [dying] = (await backend.claim("b")).rows
    async with backend.store.connect() as lane:
        await lane.settle([Settlement(first.lease, Retry(3600.0, 1)), Settlement(dying.lease, Dead("rejected"))])
        await lane.release([second])
    await backend.insert(NewRow("a", b"", activate_in=HOUR))
    a, b = await OutboxOperations.on_store(backend.store).queues()
    assert (a.queue, a.ready, a.in_flight, a.scheduled, a.retrying) == ("a", Count(3), Count(1), Count(2), Count(1))
    assert a.oldest_claimable_age == pytest.approx(50, abs=30)
    assert (a.dead, a.blocked_keys, a.paused) == (Count(0), Count(0), None)
    assert (b.queue, b.ready, b.dead, b.oldest_claimable_age) == ("b", Count(0), Count(1), None)


async def test_the_oldest_message_may_be_one_whose_lease_ran_out(backend: Backend) -> None:
    await backend.insert(NewRow("q", b"expires"), NewRow("q", b"", key="expires"))
    await backend.claim("q")
    await claim(backend, cursor=begun())
    [q] = await OutboxOperations.on_store(backend.store).queues()
    assert (q.in_flight, q.oldest_claimable_age) == (Count(2), None)
    await backend.pass_time(100)
    await backend.insert(NewRow("q", b"ready"))
    [q] = await OutboxOperations.on_store(backend.store).queues()
    assert (q.ready, q.in_flight, q.expired) == (Count(1), Count(0), Count(2))
    assert q.oldest_claimable_age == pytest.approx(100, abs=30)


async def fill_keys(backend: Backend) -> None:
    """Make key `p` parked, `r` retrying, `o` ready; two messages each."""
    await backend.insert(*(NewRow("q", name.encode(), key=name) for name in "pproro"))
    runs = {run.key: run for run in (await claim(backend, cursor=begun())).runs}
    await settle(backend, runs["p"], Park(Dead("rejected", "ValueError: no")))
    await settle(backend, runs["r"], Retry(3600.0, 1))
    async with backend.store.connect() as lane:
        await lane.release([runs["o"].rows[0]])


async def test_blocked_keys_are_counted(backend: Backend) -> None:
    await fill_keys(backend)
    [queue] = await OutboxOperations.on_store(backend.store).queues()
    assert (queue.blocked_keys, queue.parked_keys, queue.ready) == (Count(2), Count(1), Count(2))
    assert (queue.blocked, queue.retrying) == (Count(3), Count(1))


async def test_one_queue_is_counted_as_it_is_among_all(backend: Backend) -> None:
    await fill_keys(backend)
    await backend.insert(NewRow("a", b"dies"), NewRow("p", b""), NewRow("r", b"", activate_in=HOUR))
    [dying] = (await backend.claim("a")).rows
    async with backend.store.connect() as lane:
        await lane.settle([Settlement(dying.lease, Dead("rejected"))])
    operations = OutboxOperations.on_store(backend.store)
    async with operations.reading() as session:  # in which the time stands still
        every = await operations.queues(session=session)
        assert [each.queue for each in every] == ["a", "p", "q", "r"]
        for each in every:
            found = await operations.queue(each.queue, session=session)
            assert found is not None
            assert replace(found, oldest_claimable_age=None) == replace(each, oldest_claimable_age=None)
            assert found.oldest_claimable_age == pytest.approx(each.oldest_claimable_age, abs=30)
        for name in ("", "b", "Q", "z"):
            assert await operations.queue(name, session=session) is None


async def test_keys_come_in_pages(backend: Backend) -> None:
    await fill_keys(backend)
    operations = OutboxOperations.on_store(backend.store)
    first = await operations.keys(limit=1)
    assert [(key.key, key.state, key.waiting) for key in first.items] == [("p", "parked", 1)]
    second = await operations.keys(limit=1, after=first.after)
    assert [(key.key, key.state) for key in second.items] == [("r", "retrying")]
    if second.after is not None:  # Postgres looks no further than it is asked to
        last = await operations.keys(limit=1, after=second.after)
        assert (last.items, last.after, last.complete) == ([], None, True)
    assert [key.key for key in (await operations.keys("retrying", queue="q")).items] == ["r"]
    assert (await operations.keys(queue="other")).items == []
    with pytest.raises(ValueError, match="state is one of"):
        await operations.keys("ready")  # type: ignore[arg-type]  # what is refused
    with pytest.raises(ValueError, match="after is not of a page"):
        await operations.keys(after=first.after, queue="q")


async def test_a_key_is_shown_with_what_waits_behind_it(backend: Backend) -> None:
    await fill_keys(backend)
    operations = OutboxOperations.on_store(backend.store)
    parked = await operations.key("q", "p")
    assert parked is not None
    assert (parked.state, parked.waiting, len(parked.messages)) == ("parked", Count(1), 2)
    assert parked.blocked is not None
    assert parked.blocked.cause == "rejected: ValueError: no"
    assert parked.messages[0].last_failure == "rejected: ValueError: no"
    ready = await operations.key("q", "o", limit=1)
    assert ready is not None
    assert (ready.state, ready.blocked, ready.waiting, len(ready.messages)) == ("ready", None, Count(1), 1)
    assert await operations.key("q", "other") is None


async def test_counts_stop_at_ten_thousand(postgres: PostgresBackend) -> None:
    await postgres.fill(10_001, queue="due", payload_bytes=1, due="now() - make_interval(secs => n)")
    await postgres.fill(10_001, queue="later", payload_bytes=1, due="now() + interval '1 hour'")
    await postgres.fill(10_000, queue="exact", payload_bytes=1)
    await postgres.run(
        "INSERT INTO outbox (queue, entity_key, payload, next_attempt_at) SELECT 'keyed', "
        "CASE WHEN n <= 10001 THEN 'a' ELSE 'k' || n END, '', CASE WHEN n > 10001 THEN 'infinity' ELSE now() END "
        "FROM generate_series(1, 10003) AS n"
    )
    due, exact, keyed, later = await OutboxOperations.on_store(postgres.store).queues()
    assert (str(due.ready), str(due.scheduled), str(later.scheduled)) == ("10,000+", "0", "10,000+")
    assert due.oldest_claimable_age == pytest.approx(10_001, abs=60)
    assert str(exact.ready) == "10,000"
    assert (str(keyed.ready), str(keyed.blocked_keys), str(keyed.parked_keys)) == ("10,000+", "2", "2")


async def test_the_oldest_message_of_a_key_that_comes_late_in_the_index_is_seen(postgres: PostgresBackend) -> None:
    await postgres.run(
        "INSERT INTO outbox (queue, entity_key, payload, next_attempt_at) SELECT 'q', "
        "CASE WHEN n = 1 THEN 'z' ELSE 'a' || n END, '', now() - CASE WHEN n = 1 THEN interval '7000 s' ELSE '0 s' END "
        "FROM generate_series(1, 10100) AS n"
    )
    operations = OutboxOperations.on_store(postgres.store)
    for queue in (*await operations.queues(), await operations.queue("q")):
        assert queue is not None
        assert queue.oldest_claimable_age == pytest.approx(7000, abs=60)


async def test_a_page_of_keys_visits_so_many_and_goes_on(postgres: PostgresBackend) -> None:
    await postgres.run(
        "INSERT INTO outbox (queue, entity_key, payload, next_attempt_at) SELECT 'q', lpad(n::text, 5, '0'), '', "
        "CASE WHEN n = 4500 THEN 'infinity' ELSE now() END FROM generate_series(1, 4500) AS n"
    )
    operations, after, pages = OutboxOperations.on_store(postgres.store), None, 0
    while True:
        page = await operations.keys(after=after)
        pages += 1
        if page.after is None:
            break
        assert not page.complete
        after = page.after
    assert [key.key for key in page.items] == ["04500"]
    assert pages == 3
    async with postgres.transaction() as session:
        [key] = await postgres.store.read_keys(session)
    assert key.key == "04500"


async def test_what_waits_behind_a_key_is_counted_up_to_a_thousand(postgres: PostgresBackend) -> None:
    await postgres.run(
        "INSERT INTO outbox (queue, entity_key, payload, next_attempt_at) SELECT 'q', 'k', '', 'infinity' "
        "FROM generate_series(1, 1002) AS n"
    )
    [key] = (await OutboxOperations.on_store(postgres.store).keys()).items
    assert (key.waiting, key.waiting_capped) == (1_000, True)
    detail = await OutboxOperations.on_store(postgres.store).key("q", "k")
    assert detail is not None
    assert detail.waiting == Count(1_001)

"""Pages and groups of dead letters, on both stores."""

from datetime import UTC, datetime, timedelta

import pytest

from faststream_outbox.operations import Count, DeadLetter, DeadLetterFilter, OutboxOperations
from faststream_outbox.storage import Dead, FailureReason, NewRow, Settlement
from tests.backends import Backend, PostgresBackend

TRACE = "app.errors.PaymentError: no money\n\nTraceback (most recent call last):\n  …"


async def bury(backend: Backend, row: NewRow, reason: FailureReason, text: str | None = None) -> None:
    await backend.insert(row)
    [claimed] = (await backend.claim(row.queue)).rows
    async with backend.store.connect() as lane:
        await lane.settle([Settlement(claimed.lease, Dead(reason, text))])


async def fill(backend: Backend) -> None:
    await bury(backend, NewRow("a", b"1", {"correlation_id": "c-1"}), "retry_terminal", "ValueError: no")
    await bury(backend, NewRow("a", b"2"), "retry_terminal", TRACE)
    await bury(backend, NewRow("b", b"3", {"correlation_id": "c-1"}), "max_deliveries")
    await bury(backend, NewRow("a", b"4"), "retry_terminal", "ValueError: never")
    await bury(backend, NewRow("a", b"5"), "rejected", "seen by Ada")


async def all_of(backend: Backend, where: DeadLetterFilter | None = None) -> list[DeadLetter]:
    operations, found, after = OutboxOperations.on_store(backend.store), list[DeadLetter](), None
    while True:
        page = await operations.dead_letters(where, after=after, limit=2)
        assert len(page.items) <= 2
        found.extend(page.items)
        after = page.after
        if after is None:
            return found


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (None, "54321"),
        (DeadLetterFilter(queue="a"), "5421"),
        (DeadLetterFilter(queue="c"), ""),
        (DeadLetterFilter(reason="max_deliveries"), "3"),
        (DeadLetterFilter(queue="a", reason="retry_terminal"), "421"),
        (DeadLetterFilter(exception_type="ValueError"), "41"),
        (DeadLetterFilter(exception_type="PaymentError"), "2"),
        (DeadLetterFilter(exception_type="app.errors.PaymentError"), "2"),
        (DeadLetterFilter(exception_type="errors"), ""),
        (DeadLetterFilter(correlation_id="c-1"), "31"),
        (DeadLetterFilter(queue="a", correlation_id="c-1"), "1"),
        (DeadLetterFilter(key="k"), ""),
        (DeadLetterFilter(failed_before=datetime(2000, 1, 1, tzinfo=UTC)), ""),
        (DeadLetterFilter(queue="a", failed_after=datetime(2000, 1, 1, tzinfo=UTC)), "5421"),
        (DeadLetterFilter(queue="a", failed_after=datetime.now(UTC) + timedelta(days=1)), ""),
    ],
    ids=lambda value: ",".join(dict(value)) if isinstance(value, DeadLetterFilter) else None,
)
async def test_a_filter_finds_what_has_all_that_it_names_the_newest_first(
    backend: Backend, where: DeadLetterFilter | None, expected: str
) -> None:
    await fill(backend)
    assert [letter.body.text for letter in await all_of(backend, where)] == list(expected)


async def test_letters_that_failed_together_are_not_lost_between_pages(backend: Backend) -> None:
    await backend.insert(*(NewRow("a", b"") for _ in range(7)))
    rows = (await backend.claim("a")).rows
    async with backend.store.connect() as lane:
        await lane.settle([Settlement(row.lease, Dead("rejected")) for row in rows])
    found = [letter.id for letter in await all_of(backend, DeadLetterFilter(queue="a"))]
    assert found == sorted(found, reverse=True)
    assert len(set(found)) == 7


async def test_letters_are_grouped_by_queue_reason_and_type(backend: Backend) -> None:
    await fill(backend)
    groups = await OutboxOperations.on_store(backend.store).dead_letter_groups()
    assert [(g.queue, g.reason, g.exception_type, g.count) for g in groups] == [
        ("a", "retry_terminal", "ValueError", Count(2)),
        ("a", "rejected", None, Count(1)),
        ("a", "retry_terminal", "app.errors.PaymentError", Count(1)),
        ("b", "max_deliveries", None, Count(1)),
    ]
    newest = await OutboxOperations.on_store(backend.store).dead_letter(groups[0].example_id)
    assert newest is not None
    assert (newest.body.text, newest.exception_type) == ("4", "ValueError")
    assert groups[0].first_failed_at < groups[0].last_failed_at == newest.failed_at


async def test_the_largest_group_comes_first_whatever_its_queue_is_called(backend: Backend) -> None:
    for queue in ("a", "b", "b", "c", "c", "c"):
        await bury(backend, NewRow(queue, b"1"), "rejected")
    groups = await OutboxOperations.on_store(backend.store).dead_letter_groups()
    assert [(group.queue, group.count.number) for group in groups] == [("c", 3), ("b", 2), ("a", 1)]


async def test_without_a_table_there_are_no_dead_letters(postgres: PostgresBackend) -> None:
    other = PostgresBackend(postgres.engine, table_name="bare", keep_dead=False)
    await other.create()
    operations = OutboxOperations.on_store(other.store)
    assert await operations.dead_letter(1) is None
    assert (await operations.dead_letters()).items == []
    assert await operations.dead_letter_groups() == []
    assert (await operations.find(correlation_id="c")).dead_letters == []


async def test_groups_of_many_letters_are_capped(postgres: PostgresBackend) -> None:
    await postgres.run(
        "INSERT INTO outbox_dlq (original_id, queue, payload, created_at, failed_at, failure_reason, last_exception) "
        "SELECT n, 'q', '', now(), now() - make_interval(secs => n), 'rejected', 'KeyError: ' || n "
        "FROM generate_series(1, 10001) AS n"
    )
    [group] = await OutboxOperations.on_store(postgres.store).dead_letter_groups()
    assert (group.exception_type, str(group.count)) == ("KeyError", "10,000+")
    assert group.last_failed_at - group.first_failed_at == timedelta(seconds=9_999)


async def test_a_correlation_id_is_found_without_its_index(postgres: PostgresBackend) -> None:
    await fill(postgres)
    await postgres.run("DROP INDEX outbox_dlq_correlation_idx")
    letters = await all_of(postgres, DeadLetterFilter(correlation_id="c-1"))
    assert [letter.body.text for letter in letters] == ["3", "1"]

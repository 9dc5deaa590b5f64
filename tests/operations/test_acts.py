"""The runner of acts: slices, progress, cancellation, the caller's transaction, and the audit."""

import asyncio
import logging

import pytest

from faststream_outbox.operations import (
    AuditFilter,
    Count,
    DeadLetterFilter,
    MessageFilter,
    OperationsTableError,
    OutboxOperations,
    Progress,
)
from faststream_outbox.operations import acts as runner
from faststream_outbox.operations.base import current_user
from faststream_outbox.storage import NewRow
from tests.backends import Backend, PostgresBackend
from tests.operations.letters import bury, operations_of


def _rows(count: int, queue: str = "orders") -> list[NewRow]:
    return [NewRow(queue, b"%d" % n) for n in range(count)]


async def test_an_act_runs_in_slices_and_tells_its_progress(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "SLICE", 2)
    await bury(backend, *_rows(5))
    operations, seen = await operations_of(backend), list[Progress]()
    selection = await operations.select(DeadLetterFilter(queue="orders"))
    result = await operations.purge(selection, reason="old", by="ann", progress=seen.append)
    assert (result.action, result.done, result.skipped) == ("purge", 5, {})
    assert [(each.done, each.total) for each in seen] == [(2, Count(5)), (4, Count(5)), (5, Count(5))]
    assert await backend.dead_letters() == []
    [entry] = (await operations.audit()).items
    assert (entry.id, entry.by, entry.action, entry.reason, entry.count) == (result.audit_id, "ann", "purge", "old", 5)
    assert entry.target["where"] == {"queue": "orders"}


async def test_rows_that_come_later_are_not_caught(backend: Backend) -> None:
    await bury(backend, *_rows(2))
    operations = await operations_of(backend)
    selection = await operations.select(DeadLetterFilter(queue="orders"))
    await bury(backend, *_rows(3))
    assert (await operations.purge(selection, reason="old")).done == 2
    assert len(await backend.dead_letters()) == 3
    again = await operations.purge(selection, reason="old")
    assert (again.done, again.audit_id) == (0, None)


async def test_ids_that_are_gone_are_named(backend: Backend) -> None:
    await bury(backend, *_rows(1))
    operations = await operations_of(backend)
    result = await operations.purge([1, 99], reason="old")
    assert (result.done, list(result.skipped)) == (1, [99])
    assert "gone" in result.skipped[99]
    assert (await operations.purge(1, reason="old")).done == 0


async def test_an_act_that_changed_nothing_is_not_in_the_audit(backend: Backend) -> None:
    operations = await operations_of(backend)
    assert (await operations.purge([7], reason="old")).audit_id is None
    assert (await operations.audit()).items == []


async def test_a_cancelled_act_leaves_whole_slices_and_the_rest_for_the_next(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "SLICE", 2)
    await bury(backend, *_rows(5))
    operations = await operations_of(backend)
    selection = await operations.select(DeadLetterFilter())

    def stop(progress: Progress) -> None:
        if progress.done == 4:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await operations.purge(selection, reason="old", progress=stop)
    assert len(await backend.dead_letters()) == 1
    assert (await operations.purge(selection, reason="again")).done == 1
    assert [entry.count for entry in (await operations.audit()).items] == [1, 4]


async def test_an_act_in_the_callers_transaction_is_undone_with_it(postgres: PostgresBackend) -> None:
    await bury(postgres, *_rows(3))
    operations = await operations_of(postgres)
    selection = await operations.select(DeadLetterFilter())
    async with postgres.sessions() as session:
        result = await operations.purge(selection, reason="old", session=session)
        assert (result.done, result.audit_id) == (3, 1)
        await session.rollback()
    assert len(await postgres.dead_letters()) == 3
    assert (await operations.audit()).items == []


async def test_a_row_that_another_operator_deletes_at_this_moment_is_left_to_them(postgres: PostgresBackend) -> None:
    await bury(postgres, *_rows(3))
    operations = await operations_of(postgres)
    async with postgres.sessions() as session:
        assert (await operations.purge([2], reason="first", session=session)).done == 1
        result = await operations.purge([1, 2, 3], reason="second")
        assert (result.done, list(result.skipped)) == (2, [2])
        assert "another transaction" in result.skipped[2]
        await session.commit()


async def test_an_act_on_rows_that_match_no_longer_leaves_them(backend: Backend) -> None:
    await bury(backend, *_rows(1))
    operations = await operations_of(backend)
    acted = await operations._call(None, backend.store.acts.purge, [1], DeadLetterFilter(queue="other"))
    assert (acted.done, list(acted.skipped)) == (0, [1])


async def test_without_an_audit_table_an_act_is_logged(
    postgres: PostgresBackend, caplog: pytest.LogCaptureFixture
) -> None:
    await bury(postgres, *_rows(2))
    operations = OutboxOperations.on_store(postgres.store)
    with caplog.at_level(logging.INFO, logger="faststream_outbox"):
        assert (await operations.purge([1, 2], reason="too old")).audit_id is None
    [record] = [each for each in caplog.records if getattr(each, "event", "") == "operator_action"]
    assert record.getMessage() == f"{current_user()} did purge to 2 rows: too old"
    assert record.__dict__["target"] == {"kind": "dead_letters", "ids": [1, 2]}
    with pytest.raises(OperationsTableError, match="audit_table="):
        await operations.audit()


async def test_the_audit_is_read_in_pages_and_by_filter(backend: Backend) -> None:
    await bury(backend, *_rows(3))
    await bury(backend, NewRow("mails", b""))
    operations = await operations_of(backend)
    for each in (1, 2):
        await operations.purge(each, reason="r", by="ann")
    for queue in ("orders", "mails"):
        selection = await operations.select(DeadLetterFilter(queue=queue))
        await operations.purge(selection, reason="r", by="bob")
    page = await operations.audit(limit=3)
    assert ([entry.id for entry in page.items], page.complete) == ([4, 3, 2], True)
    rest = await operations.audit(after=page.after, limit=3)
    assert ([entry.id for entry in rest.items], rest.after) == ([1], None)
    for where, ids in (
        (AuditFilter(by="ann"), [2, 1]),
        (AuditFilter(queue="mails"), [4]),
        (AuditFilter(action="purge", by="bob"), [4, 3]),
        (AuditFilter(action="discard"), []),
        (AuditFilter(after=page.items[0].at, before=page.items[0].at), []),
    ):
        assert [entry.id for entry in (await operations.audit(where)).items] == ids


@pytest.mark.parametrize("reason", ["", "  "])
async def test_an_act_needs_a_reason(backend: Backend, reason: str) -> None:
    with pytest.raises(ValueError, match="reason is empty"):
        await (await operations_of(backend)).purge([1], reason=reason)


async def test_an_act_refuses_what_is_not_its_kind(backend: Backend) -> None:
    operations = await operations_of(backend)
    messages = await operations.select(MessageFilter())
    with pytest.raises(ValueError, match="for dead letters"):
        await operations.purge(messages, reason="old")
    with pytest.raises(TypeError, match="Make a selection of the filter first"):
        await operations.purge(DeadLetterFilter(), reason="old")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="ids"):
        await operations.purge("7", reason="old")  # type: ignore[arg-type]

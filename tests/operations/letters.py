"""Dead letters and messages for the tests of operations."""

from sqlalchemy import MetaData, Table

from faststream_outbox import make_operations_tables
from faststream_outbox.operations import OutboxOperations
from faststream_outbox.storage import Dead, NewRow, Settlement
from faststream_outbox.storage.outcomes import FailureReason
from tests.backends import Backend, PostgresBackend


async def bury(
    backend: Backend, *rows: NewRow, reason: FailureReason = "rejected", exception: str | None = "ValueError: no"
) -> None:
    """Insert rows, claim them, and settle them as dead."""
    await backend.insert(*rows)
    claimed = (await backend.claim(*{row.queue for row in rows}, limit=len(rows))).rows
    assert len(claimed) == len(rows)
    async with backend.store.connect() as lane:
        await lane.settle([Settlement(row.lease, Dead(reason, exception, 1)) for row in claimed])


async def operations_of(backend: Backend) -> OutboxOperations:
    """The operations on a store, with an audit."""
    table: Table | None = None
    if isinstance(backend, PostgresBackend):
        table = await make_audit(backend)
    return OutboxOperations.on_store(backend.store, audit_table=table)


async def make_audit(backend: PostgresBackend) -> Table:
    table = make_operations_tables(MetaData()).audit
    async with backend.engine.begin() as connection:
        await connection.run_sync(table.create)
    return table

"""Stores and workers with one thing wrong each, which the checker has to find. None of it is in the library."""

import re
from collections.abc import Callable, Iterable

from sqlalchemy.ext.asyncio import AsyncEngine

from faststream_outbox.storage import Ack, NewRow, PostgresStore, SessionOrConnection, TimerConflict
from faststream_outbox.storage.postgres.statements.rows import Statement
from tests.soak.encoding import uid
from tests.soak.history import Ended, Started
from tests.soak.settings import DLQ, OUTBOX, Settings
from tests.soak.worker import Running, Worker

FENCE = " AND o.acquired_token = l.token"


def _spoiled(engine: AsyncEngine, spoil: Callable[[str], str], *names: str) -> PostgresStore:
    store = PostgresStore(engine, OUTBOX, dlq_table=DLQ)
    for name in names:
        owner = store._statements if hasattr(store._statements, name) else store._inserts
        text = getattr(owner, name).text
        spoiled = spoil(text)
        assert spoiled != text, f"the statement {name!r} has changed: this variant breaks nothing any more"
        setattr(owner, name, Statement(spoiled))
    return store


def settle_without_fence(engine: AsyncEngine) -> PostgresStore:
    """Settle a row whoever holds it."""
    return _spoiled(engine, lambda text: text.replace(FENCE, ""), "delete_batch", "retry")


def renew_without_fence(engine: AsyncEngine) -> PostgresStore:
    """Renew a row whoever holds it."""
    return _spoiled(engine, lambda text: text.replace(FENCE, ""), "renew")


def claim_of_what_is_leased(engine: AsyncEngine) -> PostgresStore:
    """Claim rows that somebody holds."""
    return _spoiled(engine, lambda text: text.replace(" AND o.acquired_token IS NULL", ""), "claim")


def claim_without_locks(engine: AsyncEngine) -> PostgresStore:
    """Claim what a snapshot shows as free, without asking whether it still is."""
    return _spoiled(engine, lambda text: text.replace(" FOR UPDATE SKIP LOCKED", ""), "claim")


def claim_of_suspects_among_others(engine: AsyncEngine) -> PostgresStore:
    """Claim rows whose lease ran out together with the rest."""
    free = " AND (o.acquired_token IS NULL OR o.lease_expires_at <= now())"
    return _spoiled(engine, lambda text: text.replace(" AND o.acquired_token IS NULL", free), "claim")


def suspects_before_their_time(engine: AsyncEngine) -> PostgresStore:
    """Claim as suspects rows whose lease still stands."""
    return _spoiled(engine, lambda text: text.replace("o.lease_expires_at <= now()", "true"), "claim_suspect")


def release_that_still_counts(engine: AsyncEngine) -> PostgresStore:
    """Give rows back with their delivery counted."""
    return _spoiled(
        engine,
        lambda text: text.replace("deliveries_count = o.deliveries_count - 1", "deliveries_count = o.deliveries_count"),
        "release",
    )


def burial_without_a_grave(engine: AsyncEngine) -> PostgresStore:
    """Delete what is dead, and put nothing into the dead-letter table."""
    return _spoiled(engine, lambda text: text.replace(" AND l.token = g.acquired_token)", " AND false)"), "bury")


def cancel_in_flight(engine: AsyncEngine) -> PostgresStore:
    """Cancel timers that somebody is handling."""
    return _spoiled(engine, lambda text: text.replace(" AND t.lease_expires_at <= now()", ""), "cancel_timer")


def retry_that_keeps_the_row(engine: AsyncEngine) -> PostgresStore:
    """Retry a row, and leave it under a lease that nobody has and that never ends."""

    def spoil(text: str) -> str:
        text = text.replace("acquired_token = NULL", "acquired_token = gen_random_uuid()")
        return text.replace("lease_expires_at = '-infinity'", "lease_expires_at = 'infinity'")

    return _spoiled(engine, spoil, "retry")


def retry_without_delay(engine: AsyncEngine) -> PostgresStore:
    """Retry a row at once, whatever its strategy says."""
    return _spoiled(engine, lambda text: text.replace("now() + make_interval(secs => l.delay)", "now()"), "retry")


def ack_that_leaves_the_row(engine: AsyncEngine) -> PostgresStore:
    """Answer that a row is settled, and leave it for the next claim."""
    unlease = r"UPDATE \1 o SET acquired_token = NULL FROM"
    return _spoiled(engine, lambda text: re.sub(r"DELETE FROM (\S+) o USING", unlease, text), "delete_batch")


class AutocommitStore(PostgresStore):
    """Publishes through a connection of its own, past the caller's transaction."""

    async def insert(
        self,
        session: SessionOrConnection | None,
        row: NewRow,
        *,
        timer_conflict: TimerConflict = "ignore",
        notify: bool = False,
    ) -> int | None:
        """Insert one row, for good."""
        del session
        assert self.engine is not None
        async with self.engine.begin() as own:
            return await super().insert(own, row, timer_conflict=timer_conflict, notify=notify)

    async def insert_many(
        self, session: SessionOrConnection | None, rows: Iterable[NewRow], *, notify: bool = False
    ) -> list[int]:
        """Insert rows, for good."""
        del session
        assert self.engine is not None
        async with self.engine.begin() as own:
            return await super().insert_many(own, rows, notify=notify)


def publish_past_the_transaction(engine: AsyncEngine) -> PostgresStore:
    """Publish on a connection of one's own."""
    return AutocommitStore(engine, OUTBOX, dlq_table=DLQ)


class AckFirstWorker(Worker):
    """Acks when it begins, not when it is done: a kill in between loses the row."""

    async def handle(self, running: Running) -> None:
        """Settle first, work later."""
        running.outcome = Ack()
        row = running.row
        self.history.write(Started, uid(row), row.lease.token.hex)
        await self.pause(self._duration())
        self.history.write(Ended, uid(row), row.lease.token.hex, True)  # noqa: FBT003 - the fields of the event


def ack_first(settings: Settings, name: str) -> Worker:
    """Make a worker that acks first."""
    return AckFirstWorker(settings, name)

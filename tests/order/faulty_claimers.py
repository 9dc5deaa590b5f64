"""Claimers with one of the faults that order dies of, each; and two of them mended, which pass."""

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy.ext.asyncio import AsyncConnection

from tests.order import first_designs
from tests.order.foreign_claimer import Stranger, Taken, fetch
from tests.soak.settings import Settings

SHARDS: Final = 16


class SeedAdvisoryLocks(Stranger):
    """The first approach: its locks end with the claim, and what is inserted then goes to anybody."""

    async def claim(self, token: str) -> Sequence[Any]:
        """Claim all rows of some keys."""
        return await self.run_alone(first_designs.ADVISORY_LOCKS, token)


class SeedSkipLocked(Stranger):
    """The second approach, as far as Postgres accepts it: the same."""

    async def claim(self, token: str) -> Sequence[Any]:
        """Claim all rows of some keys."""
        del token
        return await self.run_alone(first_designs.SKIP_LOCKED_ACCEPTED)


class SeedHashShards(Stranger):
    """The third approach: right until a handler fails, because nothing blocks what follows."""

    loops = 1

    async def claim(self, token: str) -> Sequence[Any]:
        """Claim rows of the process's own shards, one after the other."""
        del token
        rows: list[Any] = []
        for shard in range(self.number % self.settings.workers, SHARDS, self.settings.workers):
            rows += await self.run_alone(first_designs.HASH_SHARDS, shard)
        return rows


class SessionLocks(Stranger):
    """Shards that belong to whoever has their lock, which vanishes with its connection while the handler runs."""

    loops = 1
    _locks: AsyncConnection | None = None

    async def work(self) -> None:
        """Run until told to stop, and let go of the locks."""
        await super().work()
        if self._locks is not None:
            await self._locks.close()

    async def claim(self, token: str) -> Sequence[Any]:
        """Take shards that are free, and read what is in our own."""
        del token
        if self._locks is None:
            self._locks = await self.engine.connect()
        try:
            await fetch(self._locks, f"SELECT pg_try_advisory_lock(2, n) FROM generate_series(0, {SHARDS - 1}) n")
            locked = "FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory' AND classid = 2"
            [(pid, shards)] = await fetch(self._locks, f"SELECT pg_backend_pid(), array_agg(objid::int) {locked}")
            await self._locks.commit()  # the locks are the session's, not the transaction's
        except Exception:
            await self._locks.invalidate()
            self._locks = None
            raise
        rows = await self.run_alone(
            f"""SELECT * FROM outbox WHERE hashtext(entity_key) & {SHARDS - 1} = ANY ($1::int[])
                 ORDER BY entity_key, id LIMIT 5""",
            shards or [],
        )
        if rows and self.rng.random() < 0.3:
            await self.run_alone("SELECT pg_terminate_backend($1)", pid)  # as a proxy does that finds it idle
        return rows


# Locks some keys, in one order for all.
_KEYS: Final = """SELECT k.entity_key FROM (
  SELECT c.entity_key FROM (
    SELECT d.entity_key FROM (SELECT DISTINCT entity_key FROM outbox) d ORDER BY random() LIMIT 2) c
   ORDER BY c.entity_key LIMIT 2) k
 WHERE pg_advisory_xact_lock(1, hashtext(k.entity_key)) IS NOT NULL"""
# All rows of keys of which nobody has any.
_CLAIM: Final = """UPDATE outbox o SET status = 'PROCESSING'
 WHERE o.entity_key = ANY (ARRAY({keys})) AND o.status = 'NEW'
   AND NOT EXISTS (SELECT FROM outbox p WHERE p.entity_key = o.entity_key AND p.status = 'PROCESSING')
RETURNING o.*"""


class OneStatement(Stranger):
    """Locks and reads in one statement, whose snapshot is older than the locks: it does not see who had them before."""

    async def claim(self, token: str) -> Sequence[Any]:
        """Claim all rows of keys that nobody has, as of before the locks."""
        del token
        async with self.engine.begin() as connection:
            rows = await fetch(connection, _CLAIM.format(keys=_KEYS))
            await self.hesitate()
        return rows

    async def hesitate(self) -> None:
        """Commit a moment later, as a client does that has something else to do."""
        await self.pause(self.rng.uniform(0.0, 0.01))


class TwoStatements(OneStatement):
    """The same, mended: what is read after the locks were got shows what became of the rows before."""

    async def claim(self, token: str) -> Sequence[Any]:
        """Lock keys, and then claim those that nobody has."""
        del token
        async with self.engine.begin() as connection:
            keys = [key for (key,) in await fetch(connection, _KEYS)]
            rows = await fetch(connection, _CLAIM.format(keys="SELECT unnest($1::text[])"), keys)
            await self.hesitate()
        return rows


# Keys whose latest lease is over; all of their rows get one.
LEASES: Final = ("ALTER TABLE outbox ADD locked_until timestamptz NOT NULL DEFAULT '-infinity', ADD token text",)
_LEASE: Final = """UPDATE outbox o SET locked_until = {clock}() + make_interval(secs => $2), token = $3
 WHERE o.entity_key = ANY ($1::text[])
   AND (SELECT max(p.locked_until) FROM outbox p WHERE p.entity_key = o.entity_key) <= {clock}()
RETURNING o.*"""


class ClockTimestamp(Stranger):
    """Asks for the time row by row, so that a lease ends in the middle of a claim: it gets the last rows of a key."""

    clock = "clock_timestamp"

    def __init__(self, settings: Settings, name: str) -> None:
        super().__init__(settings, name)
        self.lease_seconds = settings.lease_seconds

    async def claim(self, token: str) -> Sequence[Any]:
        """Lock keys, and then lease those whose lease is over."""
        async with self.engine.begin() as connection:
            keys = [key for (key,) in await fetch(connection, _KEYS)]
            return await fetch(connection, _LEASE.format(clock=self.clock), keys, self.lease_seconds, token)

    async def delete(self, row: Taken, token: str) -> bool:
        """Delete a row that is ours."""
        statement = "DELETE FROM outbox WHERE id = $1 AND token = $2 RETURNING id"
        return bool(await self.run_alone(statement, row.id, token))


class StatementTimestamp(ClockTimestamp):
    """The same, mended: one time for all rows."""

    clock = "statement_timestamp"

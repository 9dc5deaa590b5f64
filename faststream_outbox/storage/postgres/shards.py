"""The leases of shards on Postgres: one row for each shard of each queue."""

from collections.abc import Sequence
from typing import Final

from sqlalchemy import Table

from faststream_outbox.storage.contract import StoreConnection
from faststream_outbox.storage.ordering.strategies import NO_SHARDS, Shard, ShardHolder, ShardLease, fair_share
from faststream_outbox.storage.postgres.drivers import Executor
from faststream_outbox.storage.postgres.statements.statement import Columns, Statement
from faststream_outbox.storage.schema.tables import quoted_name

_MINE: Final = """token = :token::uuid, holder = :holder::text,
       lease_expires_at = now() + make_interval(secs => :lease_seconds::float8)"""
# Shards, each with the token under which it was last seen.
_WANTED: Final = Columns("wanted", shard="int", token="uuid")  # noqa: S106 - a type, no password


class ShardStatements:
    """The statements for one table of shards."""

    def __init__(self, table: Table) -> None:
        shards = quoted_name(table.name, table.schema)
        self.name = f"The table of shards {shards}"
        self.look = Statement(f"SELECT queue, shard, token, holder, lease_expires_at FROM {shards} LIMIT 0")
        self.make = Statement(
            f"INSERT INTO {shards} (queue, shard) SELECT :queue::text, n FROM generate_series(0, :count::int - 1) AS n "
            "ON CONFLICT (queue, shard) DO NOTHING RETURNING 1"
        )
        self.read = Statement(
            f"SELECT s.shard, s.token, s.lease_expires_at > now() FROM {shards} s "
            "WHERE s.queue = :queue::text AND s.shard < :count::int"
        )
        # Only if the holder is still the one that was read. SKIP LOCKED: a process that writes a shard at this moment
        # gets it, and we do not wait.
        self.take = Statement(f"""WITH free AS MATERIALIZED (
  SELECT s.shard FROM {shards} s JOIN {_WANTED.unnest("w")} ON s.shard = w.shard
   WHERE s.queue = :queue::text AND s.token IS NOT DISTINCT FROM w.token FOR UPDATE OF s SKIP LOCKED)
UPDATE {shards} s SET {_MINE} WHERE s.queue = :queue::text AND s.shard = ANY (ARRAY(SELECT f.shard FROM free f))
RETURNING s.shard""")
        self.leave = Statement(
            f"UPDATE {shards} s SET token = NULL, holder = NULL, lease_expires_at = '-infinity' "
            "WHERE s.queue = ANY (:queues::text[]) AND s.token = :token::uuid RETURNING 1"
        )


class ShardLeases(StoreConnection):
    """The part of a lane that leases shards."""

    _executor: Executor
    _shards: ShardStatements | None

    async def share_shards(
        self, holder: ShardHolder, queues: Sequence[str], *, count: int, lease_seconds: float
    ) -> list[Shard]:
        """Lease a fair share of each queue's shards."""
        if self._shards is None:
            raise RuntimeError(NO_SHARDS)
        shards = list[Shard]()
        for queue in queues:
            leases = await self._read(self._shards, queue, count)
            if len(leases) < count:
                await self._executor.fetch(self._shards.make, queue=queue, count=count)
                leases = await self._read(self._shards, queue, count)
            wanted = fair_share(leases, holder.token)
            taken = await self._executor.fetch(
                self._shards.take,
                token=holder.token,
                holder=holder.name,
                lease_seconds=lease_seconds,
                queue=queue,
                **_WANTED.fill([(each.shard.number, each.holder) for each in wanted]),
            )
            shards += [Shard(queue, number) for (number,) in taken]
        return shards

    async def _read(self, statements: ShardStatements, queue: str, count: int) -> list[ShardLease]:
        records = await self._executor.fetch(statements.read, queue=queue, count=count)
        return [ShardLease(Shard(queue, number), token, live) for number, token, live in records]

    async def leave_shards(self, holder: ShardHolder, queues: Sequence[str]) -> None:
        """Give up the holder's shards."""
        if self._shards is not None:
            await self._executor.fetch(self._shards.leave, token=holder.token, queues=list(queues))

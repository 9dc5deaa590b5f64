"""The leases of shards on Postgres: one row for each shard of each queue."""

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from sqlalchemy import Table

from faststream_outbox.storage.ordering.strategies import Shard, ShardHolder, ShardLease, fair_share
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


class PostgresShards:
    """The leases of shards, on one connection."""

    def __init__(self, executor: Executor, statements: ShardStatements) -> None:
        self._executor = executor
        self._statements = statements

    async def share(
        self, holder: ShardHolder, queues: Sequence[str], *, count: int, lease_seconds: float
    ) -> list[Shard]:
        """Lease a fair share of each queue's shards."""
        return [
            shard
            for queue in queues
            for shard in await self._share(holder, queue, count=count, lease_seconds=lease_seconds)
        ]

    async def _share(self, holder: ShardHolder, queue: str, *, count: int, lease_seconds: float) -> list[Shard]:
        leases = await self._read(queue, count)
        if len(leases) < count:
            await self._executor.fetch(self._statements.make, queue=queue, count=count)
            leases = await self._read(queue, count)
        wanted = fair_share(leases, holder.token)
        taken = await self._executor.fetch(
            self._statements.take,
            token=holder.token,
            holder=holder.name,
            lease_seconds=lease_seconds,
            queue=queue,
            **_WANTED.fill([(each.shard.number, each.holder) for each in wanted]),
        )
        return [Shard(queue, number) for (number,) in taken]

    async def _read(self, queue: str, count: int) -> list[ShardLease]:
        records = await self._executor.fetch(self._statements.read, queue=queue, count=count)
        return [ShardLease(Shard(queue, number), token, live) for number, token, live in records]

    async def leave(self, token: UUID, queues: Sequence[str]) -> None:
        """Give up the holder's shards."""
        await self._executor.fetch(self._statements.leave, token=token, queues=list(queues))

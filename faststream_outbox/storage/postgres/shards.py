"""The leases of shards on Postgres: one row for each shard of each queue."""

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from sqlalchemy import Table

from faststream_outbox.storage.ordering.shards import Shard, ShardHolder, ShardLease, fair_share
from faststream_outbox.storage.postgres.drivers import Executor
from faststream_outbox.storage.postgres.statements.rows import Statement
from faststream_outbox.storage.schema.tables import quoted_name

_MINE: Final = "token = $1::uuid, holder = $2::text, lease_expires_at = now() + make_interval(secs => $3::float8)"


class ShardStatements:
    """The statements for one table of shards."""

    def __init__(self, table: Table) -> None:
        shards = quoted_name(table.name, table.schema)
        self.name = f"The table of shards {shards}"
        self.look = Statement(f"SELECT queue, shard, token, holder, lease_expires_at FROM {shards} LIMIT 0")
        self.make = Statement(
            f"INSERT INTO {shards} (queue, shard) SELECT $1::text, n FROM generate_series(0, $2::int - 1) AS n "
            "ON CONFLICT (queue, shard) DO NOTHING RETURNING 1"
        )
        self.read = Statement(
            f"SELECT s.shard, s.token, s.lease_expires_at > now() FROM {shards} s "
            "WHERE s.queue = $1::text AND s.shard < $2::int"
        )
        # Only from whom we saw holding it, and nobody waits: whoever writes a shard at this moment has it.
        self.take = Statement(f"""WITH free AS MATERIALIZED (
  SELECT s.shard FROM {shards} s JOIN unnest($5::int[], $6::uuid[]) AS w(shard, token) ON s.shard = w.shard
   WHERE s.queue = $4::text AND s.token IS NOT DISTINCT FROM w.token FOR UPDATE OF s SKIP LOCKED)
UPDATE {shards} s SET {_MINE} WHERE s.queue = $4::text AND s.shard = ANY (ARRAY(SELECT f.shard FROM free f))
RETURNING s.shard""")
        self.leave = Statement(
            f"UPDATE {shards} s SET token = NULL, holder = NULL, lease_expires_at = '-infinity' "
            "WHERE s.queue = ANY ($2::text[]) AND s.token = $1::uuid RETURNING 1"
        )


class PostgresShards:
    """The leases of shards, seen from one lane."""

    def __init__(self, executor: Executor, statements: ShardStatements) -> None:
        self._executor = executor
        self._statements = statements

    async def share(
        self, holder: ShardHolder, queues: Sequence[str], *, count: int, lease_seconds: float
    ) -> list[Shard]:
        """Hold a fair share of each queue's shards."""
        return [
            shard
            for queue in queues
            for shard in await self._share(holder, queue, count=count, lease_seconds=lease_seconds)
        ]

    async def _share(self, holder: ShardHolder, queue: str, *, count: int, lease_seconds: float) -> list[Shard]:
        leases = await self._read(queue, count)
        if len(leases) < count:
            await self._executor.fetch(self._statements.make, queue, count)
            leases = await self._read(queue, count)
        wanted = fair_share(leases, holder.token)
        numbers, tokens = [each.shard.number for each in wanted], [each.holder for each in wanted]
        taken = await self._executor.fetch(
            self._statements.take, holder.token, holder.name, lease_seconds, queue, numbers, tokens
        )
        return [Shard(queue, number) for (number,) in taken]

    async def _read(self, queue: str, count: int) -> list[ShardLease]:
        records = await self._executor.fetch(self._statements.read, queue, count)
        return [ShardLease(Shard(queue, number), token, live) for number, token, live in records]

    async def leave(self, token: UUID, queues: Sequence[str]) -> None:
        """Leave all shards to others."""
        await self._executor.fetch(self._statements.leave, token, list(queues))

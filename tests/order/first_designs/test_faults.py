"""Each fault of the first designs by itself: their own statements, one step after the other, on a real Postgres.

`tests/order/test_broken.py` runs the same statements under load.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import psycopg
import pytest
from psycopg.rows import namedtuple_row

from faststream_outbox.embedded import Database
from tests.order import first_designs

# Each claim takes 50 keys at most, of 200 candidates.
BATCH, CANDIDATES = 50, 200
SHARD_COLUMN = first_designs.SHARDS[-2]
Statement = tuple[str, list[object]]


class Row(NamedTuple):
    """What a worker got."""

    key: str
    id: int


class Workers:
    """A table of the first designs, and workers with a connection each."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._connections: dict[str, psycopg.Connection[Any]] = {}
        self.run("CREATE TABLE outbox (id bigserial PRIMARY KEY, entity_key text NOT NULL)")
        for statement in first_designs.SHARDS:
            self.run(statement)

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()

    def run(self, statement: str, *values: object, by: str = "operator", commit: bool = True) -> list[Any]:
        if by not in self._connections:
            self._connections[by] = psycopg.connect(self._dsn, row_factory=namedtuple_row)
        cursor = self._connections[by].execute(statement.replace("$1", "%s") if values else statement, values or None)
        found = cursor.fetchall() if cursor.description else []
        if commit:
            self._connections[by].commit()
        return found

    def publish(self, *keys: str) -> None:
        """Insert a row for each of these keys."""
        self.run("INSERT INTO outbox (entity_key) SELECT unnest($1::text[])", list(keys))

    def claim(self, statement: str, *values: object, by: str, commit: bool = True) -> list[Row]:
        rows = self.run(statement, *values, by=by, commit=commit)
        return sorted(Row(row.entity_key, row.id) for row in rows)

    def done(self, *rows: Row) -> None:
        """Settle as the design does, by id."""
        self.run("DELETE FROM outbox WHERE id = ANY ($1)", [row.id for row in rows])

    def shard_of(self, key: str) -> int:
        [[shard]] = self.run("SELECT abs(hashtext($1)) %% 16", key)
        return int(shard)


@pytest.fixture
def workers(outbox_postgres: Database) -> Iterator[Workers]:
    made = Workers(outbox_postgres.dsn)
    yield made
    made.close()


def statement_of(workers: Workers, approach: str, worker: str) -> Statement:
    """The statement of an approach, with its parameters for the key `anna`."""
    match approach:
        case "A":
            return first_designs.ADVISORY_LOCKS, [worker]
        case "B":
            return first_designs.SKIP_LOCKED_ACCEPTED, []
        case _:
            return first_designs.HASH_SHARDS, [workers.shard_of("anna")]


def keys(count: int) -> list[str]:
    return [f"k{number:05}" for number in range(count)]


@pytest.mark.parametrize("approach", ["A", "B", "C"])
def test_two_workers_have_one_key(workers: Workers, approach: str) -> None:
    """The lock ends with the claim, and the row that is published meanwhile is free.

    In approach C the second worker is a second task of the same shard, or the new owner of a shard that moved.
    """
    workers.publish("anna")
    statement, values = statement_of(workers, approach, "first")
    [before] = workers.claim(statement, *values, by="first")
    workers.publish("anna")
    statement, values = statement_of(workers, approach, "second")
    [after] = workers.claim(statement, *values, by="second")
    assert before.key == after.key == "anna"
    assert before.id < after.id


@pytest.mark.parametrize("approach", ["A", "B", "C"])
def test_a_message_that_fails_does_not_block_its_key(workers: Workers, approach: str) -> None:
    workers.publish("anna")
    statement, values = statement_of(workers, approach, "first")
    [failed] = workers.claim(statement, *values, by="first")
    workers.publish("anna")
    # Its worker died. The second message overtakes it while it waits for the job that frees it.
    [overtook] = workers.claim(statement, *values, by="second")
    workers.done(overtook)
    workers.run("UPDATE outbox SET locked_at = locked_at - interval '6 minutes'")
    workers.run(first_designs.RESET_STALE)
    assert workers.claim(statement, *values, by="second") == [failed]
    assert failed.id < overtook.id


def test_the_job_that_frees_rows_takes_them_from_a_worker_that_is_slow(workers: Workers) -> None:
    workers.publish("anna", "anna")
    held = workers.claim(first_designs.ADVISORY_LOCKS, "slow", by="slow")
    workers.run("UPDATE outbox SET locked_at = locked_at - interval '6 minutes'")
    workers.run(first_designs.RESET_STALE)
    assert workers.claim(first_designs.ADVISORY_LOCKS, "other", by="other") == held
    # Nothing tells the slow one: what it deletes is the other's.
    workers.done(*held)
    assert workers.run("SELECT * FROM outbox") == []


def test_a_key_at_the_end_of_the_alphabet_starves(workers: Workers) -> None:
    early = keys(BATCH)
    workers.publish(*early, "zoe")
    for _ in range(20):
        claimed = workers.claim(first_designs.ADVISORY_LOCKS, "first", by="first")
        assert {row.key for row in claimed} == set(early)
        workers.done(*claimed)
        workers.publish(*early)  # they are busy


def test_a_random_start_reaches_the_first_three_hundred_keys_only(workers: Workers) -> None:
    early = keys(100 + CANDIDATES)
    workers.publish(*early, "zoe")
    seen = Counter[str]()
    for _ in range(20):
        claimed = workers.claim(first_designs.RANDOM_START, "first", by="first")
        seen.update(row.key for row in claimed)
        workers.done(*claimed)
        workers.publish(*(row.key for row in claimed))
    assert seen
    assert "zoe" not in seen


def test_a_random_start_behind_the_last_key_finds_nothing(workers: Workers) -> None:
    workers.publish("anna")
    for _ in range(1000):
        if not workers.claim(first_designs.RANDOM_START, "first", by="first", commit=False):
            return
        workers.run("ROLLBACK", by="first")
    pytest.fail("each of a thousand claims began at the only key")


def test_the_fifth_worker_finds_nothing_although_a_thousand_keys_wait(workers: Workers) -> None:
    """All have the same candidates; over-fetching moves that bound, and does not remove it."""
    workers.publish(*keys(1000))
    claims = [
        len({row.key for row in workers.claim(first_designs.ADVISORY_LOCKS, name, by=name, commit=False)})
        for name in ("one", "two", "three", "four", "five")
    ]
    assert claims == [BATCH] * (CANDIDATES // BATCH) + [0]


@pytest.mark.parametrize("approach", ["A", "B"])
def test_a_claim_reads_every_row_of_a_hot_key(workers: Workers, approach: str) -> None:
    workers.publish(*["anna"] * 20_000, "ben")
    workers.run("ANALYZE outbox")
    statement, _ = statement_of(workers, approach, "first")
    [[[plan]]] = workers.run(f"EXPLAIN (ANALYZE, FORMAT JSON) {_candidates(statement)}")
    assert max(_rows_read(plan["Plan"])) >= 20_000


def _candidates(statement: str) -> str:
    """The first part of a statement, which looks for keys."""
    return statement.partition("AS (")[2].partition("\n),")[0]


def _rows_read(node: dict[str, Any]) -> Iterator[int]:
    if "Relation Name" in node:
        yield int(node["Actual Rows"] * node["Actual Loops"])
    for below in node.get("Plans", ()):
        yield from _rows_read(below)


def test_a_limit_of_rows_cuts_a_key_in_two_and_starves_the_next(workers: Workers) -> None:
    """Approach C: the second task of a shard gets the rest of the hot key, beside the first."""
    shard = workers.shard_of("anna")
    other = next(key for key in (f"b{n}" for n in range(1000)) if workers.shard_of(key) == shard)
    workers.publish(*["anna"] * 1100, other)
    first = workers.claim(first_designs.HASH_SHARDS, shard, by="first")
    second = workers.claim(first_designs.HASH_SHARDS, shard, by="second")
    assert Counter(row.key for row in first) == Counter(row.key for row in second) == {"anna": 500}
    workers.publish(*["anna"] * 500)
    assert {row.key for row in workers.claim(first_designs.HASH_SHARDS, shard, by="third")} == {"anna"}


def test_a_shard_that_moves_takes_its_keys_from_the_worker_that_has_them(workers: Workers) -> None:
    """Twice as many shards, in a column that is calculated, are a new table; and nobody asks who works on the old."""
    workers.publish("anna")
    [held] = workers.claim(first_designs.HASH_SHARDS, workers.shard_of("anna"), by="old owner")
    before = workers.run("SELECT pg_relation_filenode('outbox')")
    workers.run("ALTER TABLE outbox DROP shard_id")
    workers.run(SHARD_COLUMN.replace("% 16", "% 32"))
    assert workers.run("SELECT pg_relation_filenode('outbox')") != before
    workers.publish("anna")
    [[shard]] = workers.run("SELECT DISTINCT shard_id FROM outbox")
    [taken] = workers.claim(first_designs.HASH_SHARDS, shard, by="new owner")
    assert (held.key, taken.key) == ("anna", "anna")


def test_workers_that_hash_their_own_id_leave_shards_to_nobody(workers: Workers) -> None:
    owned = Counter(workers.shard_of(f"worker {number}") for number in range(16))
    assert len(owned) < 16
    assert max(owned.values()) > 1


def test_one_hash_in_four_billion_makes_the_insert_fail(workers: Workers) -> None:
    """`abs` of the least integer is no integer, and `hashtext` may be that for some key."""
    with pytest.raises(psycopg.errors.NumericValueOutOfRange, match="integer out of range"):
        workers.run("SELECT abs((-2147483648)::integer) % 16")


def test_two_keys_with_one_hash_wait_for_each_other(workers: Workers) -> None:
    """And among ten thousand keys there are such two once in 86 times, not once in a hundred thousand."""
    collision = "SELECT array_agg('k' || n) FROM generate_series(1, 200000) n GROUP BY hashtext('k' || n)"
    [[pair], *_] = workers.run(f"{collision} HAVING count(*) = 2")
    for key in pair:
        workers.publish(key)
    workers.run("SELECT pg_advisory_xact_lock(1, hashtext($1))", pair[0], by="first", commit=False)
    assert workers.claim(first_designs.ADVISORY_LOCKS, "second", by="second") == []
    pairs = 10_000 * 9_999 / 2
    assert 1 / 87 < pairs / 2**32 < 1 / 85

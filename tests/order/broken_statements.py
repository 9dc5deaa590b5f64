"""Our own statements with one thing wrong each, which the checker has to find. None of it is in the library."""

import random
from collections.abc import Callable
from typing import Any

from faststream_outbox import publish_functions_ddl
from faststream_outbox.storage import PostgresStore
from faststream_outbox.storage.contract import ServerProcess
from faststream_outbox.storage.nodes import Deaths, Look, Watch
from faststream_outbox.storage.ordering import KeyCursor, RunClaim
from faststream_outbox.storage.postgres.drivers import Executor
from faststream_outbox.storage.postgres.lane import PostgresLane
from faststream_outbox.storage.postgres.statements.statement import LEASES, Statement
from tests.soak.settings import OUTBOX


def _spoil(statements: object, spoil: Callable[[str], str], *names: str) -> None:
    for name in names:
        setattr(statements, name, _spoiled(getattr(statements, name), spoil))


def _spoiled(statement: Statement, spoil: Callable[[str], str]) -> Statement:
    spoiled = spoil(statement.sql)
    assert spoiled != statement.sql, "the statement has changed: this variant breaks nothing any more"
    return Statement(spoiled)


def no_producer_lock(store: PostgresStore) -> None:
    """Draw ids without waiting for whoever publishes for the same key."""

    def unlocked(text: str) -> str:
        # A function that takes the same arguments, and does nothing.
        return text.replace("pg_advisory_xact_lock(", "num_nonnulls(")

    _spoil(store._statements.insert, unlocked, "insert_keyed", "insert_many")


def functions_without_lock() -> tuple[str, ...]:
    """Return functions that draw ids without waiting for others that publish for the same key."""
    sound = publish_functions_ddl(OUTBOX)
    broken = tuple(each.replace("pg_advisory_xact_lock(", "num_nonnulls(") for each in sound)
    assert sum(map(str.__ne__, sound, broken)) == 2, "the functions have changed: this variant breaks less"
    return broken


def head_by_time(store: PostgresStore) -> None:
    """Take the row of a key that is due first for its head."""
    by_time = "ORDER BY o.entity_key, o.next_attempt_at, o.id LIMIT 1"
    _spoil(
        store._statements.runs,
        lambda text: text.replace("ORDER BY o.entity_key, o.id LIMIT 1", by_time),
        *("claim", "claim_shards", "lock_keys"),
    )


def fence_of_each_row(store: PostgresStore) -> None:
    """Settle every row that nobody else has a token on, whoever has the head by now."""

    def spoil(text: str) -> str:
        # The first of them is the part that deletes rows that are done.
        text = text.replace("JOIN own ON own.id = l.head", f"JOIN {LEASES.unnest('own')} ON own.id = l.head", 1)
        own = "o.id = l.id AND coalesce(o.acquired_token, own.token) = own.token RETURNING"
        return text.replace("o.id = l.id RETURNING", own, 1)

    settles = store._statements.runs.settles
    for kind, statement in settles.items():
        settles[kind] = _spoiled(statement, spoil)


def claim_of_leased_heads(store: PostgresStore) -> None:
    """Claim a key whose head somebody has."""
    spoiled = "ELSE true END"
    _spoil(store._statements.runs, lambda text: text.replace("ELSE o.acquired_token IS NULL END", spoiled), "claim")


class _HastyWatch(Watch):
    """Takes a node for dead as soon as its lock is missing."""

    def add(self, look: Look) -> bool:
        """Conclude from one look."""
        found = super().add(look)
        self.deaths = Deaths(look.database_time, tuple(look.names))
        self.found += 1
        return found


def no_grace(store: PostgresStore) -> None:
    """Take the rows of a process that has lost its lock for a moment."""
    store.nodes.watch = _HastyWatch()


def no_stop_of_starts(store: PostgresStore) -> None:
    """Start handlers although others may have taken this process for dead."""
    store.nodes.own.may_doubt = lambda claimed_at, now: False  # type: ignore[method-assign] # noqa: ARG005 - broken


class _LosingLane(PostgresLane):
    """Loses the answers of some claims of keys, after they have committed."""

    async def claim_runs(self, cursor: KeyCursor, **asked: Any) -> RunClaim:
        claim = await super().claim_runs(cursor, **asked)
        if claim.runs and random.random() < 0.1:
            raise ConnectionError("the answer was lost")
        return claim


def lost_answers(store: PostgresStore) -> None:
    """Break nothing: answers of claims are lost, and their rows are given back."""

    def lane(executor: Executor, process: ServerProcess | None = None) -> PostgresLane:
        return _LosingLane(executor, store._statements, store._shards, nodes=store.nodes, process=process)

    store.lane = lane  # type: ignore[method-assign] # of this store only


def give_back_of_all_that_is_leased(store: PostgresStore) -> None:
    """Give back, after a claim whose answer was lost, what others have in hand too."""

    def spoil(text: str) -> str:
        leased = "(:token::uuid IS NOT NULL AND o.acquired_token IS NOT NULL)"
        text = text.replace("o.acquired_token = :token::uuid", leased)
        return text.replace("o.acquired_token IS NOT DISTINCT FROM :token::uuid", leased)

    _spoil(store._statements.runs, spoil, "give_back")
    lost_answers(store)


def gap_behind_the_head(store: PostgresStore) -> None:
    """Leave out the row that follows a head."""
    gap = "(f.id = h.id OR f.id > h.id + 1)\n"
    _spoil(store._statements.runs, lambda text: text.replace("f.id >= h.id\n", gap), "claim")


def _spoil_replay(store: PostgresStore, *changes: tuple[str, str]) -> None:
    """Change the statement that replays; and have claims take their time, so that a replay comes in between."""
    replay = store.admin._replay  # type: ignore[attr-defined] # of the store on Postgres
    for old, new in changes:
        _spoil(replay.statements, lambda text, old=old, new=new: text.replace(old, new), "replay")  # type: ignore[misc]
    slow_claims(store)


def slow_claims(store: PostgresStore) -> None:
    """Break nothing: claims wait for a moment between their snapshot and their locks."""
    found = "SELECT w.id FROM walk w WHERE w.wanted)"
    waits = f"{found[:-1]} AND (SELECT pg_sleep(0.02) IS NOT NULL))"
    _spoil(store._statements.runs, lambda text: text.replace(found, waits), "claim")


def replayed_behind(store: PostgresStore) -> None:
    """Put dead letters back behind all that waits of their keys."""
    following = "SELECT nextval(pg_get_serial_sequence('outbox', 'id')), j.queue,"
    _spoil_replay(
        store,
        ("SELECT j.original_id, j.queue,", following),
        ("j.original_id IN (SELECT m.id FROM made m) THEN NULL", "(SELECT count(*) FROM made) > 0 THEN NULL"),
    )


def replayed_while_in_flight(store: PostgresStore) -> None:
    """Put dead letters back while somebody has their keys."""
    _spoil_replay(store, ("AND o.lease_expires_at <= now() FOR UPDATE OF o SKIP LOCKED", "FOR UPDATE OF o SKIP LOCKED"))


def head_updated(store: PostgresStore) -> None:
    """Update the head of a key where it should be written anew: a claim that has found it before still takes it."""

    def updated(text: str) -> str:
        before, _, after = text.partition("moved AS (\n  DELETE FROM ")
        table, _, after = after.partition(" o\n   WHERE")
        text = f"{before}moved AS (\n  UPDATE {table} o SET attempts_count = o.attempts_count\n   WHERE{after}"
        before, _, after = text.partition("rewritten AS (")
        _, _, after = after.partition("FROM moved m),")
        return f"{before}rewritten AS (SELECT FROM moved m),{after}"

    replay = store.admin._replay  # type: ignore[attr-defined] # as above
    _spoil(replay.statements, updated, "replay")
    slow_claims(store)

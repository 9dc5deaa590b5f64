"""Our own statements with one thing wrong each, which the checker has to find. None of it is in the library."""

from collections.abc import Callable

from faststream_outbox.storage import PostgresStore
from faststream_outbox.storage.postgres.statements.statement import LEASES, Statement


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

    for statements in (store._statements.insert, store._statements.insert_and_notify):
        _spoil(statements, unlocked, "insert_keyed", "insert_many")


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


def gap_behind_the_head(store: PostgresStore) -> None:
    """Leave out the row that follows a head."""
    gap = "(f.id = h.id OR f.id > h.id + 1)\n"
    _spoil(store._statements.runs, lambda text: text.replace("f.id >= h.id\n", gap), "claim")

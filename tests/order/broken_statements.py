"""Our own statements with one thing wrong each, which the checker has to find. None of it is in the library."""

from collections.abc import Callable

from faststream_outbox.storage import PostgresStore
from faststream_outbox.storage.postgres.statements.rows import Statement


def _spoil(statements: object, spoil: Callable[[str], str], *names: str) -> None:
    for name in names:
        text = getattr(statements, name).text
        spoiled = spoil(text)
        assert spoiled != text, f"the statement {name!r} has changed: this variant breaks nothing any more"
        setattr(statements, name, Statement(spoiled))


def no_producer_lock(store: PostgresStore) -> None:
    """Draw ids without waiting for whoever publishes for the same key."""

    def unlocked(text: str) -> str:
        # A function that takes the same arguments, and does nothing.
        return text.replace("pg_advisory_xact_lock(", "num_nonnulls(")

    statements = store._inserts
    _spoil(statements, unlocked, "insert_keyed", "insert_many")
    statements.notifying = {
        Statement(unlocked(plain.text)): Statement(unlocked(notifying.text))
        for plain, notifying in statements.notifying.items()
    }


def head_by_time(store: PostgresStore) -> None:
    """Take the row of a key that is due first for its head."""
    by_time = "ORDER BY o.entity_key, o.next_attempt_at, o.id LIMIT 1"
    _spoil(
        store._runs,
        lambda text: text.replace("ORDER BY o.entity_key, o.id LIMIT 1", by_time),
        *("claim", "claim_shards", "lock_keys"),
    )


def fence_of_each_row(store: PostgresStore) -> None:
    """Settle every row that nobody else has a token on, whoever has the head by now."""

    def spoil(text: str) -> str:
        own = "JOIN unnest($1::bigint[], $2::uuid[]) AS own(id, token) ON own.id = d.head"
        text = text.replace("JOIN own ON own.id = d.head", own)
        return text.replace(
            "o.id = d.id RETURNING", "o.id = d.id AND coalesce(o.acquired_token, own.token) = own.token RETURNING"
        )

    _spoil(store._runs, spoil, "settle")


def claim_of_leased_heads(store: PostgresStore) -> None:
    """Claim a key whose head somebody has."""
    _spoil(store._runs, lambda text: text.replace("ELSE o.acquired_token IS NULL END", "ELSE true END"), "claim")


def gap_behind_the_head(store: PostgresStore) -> None:
    """Leave out the row that follows a head."""
    _spoil(store._runs, lambda text: text.replace("f.id > h.id\n", "f.id > h.id + 1\n"), "claim")

"""What Postgres makes of operators' acts: they walk a bounded part of an index, and lock only what they take."""

from collections.abc import Awaitable, Callable, Sequence

import pytest
from sqlalchemy import text

from faststream_outbox.operations import DeadLetterFilter, MessageFilter, OutboxOperations
from faststream_outbox.storage import NewRow, SessionOrConnection
from faststream_outbox.storage.operating.acts import EXAMINED
from faststream_outbox.storage.postgres.drivers import LANE_SETTINGS
from faststream_outbox.storage.postgres.statements.acts.dead_letters import DeadLetterActStatements
from faststream_outbox.storage.postgres.statements.acts.messages import CAN_COME, CAN_GO, MessageActStatements
from faststream_outbox.storage.postgres.statements.acts.walks import Path, walk
from faststream_outbox.storage.postgres.statements.conditions import condition
from faststream_outbox.storage.postgres.statements.statement import Statement
from tests.backends import PostgresBackend
from tests.operations.letters import bury
from tests.storage.postgres.statements.test_searches import ROWS, check, driver, filled

__all__ = ["driver", "filled"]  # fixtures

OUTBOX = "outbox"
# A slice is smaller than the rows that match, so that the walk may end early.
SLICE = 500
IDS = f"ARRAY{list(range(ROWS // 2, ROWS // 2 + SLICE))}::bigint[]"
KEYS = f"ARRAY{[f'k{number}' for number in range(SLICE)]}"
# The user's session, and a transaction of our own; plans for the values that are given, and for all values.
SESSIONS = [(mode, settings) for settings in ({}, LANE_SETTINGS) for mode in ("custom", "generic")]
TIMES = ("times", "failures")

MESSAGES: list[tuple[Path, MessageFilter]] = [
    ("ids", MessageFilter()),
    ("ids", MessageFilter(correlation_id="c-7")),
    ("times", MessageFilter(queue="q")),
    ("times", MessageFilter(queue="q", state="retrying")),
    ("keys", MessageFilter(queue="q")),
    ("keys", MessageFilter(queue="q", state="parked")),
    ("keys", MessageFilter(queue="q", state="ready")),
    ("key", MessageFilter(queue="q", key="k7")),
    ("timer", MessageFilter(queue="q", timer_id="t-7")),
]
LETTERS: list[tuple[Path, DeadLetterFilter]] = [
    ("ids", DeadLetterFilter()),
    ("ids", DeadLetterFilter(exception_type="KeyError")),
    ("failures", DeadLetterFilter(queue="q")),
    ("failures", DeadLetterFilter(queue="q", reason="rejected", exception_type="ValueError")),
]


async def test_walks_and_acts_read_a_bounded_part_of_an_index(filled: PostgresBackend) -> None:
    assert filled.dlq_table is not None
    walks: list[tuple[Path, Statement]] = [
        *((path, walk(filled.outbox_table, "o", path, condition(where, OUTBOX))) for path, where in MESSAGES),
        *((path, walk(filled.dlq_table, "d", path, condition(where, OUTBOX))) for path, where in LETTERS),
    ]
    async with filled.engine.connect() as connection:
        for mode, settings in SESSIONS:
            for name, value in settings.items():
                await connection.execute(text(f"SET {name} = '{value}'"))
            for path, statement in walks:
                given = {"after": "'-infinity'" if path in TIMES else "''", "upper_id": str(ROWS), "limit": "500"}
                # Rows that failed at the same time are read together, and sorted by id.
                await check(connection, statement, mode, at_most=EXAMINED + 200, **given)
            for statement in act_statements(filled):
                given = {"ids": IDS, "of_queue": "array_fill('q'::text, ARRAY[500])", "of_key": KEYS, "queue": "'q'"}
                # The rows, and the heads of their keys; what a filter compares is read once more.
                await check(connection, statement, mode, at_most=4 * SLICE, **given)


def act_statements(postgres: PostgresBackend) -> list[Statement]:
    assert postgres.dlq_table is not None
    messages, letters = MessageActStatements(postgres.outbox_table), DeadLetterActStatements(postgres.dlq_table)
    wanted, of_queue = condition(MessageFilter(queue="q"), OUTBOX), condition(DeadLetterFilter(queue="q"), OUTBOX)
    return [
        messages.lock_heads(f"{wanted} AND {CAN_GO}"),
        messages.lock(f"{wanted} AND {CAN_GO}", whole_keys=True),
        messages.lock(f"{wanted} AND {CAN_COME}", whole_keys=False),
        messages.explain(wanted),
        *(messages.deliver_now, messages.delete, messages.rewrite, messages.move, messages.move_keyed),
        *(letters.lock(of_queue), letters.explain(of_queue), letters.delete, letters.read),
    ]


Act = Callable[[OutboxOperations, Sequence[int], SessionOrConnection], Awaitable[object]]

ACTS: dict[str, Act] = {
    "deliver_now": lambda operations, ids, session: operations.deliver_now(ids, reason="a test", session=session),
    "discard": lambda operations, ids, session: operations.discard(ids, reason="a test", session=session),
    "move": lambda operations, ids, session: operations.move(ids, "other", reason="a test", session=session),
    "retry_key": lambda operations, _, session: operations.retry_key("q", "a", reason="a test", session=session),
    "skip_key": lambda operations, _, session: operations.skip_key("q", "a", reason="a test", session=session),
    "park_key": lambda operations, _, session: operations.park_key("q", "a", reason="a test", session=session),
    "hold_key": lambda operations, _, session: operations.hold_key("q", "a", reason="a test", session=session),
}


@pytest.mark.parametrize("name", ACTS)
async def test_an_act_locks_only_what_it_takes(postgres: PostgresBackend, name: str) -> None:
    """Of the key `a` the rows 1, 4 and 7 are there; the act is for row 4 or for the key, which row 1 leads."""
    await postgres.insert(*(NewRow("q", b"", key=key) for key in ("a", "b", None) * 3))
    if name == "deliver_now":
        await postgres.run("UPDATE outbox SET next_attempt_at = now() + interval '1 h' WHERE id = 4")
    operations = OutboxOperations.on_store(postgres.store)
    taken = {"deliver_now": [4], "discard": [1, 4], "move": [1, 4]}.get(name, [1])
    async with postgres.transaction() as session:
        assert await ACTS[name](operations, [4], session)
        free = await postgres.run("SELECT id FROM outbox ORDER BY id FOR UPDATE SKIP LOCKED")
    assert [row_id for (row_id,) in free] == [row_id for row_id in range(1, 10) if row_id not in taken]


@pytest.mark.parametrize("name", ["purge", "replay"])
async def test_an_act_on_dead_letters_locks_only_what_it_takes(postgres: PostgresBackend, name: str) -> None:
    await bury(postgres, *(NewRow("q", b"%d" % number) for number in range(5)))
    await postgres.insert(NewRow("q", b"waits"), NewRow("q", b"waits", key="a"))
    operations = OutboxOperations.on_store(postgres.store)
    async with postgres.transaction() as session:
        await getattr(operations, name)([2, 3], reason="a test", session=session)
        free = await postgres.run("SELECT id FROM outbox_dlq ORDER BY id FOR UPDATE SKIP LOCKED")
        waiting = await postgres.run("SELECT id FROM outbox FOR UPDATE SKIP LOCKED")
    assert (free, len(waiting)) == ([(1,), (4,), (5,)], 2)

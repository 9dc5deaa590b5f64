"""Checks of the sequences that ids are drawn from."""

from collections.abc import AsyncIterator
from typing import Final

from faststream_outbox.operations.doctor.examination import Examination, FoundTable
from faststream_outbox.operations.doctor.finding import Finding, script
from faststream_outbox.storage.postgres.statements.examine.server import SEQUENCE, sequence_state
from faststream_outbox.storage.postgres.statements.statement import Statement

_BIGINT: Final = 2**63 - 1


async def check_ids(examination: Examination) -> AsyncIterator[Finding]:
    """Name sequences that end soon, are behind the ids of rows, or hand out ids ahead."""
    questions = examination.questions()
    for name, highest in (("outbox", questions.highest_id), ("dlq", questions.highest_dead_id)):
        if highest is not None and examination.reads(name):
            async for finding in _check(examination, examination.found[name], highest):
                yield finding


async def _check(examination: Examination, found: FoundTable, highest: Statement) -> AsyncIterator[Finding]:
    for sequence, end, cache, readable, largest in await examination.fetch(SEQUENCE, table=found.name):
        [[last_id]] = await examination.fetch(highest)
        following = (last_id or 0) + 1
        if readable:
            [[last_value, used]] = await examination.fetch(sequence_state(sequence))
            following = last_value + int(used)
        if last_id is not None and following <= last_id:
            yield _behind(found, sequence, following, last_id)
        # By whole numbers: the share of what is left of 2**63 is lost in a float.
        if end - following < end * examination.limits.ids_share:
            room = end - max(last_id or 0, 0) >= end * examination.limits.ids_share
            yield _ends(examination, found, sequence, end - following + 1, end if end >= largest else None, room=room)
        if cache > 1 and found.table is examination.tables.outbox:
            yield _cached(found, sequence, cache)


def _behind(found: FoundTable, sequence: str, following: int, last_id: int) -> Finding:
    return Finding(
        "ids",
        "error",
        f"The next id of {found.name} is {following}, and a row with id {last_id} exists.",
        None,
        "An INSERT fails when it draws an id that exists, and keyed messages go in front of older ones.",
        "Continue behind the last id. This happens when rows were copied with their ids.",
        script(f"SELECT setval('{_escaped(sequence)}', (SELECT max(id) + 1 FROM {found.name}), false)"),  # noqa: S608 - shown, not run
    )


def _ends(
    examination: Examination, found: FoundTable, sequence: str, left: int, of_type: int | None, *, room: bool
) -> Finding:
    """Name a sequence that ends; `of_type` is its end if its type has no more, `room` says that no row is near it."""
    sql: str | None = None
    if of_type is None:
        cure, sql = "Remove the end of the sequence.", script(f"ALTER SEQUENCE {sequence} NO MAXVALUE")
    elif of_type < _BIGINT:
        cure = (
            "Make the column and its sequence bigint. This writes the table anew, and nothing is published meanwhile: "
            "wait until it is nearly empty."
        )
        column = f"ALTER TABLE {found.name} ALTER COLUMN id TYPE bigint"
        sql = script(column, f"ALTER SEQUENCE {sequence} AS bigint")
    elif room:
        cure = "No program draws so many ids: the sequence was set so high by hand. Set it back, behind the ids in use."
        highest = [f"(SELECT max(id) FROM {found.name})"]  # noqa: S608 - shown, not run
        if found.table is examination.tables.outbox and "dlq" in examination.found:
            # A dead letter goes back under its original id, which must have been drawn.
            highest.append(f"(SELECT max(original_id) FROM {examination.found['dlq'].name})")  # noqa: S608 - same
        sql = script(f"SELECT setval('{_escaped(sequence)}', coalesce(greatest({', '.join(highest)}), 0) + 1, false)")
    else:
        cure = "Rows with such ids were inserted by hand: move or delete them, then call the doctor again."
    return Finding(
        "ids",
        "error",
        f"{found.name} has {left:,} ids left.",
        None,
        "When none is left, nothing can be published." if left > 0 else "Nothing can be published.",
        cure,
        sql,
    )


def _cached(found: FoundTable, sequence: str, cache: int) -> Finding:
    return Finding(
        "ids",
        "error",
        f"Each connection draws {cache} ids of {found.name} ahead (CACHE {cache} of the sequence {sequence}).",
        None,
        "Ids are the order of a key: messages of a key that were published later can overtake earlier ones.",
        "Draw ids one by one. Connections keep what they have drawn: reconnect publishers afterwards.",
        script(f"ALTER SEQUENCE {sequence} CACHE 1"),
    )


def _escaped(name: str) -> str:
    return name.replace("'", "''")

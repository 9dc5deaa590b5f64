"""Logs at start what is wrong with the tables of consumers: unreadable, hidden rows, rights that are missing."""

import logging
from typing import Final

from faststream_outbox.runtime.telemetry import Monitor, describe
from faststream_outbox.storage import Store
from faststream_outbox.storage.contract import TableKind
from faststream_outbox.storage.errors import advice

# What follows from a table that cannot be read, by its kind.
_FOLLOWS: Final[dict[TableKind, str]] = {
    "outbox": "Subscribers try again until it works.",
    "shards": "Subscribers try again until it works.",
    "dlq": "Messages that are given up cannot be kept there: they are delivered again until it works.",
    "control": "Pauses are not obeyed, and messages are delivered.",
}


async def report_tables(store: Store, monitor: Monitor, *, shards: bool) -> None:
    """Log what is wrong at start, not at the first claim; it may be mended while we run."""
    unreadable = await store.look()
    for kind, name, error in unreadable:
        advised = advice(error)
        # With advice the text says everything; a traceback behind it would make it scroll away.
        message = f"{name} cannot be read: {describe(error)}.{advised} {_FOLLOWS[kind]}"
        event = "control_unreadable" if kind == "control" else "outbox_unreadable"
        monitor.report(event, message, level=logging.ERROR, error=None if advised else error)
    if any(kind == "outbox" for kind, _, _ in unreadable):
        return  # there may be no table, or no server
    for missing in await store.missing_rights(shards=shards):
        message = f"Messages cannot be settled, and are delivered again and again: {missing}"
        monitor.report("rights_missing", message, level=logging.ERROR)

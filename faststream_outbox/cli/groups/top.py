"""`faststream-outbox top`: the whole outbox on one screen, drawn again and again."""

from dataclasses import dataclass
from datetime import datetime
from functools import partial
from types import SimpleNamespace
from typing import Annotated, Any, Final

import typer

from faststream_outbox.cli.groups.nodes import NO_NODES, NODES
from faststream_outbox.cli.operating.command import Run
from faststream_outbox.cli.operating.values import as_time
from faststream_outbox.cli.operating.views import QUEUE, STATE_COLOURS, Rows, Sentence, View, Views, column, number
from faststream_outbox.operations import DeadLetterGroup, QueueOverview
from faststream_outbox.storage.postgres.activity import Activity, read_activity
from faststream_outbox.storage.rows import to_datetime

# Often enough to see rows come and go; the server's own counters are about a second late.
_SECONDS: Final = 2.0
# How many blocked keys and groups of dead letters fit below the queues.
_SHOWN: Final = 5
_QUEUES: Final = (
    QUEUE,
    number("ready"),
    number("change", "change"),
    number("in flight"),
    number("expired", colour="red", rare=True),
    number("scheduled", rare=True, spare=1),
    number("blocked keys", colour="yellow", rare=True),
    number("dead", colour="red", rare=True),
    number("oldest", "oldest_claimable_age"),
    number("nodes"),
    column("paused", colours={True: "yellow"}),
)
_KEYS: Final = (
    QUEUE,
    column("key"),
    column("state", colours=STATE_COLOURS),
    number("waiting"),
    number("for", "age"),
    column("cause"),
)
_DEAD: Final = (
    number("count", colour="red"),
    QUEUE,
    column("reason", whole=True),
    column("exception type"),
    column("last failed", "last_failed_at"),
)


@dataclass
class _Rates:
    """Remembers the figures of the last look: two looks make a rate."""

    activity: Activity | None = None
    ready: dict[str, int] | None = None

    def of_table(self, now: Activity) -> dict[str, Any]:
        """Return how many messages come and go in a second; None at the first look."""
        before, self.activity = self.activity, now
        seconds = 0.0 if before is None else now.at - before.at
        if before is None or seconds <= 0:
            return {"at": to_datetime(now.at), "in_per_second": None, "out_per_second": None}
        came, went = now.inserted - before.inserted, now.deleted - before.deleted
        # Counters that were set back in between say nothing.
        rates = [None if number < 0 else number / seconds for number in (came, went)]
        return {"at": to_datetime(now.at), "in_per_second": rates[0], "out_per_second": rates[1]}

    def of_queues(self, queues: list[QueueOverview]) -> dict[str, int | None]:
        """Return by how much the ready messages of each queue changed since the last look, where both are exact."""
        before, self.ready = self.ready, {each.queue: each.ready.number for each in queues if not each.ready.capped}
        if before is None:
            return {}
        return {queue: number - before[queue] for queue, number in self.ready.items() if queue in before}


async def top(
    run: Run, *, interval: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.1)] = _SECONDS
) -> View | None:
    """Show queues, rates, nodes, blocked keys and dead letters on one screen, until Ctrl-C; in a pipe once."""
    rates = _Rates()
    if not run.output.draws:
        return await _look(run, rates)
    await run.output.watch(partial(_look, run, rates), interval, full_screen=True)
    return None


async def _look(run: Run, rates: _Rates) -> View:
    async with run.outbox.engine.connect() as connection:
        activity = rates.of_table(await read_activity(connection, run.outbox.tables.outbox))
    queues = await run.operations.queues()
    changes = rates.of_queues(queues)
    nodes = await run.operations.nodes()
    keys = (await run.operations.keys(limit=_SHOWN)).items
    dead = await run.operations.dead_letter_groups()
    shown = [_row(queue, changes.get(queue.queue)) for queue in queues]
    newest = sorted(dead, key=_last_failed, reverse=True)[:_SHOWN]
    parts: dict[str, View] = {
        "head": Sentence(_head(activity, sum(bool(node.alive) for node in nodes))),
        "queues": Rows(_QUEUES, shown, "The outbox is empty."),
        "nodes": Rows(NODES, nodes, NO_NODES, "Nodes:"),
    }
    if keys:
        parts["keys"] = Rows(_KEYS, keys, title="Keys that wait:")
    if newest:
        parts["dead_letters"] = Rows(_DEAD, newest, title="Dead letters:")
    data = {"activity": activity, "queues": queues, "nodes": nodes, "keys": keys, "dead_letters": newest}
    return Views(parts, data)


def _last_failed(group: DeadLetterGroup) -> datetime:
    return group.last_failed_at


def _row(queue: QueueOverview, change: int | None) -> SimpleNamespace:
    """Return a queue with what changed since the last look."""
    shown = {each: getattr(queue, each) for each in QueueOverview.__dataclass_fields__}
    sign = None if change is None else f"{change:+,}" if change else "0"
    return SimpleNamespace(**shown | {"change": sign, "paused": None if queue.paused is None else True})


def _head(activity: dict[str, Any], living: int) -> str:
    came, went = (activity[name] for name in ("in_per_second", "out_per_second"))
    rates = "" if came is None or went is None else f"  in {came:,.0f}/s  out {went:,.0f}/s"
    return f"{as_time(activity['at'])}{rates}  {living} node{'' if living == 1 else 's'} alive"

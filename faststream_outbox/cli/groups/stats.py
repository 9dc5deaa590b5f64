"""`faststream-outbox stats`: all figures of all queues."""

from collections.abc import Sequence
from dataclasses import fields
from types import SimpleNamespace
from typing import Any, Final

from faststream_outbox.cli.operating.command import Run
from faststream_outbox.cli.operating.views import QUEUE, Rows, View, Views, number
from faststream_outbox.operations import Count, QueueOverview

_FIGURES: Final = (
    QUEUE,
    number("ready"),
    number("scheduled", rare=True),
    number("retrying", rare=True, spare=1),
    number("in flight"),
    number("expired", rare=True),
    number("blocked", rare=True, spare=2),
    number("blocked keys", rare=True),
    number("parked keys", rare=True, spare=3),
    number("dead", rare=True),
    number("oldest", "oldest_claimable_age"),
)


async def stats(run: Run) -> View:
    """Count the messages of every queue by state, and all of them together."""
    queues = await run.operations.queues()
    total = _total(queues)
    rows = [*queues, SimpleNamespace(queue="total", **total)] if queues else []
    return Views({"queues": Rows(_FIGURES, rows, "The outbox is empty.")}, {"queues": queues, "total": total})


def _total(queues: Sequence[QueueOverview]) -> dict[str, Any]:
    """Return the sums of all queues; a sum with a part that is a lower bound is one, too."""
    counts = [each.name for each in fields(QueueOverview) if each.type is Count]
    ages = [queue.oldest_claimable_age for queue in queues if queue.oldest_claimable_age is not None]
    sums = {name: _sum([getattr(queue, name) for queue in queues]) for name in counts}
    return {**sums, "oldest_claimable_age": max(ages, default=None)}


def _sum(counts: Sequence[Count]) -> Count:
    return Count(sum(each.number for each in counts), any(each.capped for each in counts))

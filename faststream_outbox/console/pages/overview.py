"""The overview: all queues at a glance."""

from typing import Any

from faststream_outbox.console.site import depth_of
from faststream_outbox.console.visit import Shown, Visit
from faststream_outbox.operations import Count, QueueOverview


async def overview(visit: Visit) -> Shown:
    """Show every queue: what waits in it, how that changes, and whether it is paused."""
    queues, history = await visit.operations.queues(session=visit.session), visit.site.history
    history.add(queues, await visit.operations.traffic(session=visit.session))
    found = [each for each in queues if visit.access.sees(each.queue)]
    into, out = history.rates()
    values: dict[str, Any] = {
        "queues": found,
        "sums": {
            name: _sum(found, name)
            for name in ("ready", "in_flight", "expired", "blocked", "scheduled", "blocked_keys", "parked_keys", "dead")
        },
        "oldest": max(
            (each.oldest_claimable_age for each in found if each.oldest_claimable_age is not None), default=None
        ),
        "deepest": max((depth_of(each) for each in found), default=0),
        "depths": {each.queue: history.depths(each.queue) for each in found},
        "into": into,
        "out": out,
        "has_dead_letters": visit.operations.has_dead_letters,
        "has_control": visit.operations.control_table is not None,
        "examined": visit.site.examined,
    }
    return Shown("overview.html", values)


def _sum(queues: list[QueueOverview], name: str) -> Count:
    counts = [getattr(each, name) for each in queues]
    return Count(sum(each.number for each in counts), any(each.capped for each in counts))

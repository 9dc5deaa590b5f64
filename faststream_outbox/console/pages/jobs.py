"""One act: how far it has come, and what it did."""

from typing import Final

from faststream_outbox.console.errors import MissingError
from faststream_outbox.console.visit import Shown, Visit

# The entry of the menu that an act belongs to, by what it acts on.
_NAV: Final = {"dead letter": "dead-letters", "key": "keys", "timer": "timers"}


async def job(visit: Visit) -> Shown:
    """Show the progress of an act, or its result with a link to the audit."""
    found = visit.site.jobs.get(str(visit.path["id"]))
    if found is None or (found.user != visit.access.user and visit.access.queues is not None):
        raise MissingError(
            "This act is not known here: it ended long ago, or runs in another process of the application. The audit "
            "has what it did."
        )
    return Shown("job.html", {"job": found, "nav": _NAV.get(found.noun, "")})

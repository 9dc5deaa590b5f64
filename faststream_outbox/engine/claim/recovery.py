"""Recovers the rows of processes that died: makes them free again, so that they are claimed like others."""

import math
import time
from typing import Final

from faststream_outbox.engine.claim.ledger_claims import LedgerClaims
from faststream_outbox.engine.context import EngineContext

# After a death, rows are looked for again and again for a while: those that the dead process had claimed ahead of this
# one come into reach later.
_AFTER_DEATH: Final = 10.0
# The time between looks is doubled while they find nothing: a node that stopped gave its rows back.
_FIRST_WAIT: Final = 0.5


class Recovery:
    """Ends the leases of dead nodes, and frees rows whose lease is over for the first time.

    A row that comes back a second time is a suspect, and is left to `Suspects`.
    """

    def __init__(self, context: EngineContext, claims: LedgerClaims) -> None:
        self._watch = context.store.nodes.watch
        self._claims = claims
        self._deaths_seen = 0
        self._ends_at = -math.inf
        self._not_before = -math.inf
        self._ran_at = -math.inf
        self._key_met = False
        self._wait = _FIRST_WAIT

    def note_met(self) -> None:
        """Note that a claim met a key whose lease is over."""
        self._key_met = True

    @property
    def is_due(self) -> bool:
        """Whether to recover rows now, because a node died or a claim met a key whose lease is over."""
        return time.monotonic() >= self.due_at

    @property
    def due_at(self) -> float:
        """When to recover rows again, on the monotonic clock; infinity while nothing has happened."""
        if self._watch.found != self._deaths_seen:
            self._deaths_seen = self._watch.found
            self._ends_at = time.monotonic() + _AFTER_DEATH
            self._not_before, self._wait = -math.inf, _FIRST_WAIT
            self._claims.restart_keys()
        if self._key_met:
            return self._ran_at + _FIRST_WAIT
        return self._not_before if self._not_before < self._ends_at else math.inf

    async def run(self) -> bool:
        """Recover what can be recovered now; return whether there was something."""
        self._key_met = False
        recovered = await self._claims.recover()
        self._ran_at = time.monotonic()
        self._not_before = self._ran_at + (_FIRST_WAIT if recovered else self._wait)
        self._wait = _FIRST_WAIT if recovered else min(2 * self._wait, _AFTER_DEATH)
        return recovered

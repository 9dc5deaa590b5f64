"""Nodes: which process holds a lease, and which processes are alive.

A node is one broker in one process. Its id is in the tokens of its leases, and its listening connection holds an
advisory lock on the id. Postgres releases the lock when the process dies, so other nodes can end its leases after
`GRACE` seconds. No table is needed, and no heartbeat is written.

A living node that lost its connection starts no handler once others may take it for dead: it counts `GRACE` seconds
from when it last saw its lock, and the others count them from when they first miss it.
"""

import math
import os
import secrets
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Final
from uuid import UUID, uuid4

from faststream_outbox.storage.clock import lease_now

# How long the lock of a node must be missing until the node is dead. Long enough to reconnect after a failover.
GRACE: Final = 5.0
# How often a node looks at the locks of all nodes.
LOOK_EVERY: Final = 1.0
# Looks that are further apart prove nothing, because a lock may have come and gone between them.
LONGEST_GAP: Final = 2.5
# A node stops starting handlers this much earlier than others may take its rows: clocks may run at different speeds.
_MARGIN: Final = 0.25

# The upper 16 bits of the lock of every node; the lower 48 are the node's id.
LOCK_TAG: Final = 0x6F62
_ID_BITS: Final = 48
_RANDOM_BITS: Final = 62
# RFC 9562: version 8 is for layouts of one's own, and the variant is 0b10.
_VERSION: Final = 8 << 76
_VARIANT: Final = 0b10 << 62

# The holder of a row whose token names no node.
NO_NODE: Final = "unknown"


def node_of(token: UUID) -> int | None:
    """Return the id of the node that claimed with this token; None for a token without one."""
    value = token.int
    return value >> 80 if value >> 76 & 0xF == 8 else None  # noqa: PLR2004 - the version


def node_name(node_id: int) -> str:
    """Return an id as people and statements see it: the beginning of the text of its tokens."""
    digits = f"{node_id:012x}"
    return f"{digits[:8]}-{digits[8:]}"


def holder_name(token: UUID | None) -> str | None:
    """Return the name of the node that holds a row, "unknown" if its token has none; None if the row is free."""
    if token is None:
        return None
    node = node_of(token)
    return NO_NODE if node is None else node_name(node)


class Node:
    """This process: makes the tokens of its leases, and knows whether other processes may take its rows.

    Without the lock (no listening connection yet, or a pooler without sessions) tokens have no id, and leases alone
    decide.
    """

    def __init__(self) -> None:
        self.id, self._process = secrets.randbits(_ID_BITS), os.getpid()
        # Whether the listening connection holds the lock, as far as is known.
        self.locked = False
        # Until when no other node can take this one for dead, by the clock of leases; infinity while it has no lock to
        # lose. Rows that were claimed before `_owned_since` may have been taken by others meanwhile.
        self.sure_until = math.inf
        self._owned_since = -math.inf
        # When the lock was taken again, until every other node has had the time to see it.
        self._retaken_at: float | None = None

    @property
    def lock(self) -> int:
        """The number of the advisory lock."""
        return LOCK_TAG << _ID_BITS | self.id

    @property
    def name(self) -> str:
        """The id as people see it."""
        return node_name(self.id)

    def begin(self) -> None:
        """Draw another id if this process was forked since: one lock for two processes would hide the death of one."""
        if self._process != os.getpid():
            self.id, self._process, self.locked = secrets.randbits(_ID_BITS), os.getpid(), False
            self.sure_until, self._owned_since, self._retaken_at = math.inf, -math.inf, None

    def make_token(self) -> UUID:
        """Return the token of a new claim."""
        if not self.locked or lease_now() >= self.sure_until:
            return uuid4()
        bits = secrets.randbits(_RANDOM_BITS + 12)
        low, middle = bits & (1 << _RANDOM_BITS) - 1, bits >> _RANDOM_BITS
        return UUID(int=self.id << 80 | _VERSION | middle << 64 | _VARIANT | low)

    def note_locked(self, *, sent: float, received: float) -> None:
        """Note that a new connection has taken the lock; sent and received by the clock of leases."""
        self.locked = True
        if received < self.sure_until < math.inf:
            self._retaken_at = received  # in time: no other node has missed the lock for long
            return
        if self.sure_until < math.inf:
            self._owned_since = received
        self._retaken_at = None
        self._confirm(sent)

    def note_seen(self, sent: float) -> None:
        """Note that the connection that holds the lock has answered a question that was sent then."""
        if self._retaken_at is None or sent >= self._retaken_at + LONGEST_GAP:
            self._retaken_at = None
            self._confirm(sent)

    def _confirm(self, at: float) -> None:
        self.sure_until = at + GRACE - _MARGIN

    def note_lost(self) -> None:
        """Note that the connection that held the lock is lost."""
        self.locked = False

    def may_doubt(self, claimed_at: float, now: float) -> bool:
        """Return whether `vouches_for` may say no of a row that was claimed then; a cheap question for every row."""
        return now >= self.sure_until or claimed_at < self._owned_since

    def vouches_for(self, token: UUID, claimed_at: float, now: float) -> bool:
        """Return whether no other node can have taken a row for that of a dead process."""
        return not self.may_doubt(claimed_at, now) or node_of(token) is None


@dataclass(frozen=True, slots=True)
class Look:
    """The nodes whose locks were there, at a time of the database; sent and received by the clock of leases."""

    names: frozenset[str]
    database_time: float
    sent: float
    received: float


@dataclass(frozen=True, slots=True)
class Deaths:
    """What claims may conclude: leases taken before this time of the database, by other nodes than these, are over."""

    claimed_before: float = -math.inf
    alive: tuple[str, ...] = ()


NO_DEATHS: Final = Deaths()


class Watch:
    """Concludes from looks at the locks, on one connection, which nodes are dead."""

    def __init__(self) -> None:
        self._looks: deque[Look] = deque()
        self.deaths = NO_DEATHS
        # How often nodes were found dead: more often than before says that there is something to recover.
        self.found = 0

    def reset(self) -> None:
        """Forget all looks: the connection is a new one, and the server may be."""
        self._looks.clear()
        self.deaths = NO_DEATHS

    @property
    def concludes_at(self) -> float:
        """When a look can next find nodes dead, by the clock of leases; infinity while no lock is missing.

        The rows of a dead process wait for that look, so it must not be a whole interval late.
        """
        if self._looks and self.deaths is NO_DEATHS:
            return self._looks[0].received + GRACE
        missed = (later for earlier, later in pairwise(self._looks) if earlier.names - later.names)
        return min((look.received + GRACE for look in missed), default=math.inf)

    def add(self, look: Look) -> bool:
        """Add a look; return whether nodes may have been found dead that were not before."""
        if self._looks and look.received - self._looks[-1].sent > LONGEST_GAP:
            self.reset()
        looks, before = self._looks, self.deaths
        looks.append(look)
        if look.sent - looks[0].received < GRACE:
            return False
        while len(looks) > 1 and look.sent - looks[1].received >= GRACE:
            looks.popleft()
        alive = frozenset[str]().union(*(each.names for each in looks))
        self.deaths = Deaths(looks[0].database_time, tuple(sorted(alive)))
        # The first conclusion is about all nodes that died before this connection was opened.
        found = before is NO_DEATHS or not alive.issuperset(before.alive)
        self.found += found
        return found


class Served:
    """The queues that this node reads, and how it shares their keys with others: for people."""

    def __init__(self) -> None:
        self._parts: list[tuple[tuple[str, ...], str]] = []

    def add(self, queues: Iterable[str], ordering: str) -> Callable[[], None]:
        """Add the queues of a subscriber or a relay; return a function that removes them again, once."""
        part = (tuple(queues), ordering)
        self._parts.append(part)

        def remove() -> None:
            with suppress(ValueError):
                self._parts.remove(part)

        return remove

    @property
    def queues(self) -> tuple[str, ...]:
        """The names of the queues."""
        return tuple(sorted({queue for queues, _ in self._parts for queue in queues}))

    @property
    def orderings(self) -> str:
        """The names of the strategies; nearly always there is one."""
        return ", ".join(sorted({ordering for _, ordering in self._parts}))


class Nodes:
    """This node, and what it knows of the others."""

    def __init__(self) -> None:
        self.own = Node()
        self.served = Served()
        self.watch = Watch()
        # Whether the first look is under way. What is claimed before it is recovered by its lease alone.
        self.lock_expected = False

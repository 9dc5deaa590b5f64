"""What goes wrong, and when: kills, pauses longer than a lease, terminated connections, a server that crashes."""

import random
import signal
import time
from collections import Counter
from collections.abc import Callable

import psycopg

from tests.soak.process_group import Member, ProcessGroup
from tests.soak.settings import Settings

_BACKENDS = """SELECT pid FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend' ORDER BY pid"""
# Nodes whose lock is missing for 5 seconds are dead for others; a node must stop starting handlers before that.
_ISOLATED_SECONDS = 9.0
_LISTENING = "SELECT DISTINCT application_name FROM pg_stat_activity WHERE application_name LIKE 'faststream-outbox %'"
_CUT = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = ANY (%s::text[])"


class Faults:
    """Strikes at random moments; `restart` crashes the server and starts it again, where it is ours to crash."""

    def __init__(
        self, settings: Settings, dsn: str, processes: ProcessGroup, restart: Callable[[], None] | None = None
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._settings = settings
        self._dsn = dsn
        self._processes = processes
        self._restart = restart
        self._rng = random.Random(f"{settings.seed}/faults")
        self._paused: dict[str, tuple[Member, float]] = {}
        # Until when each listening connection is cut, by the name that it shows.
        self._isolated: dict[str, float] = {}
        self._deck: list[Callable[[], None]] = []
        self._next = self._when()

    def tick(self) -> None:
        """Do what is due."""
        now = time.monotonic()
        for member, until in list(self._paused.values()):
            if now >= until:
                self._resume(member)
        self._cut(now)
        if now >= self._next:
            self._strike()
            self._next = self._when()

    def stop(self) -> None:
        """No more faults: whoever is paused goes on."""
        for member, _ in list(self._paused.values()):
            self._resume(member)

    def _when(self) -> float:
        return time.monotonic() + self._rng.uniform(0.3, 1.7) * self._settings.faults.every_seconds

    def _strike(self) -> None:
        if not self._deck:
            self._deck = self._shuffled_deck()
        if self._deck:
            self._deck.pop()()

    def _shuffled_deck(self) -> list[Callable[[], None]]:
        """Cards, not dice: no kind stays away for long."""
        deck = self._cards()
        self._rng.shuffle(deck)
        return deck

    def _cards(self) -> list[Callable[[], None]]:
        rates = self._settings.faults
        restarts = rates.restart if self._restart is not None else 0
        cards = [self._kill] * rates.kill + [self._terminate] * rates.terminate + [self._pause] * rates.pause
        return cards + [self._crash] * restarts + [self._isolate] * rates.isolate

    def _kill(self) -> None:
        member = self._rng.choice(self._processes.members)
        self._paused.pop(member.name, None)
        self._processes.replace(member)
        self.counts[f"{member.role}s killed"] += 1

    def _pause(self) -> None:
        free = [member for member in self._processes.members if member.name not in self._paused]
        # Somebody goes on, or the round would be a pause.
        if len(free) < 2:
            return
        member = self._rng.choice(free)
        member.signal(signal.SIGSTOP)
        seconds = self._settings.lease_seconds * self._rng.uniform(1.1, 2.0)
        self._paused[member.name] = member, time.monotonic() + seconds
        self.counts[f"{member.role}s paused"] += 1

    def _resume(self, member: Member) -> None:
        self._paused.pop(member.name, None)
        member.signal(signal.SIGCONT)

    def _terminate(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            pids = [pid for (pid,) in connection.execute(_BACKENDS)]
            # A few in the middle of their work, then all, those included that lie idle in a pool.
            everybody = self.counts["terminations"] % 2
            chosen = pids if everybody else self._rng.sample(pids, min(len(pids), 3))
            connection.execute("SELECT pg_terminate_backend(p) FROM unnest(%s::int[]) AS p", [chosen])
        self.counts["terminations"] += 1
        self.counts["connections terminated"] += len(chosen)

    def _isolate(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            names = [name for (name,) in connection.execute(_LISTENING)]
        if names:
            self._isolated[self._rng.choice(names)] = time.monotonic() + _ISOLATED_SECONDS
            self.counts["workers isolated"] += 1

    def _cut(self, now: float) -> None:
        """Cut the listening connections of the processes that are isolated."""
        self._isolated = {name: until for name, until in self._isolated.items() if until > now}
        if self._isolated:
            with psycopg.connect(self._dsn, autocommit=True) as connection:
                connection.execute(_CUT, [list(self._isolated)])

    def _crash(self) -> None:
        if self._restart is not None:
            self._restart()
            self.counts["server crashes"] += 1

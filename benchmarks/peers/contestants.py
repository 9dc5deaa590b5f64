"""Who takes part, where each is installed, and with which settings.

Peers get the best settings that were found, and their defaults beside those where a target names them. What was tried,
on drains of 10,000 in two rounds (800 for Procrastinate); where several were equal but for noise, one was taken:

- the original: 1, 2, 4 and 8 workers; fetches and flushes of 100, 500 and 1,000. From 500 on all are equal;
- PgQueuer: batches of 10 (its default), 100, 250, 500, 1,000 and 2,000. From 100 on its rate is equal, and from 500 on
  what it costs Postgres; whether its log is aggregated makes no difference that was seen;
- Procrastinate: 1, 4, 10 and 30 jobs side by side, with as many connections or 4; jobs deleted, or kept.

For retries the original takes part with short sleeps between its polls as well, and with more workers; Procrastinate
with short sleeps, because it is slower with its own.
All of them run on the same event loop: asyncio's, and in a full run once more on uvloop, which PgQueuer's command line
uses.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
PROGRAMS: Final = Path(__file__).resolve().parent / "programs"
INSTALL: Final = "make peers"


@dataclass(frozen=True)
class Contestant:
    """A library, or the lack of one: its program, its environment, and where its messages lie."""

    name: str
    program: str
    venv: str
    table: str
    # What of its table is still to be done.
    unsettled: str = "true"
    # Which version is expected; ours is the one of this directory.
    version: str | None = None

    @property
    def ours(self) -> bool:
        """Whether it may import this directory."""
        return self.version is None

    @property
    def python(self) -> Path:
        """The interpreter of its environment; for ours this one does as well."""
        return Path(sys.executable) if self.ours and not self._ready else self._environment / "bin" / "python"

    @property
    def installed(self) -> bool:
        """Whether it can take part."""
        return self.ours or self._ready

    @property
    def _environment(self) -> Path:
        return ROOT / ".venvs" / self.venv

    @property
    def _ready(self) -> bool:
        """Whether `make peers` came to an end there."""
        return (self._environment / ".ready").exists()

    @property
    def path(self) -> str:
        """What its program may import beside its environment."""
        return f"{PROGRAMS}:{ROOT}" if self.ours else str(PROGRAMS)


OURS: Final = Contestant("ours", "outbox.py", "peer-ours", "peers_ours")
BARE: Final = Contestant("bare asyncpg", "bare.py", "peer-ours", "peers_bare")
ORIGINAL: Final = Contestant("original", "outbox.py", "peer-original", "peers_original", version="0.19.0")
PGQUEUER: Final = Contestant("pgqueuer", "pgq.py", "peer-pgqueuer", "pgqueuer", version="1.6.0")
PROCRASTINATE: Final = Contestant(
    "procrastinate",
    "procrast.py",
    "peer-procrastinate",
    "procrastinate_bench.procrastinate_jobs",
    "status IN ('todo', 'doing')",
    version="3.10.0",
)
FASTSTREAM: Final = Contestant("FastStream alone", "alone.py", "peer-ours", "peers_none")
SESSION: Final = Contestant("AsyncSession alone", "session.py", "peer-ours", "peers_session")
ALL: Final = (OURS, BARE, FASTSTREAM, SESSION, ORIGINAL, PGQUEUER, PROCRASTINATE)


@dataclass(frozen=True)
class Entry:
    """A contestant with its settings, as one line of a table."""

    contestant: Contestant
    settings: str = ""
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    uvloop: bool = False

    def __str__(self) -> str:
        parts = [self.contestant.name, self.settings, "uvloop" if self.uvloop else ""]
        return ", ".join(part for part in parts if part)


_QUICK_ORIGINAL: Final = {"max_workers": 2, "fetch_batch_size": 500, "terminal_flush_batch_size": 500}
# Aggregating its log is what an operator wants, and every 30 s: off, so that it does not fall into one turn.
_QUICK_PGQUEUER: Final = {"batch_size": 500, "log_aggregation_interval": 0}
_QUICK_PROCRASTINATE: Final = {"concurrency": 4, "pool": 4, "delete_jobs": "always"}

OURS_DEFAULTS: Final = Entry(OURS)
BARE_LOOP: Final = Entry(BARE)
FASTSTREAM_ALONE: Final = Entry(FASTSTREAM)
SESSION_ALONE: Final = Entry(SESSION)
ORIGINAL_DEFAULTS: Final = Entry(ORIGINAL, "defaults", {"log": True})
ORIGINAL_BEST: Final = Entry(ORIGINAL, "best", {"subscriber": _QUICK_ORIGINAL})
PGQUEUER_DEFAULTS: Final = Entry(PGQUEUER, "defaults")
PGQUEUER_BEST: Final = Entry(PGQUEUER, "best", _QUICK_PGQUEUER)
PROCRASTINATE_BEST: Final = Entry(PROCRASTINATE, "best", _QUICK_PROCRASTINATE)


def unset(entry: Entry) -> Entry:
    """Leave the settings of a worker out: where they make no difference, or defaults are the best."""
    return Entry(entry.contestant)

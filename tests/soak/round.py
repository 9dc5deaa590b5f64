"""One round: processes at work, faults among them, then peace until the tables are empty, then the check."""

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import psycopg
from sqlalchemy import create_engine

from faststream_outbox.embedded import Database
from faststream_outbox.storage.clock import lease_now
from tests.soak.checker import CLOCK_SLACK, FinalState, Left, Violation
from tests.soak.faults import Faults
from tests.soak.history import Event, HistoryReader
from tests.soak.least import Least
from tests.soak.process_group import ProcessGroup
from tests.soak.row_histories import assemble, lines_of
from tests.soak.settings import METADATA, Settings
from tests.soak.tally import Tally

TICK: Final = 0.05
POLL: Final = 0.5
MAX_STORIES: Final = 20
# Of a settings' patience with a table that is being emptied, on a machine that has other things to do.
LONGEST_DRAIN: Final = 4

# What explains rows that nobody takes: the first of each key with its lease, who is connected, and who has which shard.
_LEFT: Final = (
    """SELECT DISTINCT ON (queue, entity_key) 'row', queue, entity_key, id, acquired_token,
       lease_expires_at - now() AS lease, next_attempt_at - now() AS due, deliveries_count, attempts_count
  FROM outbox ORDER BY queue, entity_key, id LIMIT 20""",
    """SELECT 'connection', pid, application_name, state, wait_event, now() - xact_start AS open, left(query, 80)
  FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() ORDER BY pid""",
    "SELECT 'shard', queue, shard, holder, token, lease_expires_at - now() AS lease FROM outbox_shards ORDER BY 2, 3",
)

Progress = Callable[[Counter[str]], None]
# Whether a round can end early, from what is in the logs so far.
Enough = Callable[[Sequence[Event]], bool]


@dataclass(frozen=True)
class Result:
    """What a round did, what it met, what it broke."""

    seed: int
    violations: list[Violation]
    counts: Counter[str]
    faults: Counter[str]
    drain_seconds: float
    # The histories of rows that broke a rule, for the developer who has to explain it.
    stories: dict[str, list[str]]


class Round:
    """One round on an empty outbox."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        *,
        restart: Callable[[], None] | None = None,
        progress: Progress = lambda _: None,
        enough: Enough = lambda _: False,
        least: Least | None = None,
    ) -> None:
        self._settings = settings
        self._dsn = database.dsn
        self._restart = restart
        self._progress = progress
        self._enough = enough
        self._least = least
        self._reader = HistoryReader(settings.directory)
        self._tally = Tally()
        self._left: list[str] = []

    def run(self, seconds: float) -> Result:
        """Work for so many seconds, drain, check."""
        offset = time.time() - lease_now()
        with ProcessGroup(self._settings) as processes:
            faults = self.make_faults(processes)
            try:
                self._work(seconds, faults)
            finally:
                faults.stop()
            processes.calm_down()
            complaints = processes.stop("producer")
            drain_began = time.monotonic()
            self._drain()
            drained = time.monotonic() - drain_began
            complaints += processes.stop("worker")
        self.look_around()
        self._poll()
        # A clock that was set during the round is an excuse for whatever went by it.
        slack = CLOCK_SLACK + abs(time.time() - lease_now() - offset)
        histories = assemble(self._reader.events)
        violations = self._settings.check(histories, self.final_state(), slack)
        violations += [Violation("crash", "", complaint) for complaint in complaints]
        stories = {v.uid: lines_of(histories.rows[v.uid]) for v in violations[:MAX_STORIES] if v.uid in histories.rows}
        if self._left and violations:
            stories = {"what was left, while all processes still ran": self._left, **stories}
        return Result(self._settings.seed, violations, self.counts(), faults.counts, drained, stories)

    def make_faults(self, processes: ProcessGroup) -> Faults:
        """Make what goes wrong."""
        return Faults(self._settings, self._dsn, processes, self._restart)

    def counts(self) -> Counter[str]:
        """Count what was done so far."""
        return self._tally.counts

    def look_around(self) -> None:
        """Take down what can be seen when everybody has gone, apart from the tables."""

    def _work(self, seconds: float, faults: Faults) -> None:
        began, poll_at = time.monotonic(), 0.0
        end = began + seconds
        while (now := time.monotonic()) < end:
            faults.tick()
            if now >= poll_at:
                self._poll()
                if self._enough(self._reader.events):
                    return
                least = self._least
                if least and now >= began + least.seconds and not least.lacks(self.counts(), faults.counts):
                    return
                # A history that grows takes longer to look at each time, and there is other work to do.
                poll_at = time.monotonic() + max(POLL, time.monotonic() - now)
            time.sleep(TICK)

    def _drain(self) -> None:
        """Wait until the table is empty, or nothing has gone from it for so long that the rest is stuck."""
        began = progress = time.monotonic()
        patience, least = self._settings.drain_seconds, float("inf")
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            while (now := time.monotonic()) < min(progress + patience, began + patience * LONGEST_DRAIN):
                [waiting] = connection.execute("SELECT count(*) FROM outbox").fetchone() or [0]
                if waiting == 0:
                    return
                if waiting < least:
                    progress, least = now, waiting
                self._poll()
                time.sleep(TICK)
            for query in _LEFT:
                self._left += [" ".join(map(str, record)) for record in connection.execute(query)]

    def _poll(self) -> None:
        self._tally.add(self._reader.poll())
        self._progress(self._tally.counts)

    def final_state(self) -> FinalState:
        """Read what is left in the tables."""
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            outbox = connection.execute("SELECT payload, id, deliveries_count FROM outbox").fetchall()
            dead = connection.execute("SELECT payload, original_id, deliveries_count FROM outbox_dlq").fetchall()
        return FinalState(list(map(_left, outbox)), list(map(_left, dead)))


def run_round(
    settings: Settings,
    database: Database,
    seconds: float,
    *,
    restart: Callable[[], None] | None = None,
    progress: Progress = lambda _: None,
    enough: Enough = lambda _: False,
    least: Least | None = None,
    make: Callable[..., Round] = Round,
) -> Result:
    """Make the tables anew and run a round, for so long or until it did enough; its log is removed with it."""
    engine = create_engine(database.url("psycopg"))
    METADATA.drop_all(engine)
    METADATA.create_all(engine)
    engine.dispose()
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        for statement in settings.prepare:
            connection.execute(statement)
    with tempfile.TemporaryDirectory(prefix="outbox-soak-") as directory:
        until = time.monotonic() + seconds + settings.drain_seconds * LONGEST_DRAIN + 60.0
        settings = replace(settings, directory=Path(directory), until=until)
        return make(settings, database, restart=restart, progress=progress, enough=enough, least=least).run(seconds)


def _left(row: tuple[bytes, int, int]) -> Left:
    payload, row_id, deliveries = row
    return Left(bytes(payload).decode(), row_id, deliveries)

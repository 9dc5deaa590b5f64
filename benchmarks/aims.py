"""Where we aim, P1 to P12, each in one respect or several; and how a run stands to them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from benchmarks.results import Result, Target, bounds, number

TITLES: Final = {
    "P1": "drain, one message a call, our defaults",
    "P2": "drain, batches of 100 and 500",
    "P3": "every message fails twice",
    "P4": "publish",
    "P5": "idle latency, commit to handler",
    "P6": "claim of 100 rows, to one of 10,000 ready",
    "P7": "due in 1 s on an idle queue, ms late at p99",
    "P8": "rows with keys, to rows without",
    "P9": "relay of rows with keys to Kafka",
    "P10": "60 s of churn with a held snapshot",
    "P11": "connections, for any number of workers",
    "P12": "two processes, to one",
}


@dataclass(frozen=True, slots=True)
class Aim:
    """One target of one of P1 to P12, and the scenario that measures it."""

    title: str
    respect: str
    scenario: str
    at_least: float | None = None
    at_most: float | None = None

    def target(self, what: str, value: float) -> Target:
        """Hold what was measured against it."""
        return Target(what, value, at_least=self.at_least, at_most=self.at_most, aim=self.title, respect=self.respect)

    def worst(self, targets: Iterable[Target]) -> Target | None:
        """Find what stands worst to it among all that was measured."""
        mine = [each for each in targets if (each.aim, each.respect) == (self.title, self.respect)]
        worst = min if self.at_least is not None else max
        return worst(mine, key=lambda each: each.value, default=None)


DRAIN_PGQUEUER: Final = Aim("P1", "to pgqueuer at its best", "peers-drain", at_least=1.2)
DRAIN_ORIGINAL: Final = Aim("P1", "to the original at its best", "peers-drain", at_least=2.5)
DRAIN_DEFAULTS: Final = Aim("P1", "to the original's defaults", "peers-drain", at_least=15)
BATCH_RATE: Final = Aim("P2", "to the lease design by hand", "batch", at_least=1)
BATCH_WAL: Final = Aim("P2", "WAL B a message", "batch", at_most=800)
RETRIES: Final = Aim("P3", "to the original at its best", "peers-retries", at_least=10)
PUBLISH_SESSION: Final = Aim("P4", "one in a session, to a plain INSERT", "peers-publish", at_least=0.95)
PUBLISH_TEN: Final = Aim("P4", "ten collected, to the original", "peers-publish", at_least=3.3)
PUBLISH_TEN_PLAIN: Final = Aim("P4", "ten collected, to a plain INSERT of ten", "peers-publish", at_least=0.9)
PUBLISH_BARE: Final = Aim("P4", "asyncpg's connection, to a bare INSERT", "peers-publish", at_least=0.85)
PUBLISH_ONE: Final = Aim("P4", "asyncpg's connection, 1 client, to the original", "peers-publish", at_least=2.2)
PUBLISH_SIXTEEN: Final = Aim("P4", "asyncpg's connection, 16 clients, to the original", "peers-publish", at_least=3)
PUBLISH_BATCHES: Final = Aim("P4", "batches of 1,000, to the original", "peers-publish", at_least=3)
LATENCY_P50: Final = Aim("P5", "p50 to bare asyncpg", "peers-latency", at_most=1.4)
LATENCY_P99: Final = Aim("P5", "p99 to bare asyncpg", "peers-latency", at_most=2)
LATENCY_PEERS: Final = Aim("P5", "p50 and p99 to the peers'", "peers-latency", at_most=1)
CLAIM_READY: Final = Aim("P6", "1 M ready", "claim", at_most=1.3)
CLAIM_TIMERS: Final = Aim("P6", "1 M future timers", "claim", at_most=1.3)
CLAIM_LEASES: Final = Aim("P6", "100 K live leases", "claim", at_most=1.3)
TIMER: Final = Aim("P7", "timer", "peers-timers", at_most=50)
RETRY: Final = Aim("P7", "retry", "peers-timers", at_most=50)
ORDERED: Final = Aim("P8", "10 K rows, 1 and 4 processes", "ordered", at_least=0.8)
ORDERED_BACKLOG: Final = Aim("P8", "1 M rows", "ordered", at_least=0.8)
# As flat as a claim has to be: 1 ÷ 1.3.
ORDERED_FLAT: Final = Aim("P8", "1 M rows, to as many of fewer", "ordered", at_least=0.77)
RELAY_RATE: Final = Aim("P9", "messages a second", "relay", at_least=10_000)
RELAY_RATIO: Final = Aim("P9", "to one publish a row", "relay", at_least=5)
CHURN: Final = Aim("P10", "the last 10 s to the first 10 s", "snapshot", at_least=0.9)
# Two for a subscriber, and one for its broker.
CONNECTIONS: Final = Aim("P11", "one broker with one subscriber", "peers-connections", at_most=3)
PROCESSES: Final = Aim("P12", "ours", "peers-drain", at_least=1.5)

AIMS: Final = (
    *(DRAIN_PGQUEUER, DRAIN_ORIGINAL, DRAIN_DEFAULTS, BATCH_RATE, BATCH_WAL, RETRIES),
    *(PUBLISH_SESSION, PUBLISH_TEN, PUBLISH_TEN_PLAIN, PUBLISH_BARE, PUBLISH_ONE, PUBLISH_SIXTEEN, PUBLISH_BATCHES),
    *(LATENCY_P50, LATENCY_P99, LATENCY_PEERS),
    *(CLAIM_READY, CLAIM_TIMERS, CLAIM_LEASES, TIMER, RETRY, ORDERED, ORDERED_BACKLOG, ORDERED_FLAT),
    *(RELAY_RATE, RELAY_RATIO, CHURN, CONNECTIONS, PROCESSES),
)


def summary(results: Mapping[str, Sequence[Result]]) -> str:
    """Write a table of what those scenarios were asked for: what was measured, the worst where there is more."""
    targets = [target for tables in results.values() for table in tables for target in table.targets]
    lines = ["| | | target | measured | |", "|---|---|---:|---:|---|"]
    shown = ""
    for aim in [aim for aim in AIMS if aim.scenario in results]:
        found = aim.worst(targets)
        title = f"{aim.title}: {TITLES[aim.title]}" if aim.title != shown else ""
        measured = "" if found is None else number(found.value)
        cells = (title, aim.respect, bounds(aim.at_least, aim.at_most), measured, _verdict(found))
        lines.append(f"| {' | '.join(cells)} |")
        shown = aim.title
    return "\n".join(lines) if shown else ""


def _verdict(found: Target | None) -> str:
    return "not measured" if found is None else "met" if found.holds else "**MISSED**"

"""All scenarios, in the order in which they run; add a new one here."""

from typing import Final

from benchmarks import (
    batch,
    broker,
    claim,
    console,
    django_publish,
    drain,
    fanout,
    fast_path,
    insert,
    keys,
    memory,
    operations,
    ordered,
    pause,
    recovery,
    relay,
    scale,
    settle,
    snapshot,
    strategies,
)
from benchmarks.peers import backlog as peers_backlog
from benchmarks.peers import churn as peers_churn
from benchmarks.peers import connections as peers_connections
from benchmarks.peers import drain as peers_drain
from benchmarks.peers import latency as peers_latency
from benchmarks.peers import publish as peers_publish
from benchmarks.peers import retries as peers_retries
from benchmarks.peers import timers as peers_timers
from benchmarks.scenario import Scenario

SCENARIOS: Final[dict[str, Scenario]] = {
    module.SCENARIO.name: module.SCENARIO
    for module in (
        *(claim, drain, settle, insert, snapshot, fanout, fast_path, broker, batch, keys, strategies, ordered, relay),
        *(peers_drain, peers_retries, peers_publish, peers_latency, peers_timers, peers_connections),
        *(peers_backlog, peers_churn, scale, memory, recovery, operations, console, pause, django_publish),
    )
}

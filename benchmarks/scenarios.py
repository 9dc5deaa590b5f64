"""All scenarios, in the order in which they run; whoever adds one adds it here."""

from typing import Final

from benchmarks import (
    batch,
    broker,
    claim,
    drain,
    fanout,
    insert,
    keys,
    ordered,
    relay,
    settle,
    snapshot,
    strategies,
)
from benchmarks.scenario import Scenario

SCENARIOS: Final[dict[str, Scenario]] = {
    module.SCENARIO.name: module.SCENARIO
    for module in (claim, drain, settle, insert, snapshot, fanout, broker, batch, keys, strategies, ordered, relay)
}

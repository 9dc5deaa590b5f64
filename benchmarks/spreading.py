"""How evenly keys are spread over the nodes of a relay or of subscribers, by the hash that `HashShards` uses."""

from collections.abc import Sequence
from typing import Any, Final

from benchmarks.measure import Spread
from benchmarks.results import Lines, Result
from benchmarks.scenario import Bench, Scale

NODES: Final = (2, 3, 6, 12)
SHARDS: Final = (16, 256)
# All as busy as each other; or the first one most, the second half as much, the third a third, as customers often are.
TRAFFIC: Final = {"all alike": 0, "few are busy": 1}
KEYS: Final[dict[Scale, tuple[int, ...]]] = {
    "tiny": (100, 1_000),
    "quick": (100, 1_000, 100_000),
    "full": (100, 1_000, 100_000),
}
# Other names for the keys: chance decides which meet in a shard.
_DRAWS: Final = 20

_LOADS: Final = """
SELECT draw, hashtext('key ' || draw || ' ' || n) & $3 AS shard, sum(1 / power(n, $4)) AS load
  FROM generate_series(1, $1::int) AS draw, generate_series(1, $2::int) AS n GROUP BY 1, 2"""


async def spreading(bench: Bench) -> Result:
    """Draw keys, and return how much more than its share the busiest node has."""
    lines: Lines = {}
    for traffic, skew in TRAFFIC.items():
        for keys in KEYS[bench.scale]:
            bench.say(f"spreading {keys:,} keys")
            draws = await _draw(bench.control, keys, skew)
            for shards in SHARDS:
                lines[f"{keys:,} keys, {traffic}, {shards} shards"] = {
                    f"{nodes} nodes": Spread.of([busiest(loads, shards, nodes) for loads in draws]) for nodes in NODES
                }
            hottest = 1 / sum(1 / rank**skew for rank in range(1, keys + 1))
            lines[f"{keys:,} keys, {traffic}, no shards"] = {
                f"{nodes} nodes": max(1, hottest * nodes) for nodes in NODES
            }
    note = (
        "The load of the busiest node, divided by the mean of all. Without shards every node takes any free key: only "
        "a key that is more than a node's share makes a difference. Keys are hashed as Postgres does it, "
        f"{_DRAWS} times with other names. Where few are busy, the second has half as many messages as the first, the "
        "third a third."
    )
    return Result("keys over nodes", lines, note)


async def _draw(control: Any, keys: int, skew: int) -> list[list[float]]:
    """Tell the load of each of the most shards, for each draw."""
    draws = [[0.0] * max(SHARDS) for _ in range(_DRAWS)]
    for draw, shard, load in await control.fetch(_LOADS, _DRAWS, keys, max(SHARDS) - 1, float(skew)):
        draws[draw - 1][shard] = load
    return draws


def busiest(loads: Sequence[float], shards: int, nodes: int) -> float:
    """Divide the shards among the nodes, one after the other, and compare the busiest with the mean."""
    on_node = [0.0] * nodes
    for number, load in enumerate(loads):
        on_node[number % shards % nodes] += load
    return max(on_node) * nodes / sum(on_node)

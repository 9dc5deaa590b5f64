"""Publishing: a message in each transaction, ten collected, through a driver's connection, and batches."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from benchmarks.aims import (
    PUBLISH_BARE,
    PUBLISH_BATCHES,
    PUBLISH_ONE,
    PUBLISH_SESSION,
    PUBLISH_SIXTEEN,
    PUBLISH_TEN,
    PUBLISH_TEN_PLAIN,
    Aim,
)
from benchmarks.measure import Spread, Usage, ratios, spread
from benchmarks.peers.contestants import (
    BARE_LOOP,
    ORIGINAL_BEST,
    OURS_DEFAULTS,
    PGQUEUER_BEST,
    PROCRASTINATE_BEST,
    SESSION_ALONE,
    Entry,
    unset,
)
from benchmarks.peers.stage import Stage
from benchmarks.results import Lines, Result, Target
from benchmarks.scenario import Bench, Scale, Scenario

ORIGINAL: Final = unset(ORIGINAL_BEST)
PROCRASTINATE: Final = unset(PROCRASTINATE_BEST)
ENTRIES: Final = (OURS_DEFAULTS, ORIGINAL, unset(PGQUEUER_BEST), PROCRASTINATE, SESSION_ALONE, BARE_LOOP)


@dataclass(frozen=True, slots=True)
class Way:
    """By how many clients, how many messages in a transaction, by which method; and how ours is to stand to others."""

    title: str
    clients: int
    batch: int | None
    aims: Mapping[Entry, Aim] = field(hash=False)
    entries: Sequence[Entry] = ENTRIES
    method: str = ""


_FEW: Final = (OURS_DEFAULTS, ORIGINAL, SESSION_ALONE)
_BARE: Final = (OURS_DEFAULTS, ORIGINAL, BARE_LOOP)
WAYS: Final = (
    Way("a message in each transaction, 1 client", 1, None, {SESSION_ALONE: PUBLISH_SESSION}),
    Way("a message in each transaction, 16 clients", 16, None, {SESSION_ALONE: PUBLISH_SESSION}),
    Way(
        "10 messages in each transaction, collected",
        1,
        10,
        {ORIGINAL: PUBLISH_TEN, SESSION_ALONE: PUBLISH_TEN_PLAIN},
        _FEW,
        "some",
    ),
    Way(
        "through asyncpg's connection, 1 client",
        1,
        None,
        {BARE_LOOP: PUBLISH_BARE, ORIGINAL: PUBLISH_ONE},
        _BARE,
        "bare",
    ),
    Way(
        "through asyncpg's connection, 16 clients",
        16,
        None,
        {BARE_LOOP: PUBLISH_BARE, ORIGINAL: PUBLISH_SIXTEEN},
        _BARE,
        "bare",
    ),
    Way("1,000 messages in each transaction, 1 client", 1, 1_000, {ORIGINAL: PUBLISH_BATCHES}),
)


# How often each client publishes before it is measured.
WARM_UPS: Final = 10


@dataclass(frozen=True, slots=True)
class Sizes:
    """How many messages one by one, how many in batches, and how often."""

    single: int
    collected: int
    batched: int
    rounds: int


SIZES: Final[dict[Scale, Sizes]] = {
    "tiny": Sizes(single=64, collected=40, batched=2_000, rounds=1),
    "quick": Sizes(single=1_000, collected=2_000, batched=10_000, rounds=3),
    "full": Sizes(single=2_000, collected=5_000, batched=20_000, rounds=5),
}


@dataclass(frozen=True, slots=True)
class Published:
    """How many messages a second, and what each cost."""

    rate: float
    python_us: float
    postgres_us: float | None
    wal: float


async def run(bench: Bench) -> list[Result]:
    """Publish in each way."""
    async with Stage(bench) as stage:
        return [await _compare(stage, way) for way in WAYS]


async def _compare(stage: Stage, way: Way) -> Result:
    sizes = SIZES[stage.bench.scale]
    entries, absent = await stage.present(*way.entries)
    cases = {str(entry): partial(_publish, stage, entry, way, _count(sizes, way, entry)) for entry in entries}
    measured = await stage.bench.interleave(f"peers, {way.title}", cases, rounds=sizes.rounds)
    rates = {case: [turn.rate for turn in turns] for case, turns in measured.items()}
    ours = rates[str(OURS_DEFAULTS)]
    lines: Lines = {}
    for case, turns in measured.items():
        lines[case] = {
            "msg/s": Spread.of(rates[case]),
            "ours to it": ratios(ours, rates[case]),
            "Python µs": Spread.of([turn.python_us for turn in turns]),
            "Postgres µs": spread([turn.postgres_us for turn in turns]),
            "WAL B": Spread.of([turn.wal for turn in turns]),
        }
    note = (
        "Ours and the original publish in an `AsyncSession` a transaction, with BEGIN and COMMIT; the others by a "
        "statement that commits itself, which is quicker and what they are made for. Each wakes its workers, but for "
        "the `AsyncSession` alone, in which one plain INSERT runs: what is left when nothing is added to it. "
        "Ten messages are collected by ours, published one by one by the original, and inserted by one statement in "
        "the `AsyncSession` alone. Through asyncpg's connection, the bare loop runs one INSERT with the same columns "
        "between BEGIN and COMMIT, and announces nothing; the original has only sessions. "
        f"Of batches Procrastinate, who is slow at them, publishes a fifth.{absent}"
    )
    return Result(f"peers: publishing, {way.title}", lines, note, _targets(way, rates))


def _count(sizes: Sizes, way: Way, entry: Entry) -> int:
    if way.batch is None:
        return sizes.single
    if way.method:
        return sizes.collected
    # A tenth as quick as others, it gets a fifth of what they do.
    return sizes.batched // 5 if entry == PROCRASTINATE else sizes.batched


def _targets(way: Way, rates: dict[str, list[float]]) -> list[Target]:
    targets = []
    for entry, aim in way.aims.items():
        if str(entry) in rates and (ratio := ratios(rates[str(OURS_DEFAULTS)], rates[str(entry)])) is not None:
            targets.append(aim.target(f"ours to {entry}, {way.title}", ratio.median))
    return targets


async def _publish(stage: Stage, entry: Entry, way: Way, count: int) -> Published:
    child = await stage.child(entry)
    await child.ask("create")
    await child.ask("open", clients=way.clients)
    # Postgres plans a prepared statement for the sixth time, and then keeps a plan.
    warm = WARM_UPS * way.clients * (way.batch or 1)
    await child.ask("publish", count=warm, clients=way.clients, batch=way.batch, way=way.method)
    spent, before = child.cpu, await stage.bench.meter.read()
    answer = await child.ask("publish", count=count, clients=way.clients, batch=way.batch, way=way.method)
    spent = child.cpu - spent
    usage: Usage = await stage.bench.meter.since(before)
    await child.ask("close")
    await _check(stage, entry, count + warm)
    postgres_us = None if usage.postgres_us is None else usage.postgres_us / count
    return Published(count / answer["seconds"], 1e6 * spent / count, postgres_us, usage.wal_bytes / count)


async def _check(stage: Stage, entry: Entry, expected: int) -> None:
    found = await stage.bench.control.fetchval(f"SELECT count(*) FROM {entry.contestant.table}")
    if found != expected:
        raise AssertionError(f"{entry}: {found} messages were published, not {expected}.")


SCENARIO: Final = Scenario("peers-publish", "ours, its peers and no framework publish, one by one and in batches", run)

"""What operators' reads cost in a large table, beside the same reads in a small one; how fast dead letters go back."""

import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from benchmarks.measure import Spread, ratios
from benchmarks.outbox import QUEUE, Outbox
from benchmarks.results import Lines, Result, Target
from benchmarks.scenario import Bench, Scale, Scenario
from faststream_outbox.operations import DeadLetterFilter, MessageFilter, OutboxOperations

KEYED_QUEUE: Final = "customers"
PAYLOAD: Final = b"0123456789abcdef"
MESSAGES_OF_A_KEY: Final = 4
# One key in so many is parked.
PARKED: Final = 50
# A page of a table with ten million rows is there in so many seconds, and in so many times as long as of a small one.
MOST_SECONDS: Final = 0.2
MOST_RATIO: Final = 1.5
# Rows of each of the two queues of the small table: as many as are counted.
SMALL: Final = 10_000

# Dead letters that are replayed, and how many a second at least go back.
LETTERS: Final[dict[Scale, int]] = {"tiny": 2_000, "quick": 100_000, "full": 100_000}
REPLAYS: Final[dict[Scale, int]] = {"tiny": 1, "quick": 3, "full": 5}
LEAST_REPLAYED: Final = 20_000

# Rows of the large table, and rounds.
SIZES: Final[dict[Scale, tuple[int, int]]] = {"tiny": (20_000, 2), "quick": (1_000_000, 9), "full": (10_000_000, 15)}


async def run(bench: Bench) -> list[Result]:
    """Fill two tables, and let reads of both take turns."""
    rows, rounds = SIZES[bench.scale]
    small = 1_000 if bench.scale == "tiny" else SMALL
    async with bench.engine("asyncpg") as engine:
        tables = {name: Outbox(bench, engine, f"operations_{name}") for name in ("small", "large")}
        for name, each, dead in (("small", small, small), ("large", rows // 2, rows // 10)):
            bench.say(f"operations, filling the {name} table")
            await fill(tables[name], each, dead)
        cases = {
            f"{what}, {name}": partial(_time, read)
            for name, outbox in tables.items()
            for what, read in (await _reads(outbox)).items()
        }
        measured = await bench.interleave("operations", cases, rounds=rounds, warmup=2)
        reads = list(await _reads(tables["small"]))
        for outbox in tables.values():
            await outbox.drop()
        replayed = await _replay(bench, Outbox(bench, engine, "operations_replay"))
    return [_result(measured, reads, small, rows), replayed]


async def _replay(bench: Bench, outbox: Outbox) -> Result:
    """Replay dead letters: without keys, and half of them with keys that have messages waiting."""
    number = LETTERS[bench.scale]
    keys = {"without keys": "NULL", "half with keys": "CASE WHEN n % 2 = 0 THEN 'customer ' || n END"}
    rates: dict[str, list[float]] = {name: [] for name in keys}
    for turn in range(REPLAYS[bench.scale]):
        for name, key in keys.items():
            bench.say(f"operations, replay {turn + 1}, {name}")
            rates[name].append(await _replay_once(bench, outbox, number, key))
    spreads = {name: Spread.of(each) for name, each in rates.items()}
    note = (
        f"{number:,} dead letters. Each key has a message waiting, before which its dead letter goes back. In slices "
        "of 500, each a transaction."
    )
    targets = [
        Target(f"dead letters replayed per second, {name}", rate.median, at_least=LEAST_REPLAYED)
        for name, rate in spreads.items()
    ]
    return Result("replay", {name: {"dead letters/s": rate} for name, rate in spreads.items()}, note, targets)


async def _replay_once(bench: Bench, outbox: Outbox, number: int, key: str) -> float:
    operations = OutboxOperations.on_store(outbox.store)
    await outbox.create()
    # The dead letters have the ids before those of the rows that wait.
    await bench.control.execute(f"SELECT setval(pg_get_serial_sequence('{outbox.name}', 'id'), {number})")
    await outbox.load(number, "queue, entity_key", f"'{KEYED_QUEUE}', 'customer ' || n", payload=PAYLOAD)
    await bench.control.execute(
        f"INSERT INTO {outbox.name}_dlq (original_id, queue, entity_key, payload, created_at, failure_reason) "
        f"SELECT n, '{KEYED_QUEUE}', {key}, 'x', now(), 'rejected' FROM generate_series(1, {number}) AS n"
    )
    await bench.control.execute(f"VACUUM (ANALYZE) {outbox.name}, {outbox.name}_dlq")
    selection = await operations.select(DeadLetterFilter(queue=KEYED_QUEUE))
    began = time.perf_counter()
    result = await operations.replay(selection, reason="a benchmark")
    rate = result.done / (time.perf_counter() - began)
    if result.done != number:
        why = list(result.skipped.values())[:3]
        raise RuntimeError(f"{number - result.done} dead letters were left out: {why}")
    await outbox.drop()
    return rate


def _result(measured: dict[str, list[float]], reads: list[str], small: int, rows: int) -> Result:
    lines: Lines = {}
    targets = []
    for what in reads:
        in_small, in_large = measured[f"{what}, small"], measured[f"{what}, large"]
        ratio = ratios(in_large, in_small)
        lines[what] = {
            f"{2 * small:,} rows, ms": Spread.of([1000 * each for each in in_small]),
            f"{rows:,} rows, ms": Spread.of([1000 * each for each in in_large]),
            "ratio": ratio,
        }
        if what != "stats()":
            seconds = Spread.of(in_large).median
            targets.append(Target(f"{what}: seconds in the large table", seconds, at_most=MOST_SECONDS))
            targets.append(Target(f"{what}: to the small table", ratio.median if ratio else 0, at_most=MOST_RATIO))
    note = (
        f"Two queues, one without keys and one with {MESSAGES_OF_A_KEY} messages for each key, half of the rows each. "
        f"The queues of the small table have {small:,} rows each and as many dead letters: what is counted. The large "
        f"one has {rows // 10:,} dead letters. Times are the caller's, with the transaction. `stats()` counts up to "
        "100,000 rows of each sort, and so reads more in the large table."
    )
    return Result("reads of operators", lines, note, targets)


async def fill(outbox: Outbox, rows: int, dead: int) -> None:
    """Fill two queues, one with keys, and the dead letters."""
    await outbox.create()
    for table in (outbox.name, f"{outbox.name}_dlq"):
        await outbox.bench.control.execute(f"ALTER TABLE {table} SET UNLOGGED")
    await outbox.load(
        rows, "queue, next_attempt_at", f"'{QUEUE}', now() - make_interval(secs => {rows} - n)", payload=PAYLOAD
    )
    keys = max(1, rows // MESSAGES_OF_A_KEY)
    parked = f"CASE WHEN n <= {keys} AND n % {PARKED} = 0 THEN 'infinity' ELSE now() END"
    values = f"'{KEYED_QUEUE}', 'customer ' || n % {keys}, {parked}"
    await outbox.load(rows, "queue, entity_key, next_attempt_at", values, payload=PAYLOAD)
    await outbox.bench.control.execute(
        f"INSERT INTO {outbox.name}_dlq (original_id, queue, payload, headers, created_at, failed_at, failure_reason, "
        f"last_exception) SELECT n, '{QUEUE}', '', jsonb_build_object('correlation_id', n::text), now(), "
        f"now() - make_interval(secs => {dead} - n), 'retry_terminal', 'ValueError: ' || n || E'\\n\\nTraceback' || "
        f"repeat(' (most recent call last)', 20) FROM generate_series(1, {dead}) AS n"
    )
    for table in (outbox.name, f"{outbox.name}_dlq"):
        await outbox.bench.control.execute(f"VACUUM (ANALYZE) {table}")


async def _reads(outbox: Outbox) -> dict[str, Callable[[], Awaitable[object]]]:
    operations = OutboxOperations.on_store(outbox.store)
    middle = (await operations.messages(MessageFilter(queue=QUEUE), limit=5_000)).after
    return {
        "queues()": operations.queues,
        "messages() of a queue": partial(operations.messages, MessageFilter(queue=QUEUE)),
        "messages() of a queue, a later page": partial(operations.messages, MessageFilter(queue=QUEUE), after=middle),
        "messages() of a key": partial(operations.messages, MessageFilter(queue=KEYED_QUEUE, key="customer 7")),
        "messages() by a header that none has": partial(operations.messages, MessageFilter(header=("tenant", "none"))),
        "find()": partial(operations.find, correlation_id="7"),
        "keys()": operations.keys,
        "dead_letters() of a queue": partial(operations.dead_letters, DeadLetterFilter(queue=QUEUE)),
        "dead_letter_groups()": operations.dead_letter_groups,
        "stats()": partial(_stats, outbox),
    }


async def _stats(outbox: Outbox) -> object:
    async with outbox.lane() as lane:
        return await lane.stats()


async def _time(read: Callable[[], Awaitable[object]]) -> float:
    began = time.perf_counter()
    await read()
    return time.perf_counter() - began


SCENARIO: Final = Scenario("operations", "what reads of operators cost in a large table", run)

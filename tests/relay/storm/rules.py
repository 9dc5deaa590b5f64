"""The rules that messages keep on the server that they were relayed to, whatever died on the way.

A message may arrive again: whoever was killed before its confirmation was settled sends it once more, and so may one
who has lost a lease and does not know it yet. But nothing arrives for the first time before all that precedes it.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import islice
from operator import attrgetter

from tests.order.rules import MAX_PER_KEY, check_keys
from tests.soak.checker import FinalState, Violation
from tests.soak.history import Arrived
from tests.soak.row_histories import Life, Lives


def check_arrivals(lives: Lives, final: FinalState, slack: float, *, once: bool) -> list[Violation]:
    """Return every violation that the history proves; `once` where nothing excuses a message that arrives again."""
    violations = [Violation("crash", "", text) for text in lives.crashes]
    violations += check_keys(lives, final, slack)
    waiting, dead = ({left.uid for left in table} for table in (final.outbox, final.dead))
    for life in lives.rows.values():
        violations += _of_row(life, waiting=life.uid in waiting, dead=life.uid in dead)
        if once and len(life.arrivals) > 1:
            violations.append(Violation("duplicate", life.uid, f"arrived {len(life.arrivals)} times, and nothing died"))
    violations += [
        Violation("attempt", uid, "an attempt of it was counted, and it was nobody's") for uid in final.burnt
    ]
    for key, arrivals in _by_key(lives).items():
        violations += islice(_of_key(key, arrivals, lives), MAX_PER_KEY)
    return violations


def count_repeats(lives: Lives) -> Counter[str]:
    """Count what arrived again, and how far behind the newest of its key: in messages of that key."""
    counts: Counter[str] = Counter()
    for key, arrivals in _by_key(lives).items():
        seen: set[int] = set()
        for arrival in arrivals:
            number = lives.rows[arrival.uid].row_id or 0
            if number not in seen:
                seen.add(number)
                continue
            counts["messages that came again"] += 1
            back = 0 if key is None else sum(each > number for each in seen)
            if back:
                counts["stale repeats"] += 1
                counts[f"stale repeats, {_about(back)} messages back"] += 1
    return counts


def _of_row(life: Life, *, waiting: bool, dead: bool) -> Iterator[Violation]:
    if waiting:
        yield Violation("stuck", life.uid, f"row {life.row_id} is still in the outbox")
    if dead:
        yield Violation("dead", life.uid, f"row {life.row_id} was dead-lettered, and nobody had refused it")
    committed = life.tx is not None and life.tx.committed is not None
    if committed and not life.arrivals and not waiting and not dead:
        yield Violation("loss", life.uid, f"row {life.row_id} of key {life.key} was committed, is gone and never came")
    if life.arrivals and (life.tx is None or life.tx.committing is None):
        yield Violation("uncommitted", life.uid, "it arrived, and its transaction never was committed")
    if len({arrival.outbox_id for arrival in life.arrivals}) > 1:
        yield Violation("header", life.uid, f"came under several names: {[each.outbox_id for each in life.arrivals]}")
    expected = (life.key, None if life.key is None else life.row_id)
    for arrival in life.arrivals[:1]:
        if (arrival.key, arrival.sequence) != expected:
            told = f"came as {arrival.key}, {arrival.sequence}"
            yield Violation("header", life.uid, f"{told}, and is {life.key}, {life.row_id}")


def _of_key(key: str | None, arrivals: list[Arrived], lives: Lives) -> Iterator[Violation]:
    """Tell where a message came for the first time after one that follows it."""
    if key is None:
        return
    if len(partitions := {arrival.partition for arrival in arrivals}) > 1:
        yield Violation("order", arrivals[0].uid, f"key {key} came on {sorted(partitions)}")
    newest: Arrived | None = None
    seen: set[str] = set()
    for arrival in arrivals:
        if arrival.uid in seen:
            continue
        seen.add(arrival.uid)
        row_id = lives.rows[arrival.uid].row_id or 0
        if newest is None or row_id > (lives.rows[newest.uid].row_id or 0):
            newest = arrival
            continue
        late = f"row {row_id} first came as message {arrival.number}, at {arrival.at:.3f}"
        after = f"row {lives.rows[newest.uid].row_id}, which follows it, as {newest.number}, at {newest.at:.3f}"
        yield Violation("order", arrival.uid, f"key {key}: {late}; {after}")


def _by_key(lives: Lives) -> dict[str | None, list[Arrived]]:
    """What arrived of each key, and of no key, in its order."""
    by_key: dict[str | None, list[Arrived]] = defaultdict(list)
    for life in lives.rows.values():
        by_key[life.key] += life.arrivals
    return {key: sorted(arrivals, key=attrgetter("number")) for key, arrivals in by_key.items()}


def _about(number: int) -> str:
    return next((f"up to {most}" for most in (1, 10, 100, 1000) if number <= most), "more than 1000")

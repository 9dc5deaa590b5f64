"""The rules that messages keep on the server that they were relayed to, whatever died on the way.

A message may arrive again: after a relay was killed before it settled a confirmation, another sends the message
again, and so may a relay that has lost a lease and does not know it yet. But nothing arrives for the first time before
all that precedes it.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import islice
from operator import attrgetter

from tests.order.rules import MAX_PER_KEY, check_keys
from tests.soak.checker import FinalState, Violation
from tests.soak.history import Arrived
from tests.soak.row_histories import RowHistories, RowHistory


def check_arrivals(histories: RowHistories, final: FinalState, slack: float, *, once: bool) -> list[Violation]:
    """Return every violation that the history proves; `once` where nothing excuses a message that arrives again."""
    violations = [Violation("crash", "", text) for text in histories.crashes]
    violations += check_keys(histories, final, slack)
    waiting, dead = ({left.uid for left in table} for table in (final.outbox, final.dead))
    for history in histories.rows.values():
        violations += _of_row(history, waiting=history.uid in waiting, dead=history.uid in dead)
        if once and len(history.arrivals) > 1:
            violations.append(
                Violation("duplicate", history.uid, f"arrived {len(history.arrivals)} times, and nothing died")
            )
    violations += [Violation("attempt", uid, "an attempt was counted for an outage") for uid in final.burnt]
    for key, arrivals in _by_key(histories).items():
        violations += islice(_of_key(key, arrivals, histories), MAX_PER_KEY)
    return violations


def count_repeats(histories: RowHistories) -> Counter[str]:
    """Count what arrived again, and how far behind the newest of its key: in messages of that key."""
    counts: Counter[str] = Counter()
    for key, arrivals in _by_key(histories).items():
        seen: set[int] = set()
        for arrival in arrivals:
            number = histories.rows[arrival.uid].row_id or 0
            if number not in seen:
                seen.add(number)
                continue
            counts["messages that came again"] += 1
            back = 0 if key is None else sum(each > number for each in seen)
            if back:
                counts["stale repeats"] += 1
                counts[f"stale repeats, {_about(back)} messages back"] += 1
    return counts


def _of_row(history: RowHistory, *, waiting: bool, dead: bool) -> Iterator[Violation]:
    if waiting:
        yield Violation("stuck", history.uid, f"row {history.row_id} is still in the outbox")
    if dead:
        yield Violation("dead", history.uid, f"row {history.row_id} was dead-lettered, but not refused")
    committed = history.tx is not None and history.tx.committed is not None
    if committed and not history.arrivals and not waiting and not dead:
        yield Violation(
            "loss", history.uid, f"row {history.row_id} of key {history.key} was committed, is gone and never came"
        )
    if history.arrivals and (history.tx is None or history.tx.committing is None):
        yield Violation("uncommitted", history.uid, "it arrived, and its transaction never was committed")
    if len({arrival.outbox_id for arrival in history.arrivals}) > 1:
        yield Violation(
            "header", history.uid, f"came under several names: {[each.outbox_id for each in history.arrivals]}"
        )
    expected = (history.key, None if history.key is None else history.row_id)
    for arrival in history.arrivals[:1]:
        if (arrival.key, arrival.sequence) != expected:
            came = f"came as {arrival.key}, {arrival.sequence}"
            yield Violation("header", history.uid, f"{came}, and is {history.key}, {history.row_id}")


def _of_key(key: str | None, arrivals: list[Arrived], histories: RowHistories) -> Iterator[Violation]:
    """Return the messages that arrived for the first time after a later message of their key."""
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
        row_id = histories.rows[arrival.uid].row_id or 0
        if newest is None or row_id > (histories.rows[newest.uid].row_id or 0):
            newest = arrival
            continue
        late = f"row {row_id} first came as message {arrival.number}, at {arrival.at:.3f}"
        after = f"row {histories.rows[newest.uid].row_id}, which follows it, as {newest.number}, at {newest.at:.3f}"
        yield Violation("order", arrival.uid, f"key {key}: {late}; {after}")


def _by_key(histories: RowHistories) -> dict[str | None, list[Arrived]]:
    """What arrived of each key, and of no key, in its order."""
    by_key: dict[str | None, list[Arrived]] = defaultdict(list)
    for history in histories.rows.values():
        by_key[history.key] += history.arrivals
    return {key: sorted(arrivals, key=attrgetter("number")) for key, arrivals in by_key.items()}


def _about(number: int) -> str:
    return next((f"up to {most}" for most in (1, 10, 100, 1000) if number <= most), "more than 1000")

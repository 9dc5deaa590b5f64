"""When a claimer looks for rows whose lease ran out, and when it looks at all keys again."""

import time

import pytest

from faststream_outbox.engine.claim.claimer import Claimer
from faststream_outbox.engine.claim.key_claims import KeyClaims
from faststream_outbox.engine.claim.prefetch import Prefetch
from faststream_outbox.engine.context import EngineContext
from faststream_outbox.engine.options import SubscriberOptions
from faststream_outbox.storage import MemoryStore, NewRow, OutboxRow
from faststream_outbox.storage.memory.lane import MemoryLane

SLOW = SubscriberOptions(min_fetch_interval=30, max_fetch_interval=30)


def make_claimer(store: MemoryStore, *queues: str) -> Claimer:
    context = EngineContext(store, queues, SLOW, monitor=None, announce=None, row_type=OutboxRow)
    keys = KeyClaims(context.queues, SLOW, rows_per_key=10, shards=None)
    return Claimer(context, Prefetch(max_workers=1, most=SLOW.capacity), keys)


async def test_a_suspect_that_cannot_be_claimed_is_not_looked_for_in_a_tight_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = 0

    async def locked(self: MemoryLane, *_: object, **__: object) -> object:
        nonlocal looks
        looks += 1
        return await MemoryLane.claim(self, *_, limit=1, **__)  # type: ignore[arg-type] # an empty claim

    claimer = make_claimer(MemoryStore(), "q")
    monkeypatch.setattr(MemoryLane, "claim_suspect", locked)
    suspects = claimer._suspects
    await claimer._claims.claim_rows(1)
    await suspects.run()
    before = looks
    for _ in range(100):  # as claims of keys do that meet a head whose lease is over, and whose row is locked
        suspects.note_met()
        if suspects.make_due():
            await suspects.run()
    assert looks - before <= 1
    assert suspects.due_at - time.monotonic() <= 0.5, "it is looked for again, soon"


@pytest.mark.parametrize("queue", ["a", "b", "c"])
async def test_a_wake_up_is_not_forgotten_while_only_keys_are_claimed(
    monkeypatch: pytest.MonkeyPatch, queue: str
) -> None:
    store = MemoryStore()
    claimer = make_claimer(store, "a", "b", "c")
    claimer._suspects._may_be_left = False

    async def wait(*_: object) -> None:
        pytest.fail(f"waits, although a row with a key has come to queue {queue}")

    monkeypatch.setattr(claimer, "_wait_for_rows", wait)
    claimer._keyless_at = time.monotonic() + 60  # a moment ago there were no rows without a key
    claimer.wake()
    await claimer.step()
    claimer._keyless_at = 0.0
    for each in claimer._keys._fresh._rounds.values():
        each.at_rest = True  # and every round has ended
    store.add(NewRow(queue, b"1", key="k"))  # the row that the wake-up was for, seen by no claim yet
    while not len(claimer._ledger):
        await claimer.step()

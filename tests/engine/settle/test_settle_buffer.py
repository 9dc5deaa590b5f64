"""How much one statement settles: bounded in outcomes and in the bytes of their answers."""

import math
from uuid import uuid4

import pytest

from faststream_outbox.engine.settle import settle_buffer
from faststream_outbox.engine.settle.settle_buffer import SettleBuffer
from faststream_outbox.storage import Ack, Lease, NewRow, Settlement

MAX_BYTES = 1000


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settle_buffer, "MAX_BYTES", MAX_BYTES)


def answered(size: int, *, group: int | None = None) -> Settlement:
    return Settlement(Lease(1, uuid4()), Ack((NewRow("answers", b"x" * size),)) if size else Ack(), group=group)


@pytest.mark.parametrize(
    ("sizes", "batches"),
    [
        pytest.param([0] * 5, [3, 2], id="without answers by their number"),
        pytest.param([600] * 5, [2, 2, 1], id="with answers until these have enough bytes"),
        pytest.param([5000, 0, 0], [1, 2], id="a large answer alone"),
        pytest.param([0, 0, 5000, 0], [3, 1], id="with what came before it"),
    ],
)
def test_how_many_outcomes_are_written_together(sizes: list[int], batches: list[int]) -> None:
    buffer = SettleBuffer(3, 0.0)
    buffer.put(map(answered, sizes))
    assert [len(buffer.take()) for _ in batches] == batches
    assert buffer.due_at == math.inf


def test_the_answers_behind_the_head_of_a_key_count_too() -> None:
    buffer, answer = SettleBuffer(10, 60.0), Ack((NewRow("answers", b"x" * 600),))
    buffer.put([Settlement(Lease(1, uuid4()), Ack(), followers=[(2, answer), (3, answer)]), answered(0)])
    assert buffer.due_at == -math.inf
    assert len(buffer.take()) == 1


def test_a_group_is_not_divided() -> None:
    buffer = SettleBuffer(10, 0.0)
    buffer.put([answered(5000, group=1), answered(0, group=1), answered(0, group=2)])
    assert len(buffer.take()) == 2


def test_answers_with_enough_bytes_do_not_wait_for_others() -> None:
    buffer = SettleBuffer(10, 60.0)
    buffer.put([answered(600)])
    assert buffer.due_at > 0
    buffer.put([answered(600)])
    assert buffer.due_at == -math.inf
    batch = buffer.take()
    buffer.put([answered(600)])
    assert buffer.due_at > 0
    buffer.take()
    buffer.put_back(batch)
    assert buffer.take() == batch

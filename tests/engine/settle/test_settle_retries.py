"""Which refused outcomes are written again, how often, and when."""

import math
import time
from uuid import uuid4

import pytest

from faststream_outbox.engine.settle.settle_retries import SettleRetries
from faststream_outbox.storage import Ack, Lease, Settlement


def refused(row_id: int = 1) -> Settlement:
    return Settlement(Lease(row_id, uuid4()), Ack())


@pytest.mark.parametrize(
    ("refusals", "is_kept"),
    [
        pytest.param(1, True, id="the first refusal is followed by a try"),
        pytest.param(4, True, id="and the fourth"),
        pytest.param(5, False, id="the fifth is the last: the row is left to its lease"),
    ],
)
def test_how_often_an_outcome_is_tried(refusals: int, is_kept: bool) -> None:
    retries, settlement = SettleRetries(), refused()
    for _ in range(refusals - 1):
        assert retries.add(settlement)
        assert retries.take() == [settlement]
    assert retries.add(settlement) is is_kept
    assert len(retries) == int(is_kept)


@pytest.mark.parametrize("forget", [True, False], ids=["settled in between", "refused each time"])
def test_an_outcome_that_was_settled_starts_again(forget: bool) -> None:
    retries, settlement = SettleRetries(), refused()
    for _ in range(4):
        retries.add(settlement)
    if forget:
        retries.forget([settlement.lease])
    assert retries.add(settlement) is forget


def test_each_lease_has_tries_of_its_own() -> None:
    retries, one, same_row_again = SettleRetries(), refused(1), refused(1)
    for _ in range(4):
        retries.add(one)
    assert retries.add(same_row_again)
    assert not retries.add(one)


def test_all_are_due_together_half_a_second_after_the_first() -> None:
    retries, one, two = SettleRetries(), refused(1), refused(2)
    assert retries.due_at == math.inf, "nothing waits"
    began = time.monotonic()
    retries.add(one)
    due_at = retries.due_at
    assert 0.5 <= due_at - began < 10
    retries.add(two)
    assert retries.due_at == due_at
    assert retries.take() == [one, two]
    assert (len(retries), retries.due_at, retries.take()) == (0, math.inf, [])

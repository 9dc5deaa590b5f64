"""Strategies made from the text of a setting."""

import pytest

from faststream_outbox import ConstantRetry, ExponentialRetry, LinearRetry, NoRetry
from faststream_outbox.cli.relay.strategies import make_retry_strategy, split_shards


@pytest.mark.parametrize(
    ("text", "strategy"),
    [
        ("constant?delay_seconds=5", ConstantRetry(delay_seconds=5)),
        ("constant?delay_seconds=0.5&max_attempts=3", ConstantRetry(delay_seconds=0.5, max_attempts=3)),
        ("linear?initial_delay_seconds=1&step_seconds=2", LinearRetry(initial_delay_seconds=1, step_seconds=2)),
        (
            "exponential?initial_delay_seconds=1&max_delay_seconds=60&max_attempts=20&jitter_factor=0.1",
            ExponentialRetry(initial_delay_seconds=1, max_delay_seconds=60, max_attempts=20, jitter_factor=0.1),
        ),
    ],
)
def test_a_retry_strategy(text: str, strategy: object) -> None:
    assert make_retry_strategy(text) == strategy


def test_no_retry() -> None:
    assert isinstance(make_retry_strategy("none"), NoRetry)


@pytest.mark.parametrize("text", ["constant?delay_seconds", "constant?delay_seconds=", "constant?delay_seconds=5&x"])
def test_an_argument_without_a_value_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"delay_seconds|bad query field"):
        make_retry_strategy(text)


@pytest.mark.parametrize("nodes", [1, 2, 3, 5, 16])
def test_each_shard_belongs_to_exactly_one_of_some_nodes(nodes: int) -> None:
    parts = [split_shards(f"{node}/{nodes}", 16) for node in range(nodes)]
    assert sorted(shard for part in parts for shard in part) == list(range(16))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1

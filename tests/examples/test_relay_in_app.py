"""`python -m examples.relay_in_app`: a day of a shop."""

import pytest

from tests.examples.programs import told_by
from tests.servers.nats import Nats
from tests.servers.plugin import need


def test_a_day(request: pytest.FixtureRequest) -> None:
    need(Nats, request)
    assert told_by("relay_in_app").splitlines() == [
        "3 orders are placed and announced",
        "NATS is down: 3 orders are placed, and wait",
        "NATS is back: all are announced",
        "the warehouse packs chair, desk, lamp, shelf, sofa, table",
    ]

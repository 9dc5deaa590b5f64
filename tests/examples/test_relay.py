"""`python -m examples.relay`: movements of accounts on their way to Kafka."""

import pytest

from tests.examples.programs import told_by
from tests.servers.kafka_mock import KafkaMock
from tests.servers.plugin import need


def test_movements_arrive_in_order(request: pytest.FixtureRequest) -> None:
    need(KafkaMock, request)
    assert told_by("relay").splitlines() == [
        "300 movements are booked",
        "Ada: 100 read from Kafka, in order",
        "Grace: 100 read from Kafka, in order",
        "Joan: 100 read from Kafka, in order",
    ]

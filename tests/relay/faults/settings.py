"""The settings of a relay round: an ordered round whose workers are relays to a real server."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from faststream_outbox.relay import Relay
from tests.order.settings import OrderSettings
from tests.relay.endpoints import (
    ConfluentEndpoint,
    ConfluentPairEndpoint,
    Endpoint,
    KafkaEndpoint,
    KafkaPairEndpoint,
    NatsStream,
    RabbitQueueEndpoint,
    RedisStream,
)
from tests.relay.faults.rules import check_arrivals
from tests.soak.checker import FinalState, Violation
from tests.soak.row_histories import RowHistories
from tests.soak.settings import FaultRates, Settings

if TYPE_CHECKING:
    from tests.soak.process import SoakProcess

# What names the outbox in the messages of a round.
SOURCE: Final = "relay"
# The endpoints that keep messages in the order in which they arrived.
ENDPOINTS: Final[Mapping[str, type[Endpoint]]] = {
    "kafka": KafkaEndpoint,
    "confluent": ConfluentEndpoint,
    "kafka-pair": KafkaPairEndpoint,
    "confluent-pair": ConfluentPairEndpoint,
    "rabbit": RabbitQueueEndpoint,
    "nats": NatsStream,
    "redis": RedisStream,
}
MANY_FAULTS: Final = FaultRates(every_seconds=0.8, kill=4, terminate=2, pause=2, restart=1, outage=1)
NO_FAULTS: Final = FaultRates(every_seconds=600.0)

# Breaks something in a relay that has not been started.
Break = Callable[[Relay], None]

# Rows whose attempts were counted: an outage counts no attempt.
BURNT: Final = (
    "CREATE TABLE IF NOT EXISTS burnt (payload bytea NOT NULL)",
    "TRUNCATE burnt",
    """CREATE OR REPLACE FUNCTION note_burnt() RETURNS trigger LANGUAGE plpgsql AS
     'BEGIN INSERT INTO burnt VALUES (NEW.payload); RETURN NULL; END'""",
    """CREATE TRIGGER burnt AFTER UPDATE ON outbox FOR EACH ROW
     WHEN (NEW.attempts_count > OLD.attempts_count) EXECUTE FUNCTION note_burnt()""",
)


def nothing(relay: Relay) -> None:
    """Break nothing."""


def make_relay(settings: Settings, name: str) -> "SoakProcess":
    """Make a process with a relay."""
    from tests.relay.faults.worker import RelayWorker  # noqa: PLC0415 - it is told its settings, so it imports them

    return RelayWorker(settings, name)


@dataclass(frozen=True)
class Address:
    """A server as another process knows it."""

    url: str

    @property
    def bootstrap_servers(self) -> str:
        """What Kafka's clients call it."""
        return self.url.removeprefix("kafka://")


@dataclass(frozen=True)
class RelayRoundSettings(OrderSettings):
    """The settings of one round. Leases are short, so that the keys of a relay that was killed go on soon."""

    to: str = "redis"
    # Where the server is, and the name of this round's endpoint on it.
    address: str = ""
    name: str = ""
    workers: int = 2
    producers: int = 1
    lease_seconds: float = 1.5
    # Between a claim, the sending and its settling: so much is on its way when something dies.
    handler_seconds: float = 0.05
    rate: float = 200.0
    # The longest outage: some are over before a lease is, some are not.
    away_seconds: float = 3.0
    faults: FaultRates = MANY_FAULTS
    # An outage is noticed after seconds, a lease runs out, and rows are looked for.
    drain_seconds: float = 40.0
    prepare: tuple[str, ...] = BURNT
    broken: Break = nothing
    worker: "Callable[[Settings, str], SoakProcess]" = make_relay

    @property
    def endpoint(self) -> Endpoint:
        """Where the relays send to."""
        endpoint = ENDPOINTS[self.to](Address(self.address))
        endpoint.name = self.name
        return endpoint

    def check(self, histories: RowHistories, final: FinalState, slack: float) -> list[Violation]:
        """Check what arrived, and who held the keys meanwhile."""
        return check_arrivals(histories, final, slack, once=self.faults == NO_FAULTS)

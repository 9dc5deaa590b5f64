"""An aiokafka producer that gives up some batches that aiokafka would repeat without end."""

from itertools import chain
from typing import Any, Final
from weakref import WeakKeyDictionary

from aiokafka import AIOKafkaProducer, errors
from aiokafka.admin.config_resource import ConfigResourceType
from aiokafka.producer.sender import SendProduceReqHandler
from aiokafka.protocol.admin import DescribeConfigsRequest
from aiokafka.protocol.metadata import MetadataRequest

from faststream_outbox.relay.targets.base import DestinationCheck
from faststream_outbox.relay.targets.kafka_topics import AUTO_CREATE, topic_forbidden, topic_missing, topic_there

# How often in a row an open connection must be lost with a batch on its way, until the batch is given up. While Kafka
# is down no connection is opened, so an outage is one loss, and aiokafka repeats the batch without duplicating it.
_MOST_LOSSES: Final = 3
# How long a batch may wait for its partition to have a leader.
_LEADER_SECONDS: Final = 5.0
# How long Kafka may wait for the replicas of a batch until it answers. It answers nothing else on that connection
# meanwhile, and the batch is then repeated without duplicating it; by default that takes as long as a request may.
ACK_SECONDS: Final = 5.0
# Answers that aiokafka would repeat the batch for, and hold up other batches for the same broker each time. The relay
# waits instead, while it sends to other topics.
_GIVEN_UP: Final = (errors.NotEnoughReplicasError, errors.UnknownTopicOrPartitionError)


class InvalidRecordError(errors.BrokerResponseError):  # type: ignore[misc]  # aiokafka has no types
    """A record breaks a rule of its topic, such as one without a key for a compacted topic."""

    errno = 87
    message = "INVALID_RECORD"
    description = "A record of the batch breaks a rule of its topic, as one without a key does for a compacted topic."


# aiokafka has no name for this code, and takes it for an unknown error.
errors.kafka_errors.setdefault(InvalidRecordError.errno, InvalidRecordError)


class Producer(AIOKafkaProducer):  # type: ignore[misc]  # aiokafka has no types
    """A producer whose batches fail with the error for which they are given up."""

    def __init__(self, *, most_losses: int = _MOST_LOSSES, **options: Any) -> None:
        super().__init__(**options)
        self.most_losses = most_losses
        # How many batches wait for their confirmation.
        self.sending = 0
        # Whether one of its batches is waited for no longer.
        self.abandoned = False
        self.broken_off = False
        # How often in a row the connection was lost with each batch.
        self.losses: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._sender._request_timeout_ms = min(self._request_timeout_ms, int(1000 * ACK_SECONDS))  # noqa: SLF001 - same
        self._sender._send_produce_req = self._send_batches  # noqa: SLF001 - aiokafka has no public name for it
        self._message_accumulator._batch_ttl = _LEADER_SECONDS  # noqa: SLF001 - as long as a request by default

    async def break_off(self) -> None:
        """Disconnect while batches wait for their confirmation: they fail. aiokafka leaves them waiting for ever."""
        self.broken_off = True
        waiting = self._message_accumulator._batches.values()  # noqa: SLF001 - aiokafka has no public name for it
        for batch in (*self._message_accumulator._pending_batches, *chain.from_iterable(waiting)):  # noqa: SLF001 - same
            batch.failure(errors.ProducerClosed())
            for future in (batch.future, batch._drain_waiter):  # noqa: SLF001 - same
                if future.done():  # without this, asyncio complains of an error that nobody asked for
                    future.exception()
        await self.client.close()
        await self._sender.close()

    async def look_up(self, topic: str) -> DestinationCheck:
        """Ask Kafka whether it has a topic; asking this way does not create it."""
        request = MetadataRequest([topic], allow_auto_topic_creation=False)
        [(code, *_)] = (await self.client.send(self.client.get_random_node(), request)).topics
        match errors.for_code(code):
            case errors.UnknownTopicOrPartitionError:
                return topic_missing(topic, creates_topics=await self._creates_topics())
            case errors.TopicAuthorizationFailedError:
                return topic_forbidden(topic)
        return topic_there(topic)

    async def _creates_topics(self) -> bool:
        """Return whether Kafka creates topics by itself; False if the relay may not ask."""
        node = self.client.get_random_node()
        request = DescribeConfigsRequest([(ConfigResourceType.BROKER, str(node), [AUTO_CREATE])])
        [(code, _, _, _, settings)] = (await self.client.send(node, request)).resources
        return not code and any(setting[:2] == (AUTO_CREATE, "true") for setting in settings)

    async def _send_batches(self, node_id: int, batches: dict[Any, Any]) -> None:
        """Do as the method of the same place in aiokafka's sender, with our own rule for what is repeated."""
        await _Request(self, batches).do(node_id)
        self._sender._in_flight.remove(node_id)  # noqa: SLF001 - aiokafka has no public name for it
        self._sender._muted_partitions.difference_update(batches)  # noqa: SLF001 - same


class _Request(SendProduceReqHandler):  # type: ignore[misc]  # aiokafka has no types
    """One request, with the batches of some partitions of one broker."""

    def __init__(self, producer: Producer, batches: dict[Any, Any]) -> None:
        super().__init__(producer._sender, batches)  # noqa: SLF001 - aiokafka has no public name for it
        self._producer = producer

    def _can_retry(self, error: Exception, batch: Any) -> bool:
        """Return whether aiokafka is to repeat a batch by itself."""
        losses = self._producer.losses
        if self._producer.broken_off or isinstance(error, _GIVEN_UP):
            return False
        if not isinstance(error, errors.KafkaConnectionError):
            losses.pop(batch, None)
            return bool(super()._can_retry(error, batch))
        losses[batch] = losses.get(batch, 0) + 1
        return losses[batch] < self._producer.most_losses

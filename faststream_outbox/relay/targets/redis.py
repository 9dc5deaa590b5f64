"""Redis: streams, lists and channels."""

import asyncio
from ast import literal_eval
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from faststream.redis import RedisBroker
from faststream.redis.response import RedisPublishCommand
from faststream.response.publish_type import PublishType
from redis import exceptions

from faststream_outbox.relay.outgoing import Outgoing
from faststream_outbox.relay.targets.base import (
    ConnectionLostError,
    DestinationCheck,
    HoldsLease,
    LeaseLostError,
    NothingAcceptedError,
    OneByOneTarget,
    OutageError,
    RefusedError,
    SentRun,
    error_text,
)
from faststream_outbox.relay.targets.window import Window

_KINDS: Final = ("stream", "list", "channel")
# Redis is full, a replica, or read-only for now. The client turns some error codes into classes and removes the code;
# others stay in the text.
_TEMPORARY: Final = (
    exceptions.OutOfMemoryError,
    exceptions.ReadOnlyError,
    exceptions.ClusterDownError,
    exceptions.TryAgainError,
    exceptions.AskError,
)
_TEMPORARY_CODES: Final = ("BUSY", "MISCONF", "NOREPLICAS", "UNKILLABLE")
# Of so many connections of the client the relay leaves one free: to ask whether Redis answers, and to others.
_SPARED: Final = 10


class RedisTarget(OneByOneTarget):
    """A stream (`name` or `stream:name`), `list:name`, or `channel:name`, which only present subscribers receive."""

    broker: RedisBroker
    outages = (exceptions.RedisError, OSError)
    by_destination = False  # Redis accepts messages or not, whatever their destination
    one_of_a_key = False
    # Whether the server that we are connected to has become a replica: its name may lead to another one now.
    _is_replica = False

    def __init__(self, broker: RedisBroker) -> None:
        super().__init__(broker)
        self._window = Window()
        self._pool: Any = None
        # Each send takes a connection of the pool, which raises if all are in use: that would pass for an outage.
        self._turns = asyncio.Semaphore()

    def check(self, destination: str) -> None:
        """Raise for a destination without a name."""
        if not _split(destination)[1]:
            raise ValueError(f"{destination!r} names nothing: give stream:name, list:name or channel:name.")

    async def look_up(self, destination: str) -> DestinationCheck:
        """Ask Redis what a name is: it creates streams and lists with their first message, and a channel is nothing."""
        kind, name = _split(destination)
        if kind == "channel":
            return DestinationCheck(f"channel {name!r} needs nothing: the subscribers of the moment receive it")
        found = await self.client.type(name)
        found = found.decode() if isinstance(found, bytes) else found
        if found == "none":
            return DestinationCheck(f"{kind} {name!r} is not there yet: Redis creates it with the first message")
        if found != kind:
            wrong = f"{name!r} is a {found} in Redis, and no {kind} can be made of it"
            return DestinationCheck(f"{wrong}: route to another name, or delete it", found=False)
        return DestinationCheck(f"{kind} {name!r} exists")

    async def find_risk(self, destinations: Sequence[str]) -> str:
        """Return whether Redis deletes streams and lists when its memory is full, as a cache does.

        `INFO` has the settings too, and is allowed where `CONFIG` is not: on most servers of cloud providers.
        """
        if destinations and all(_split(each)[0] == "channel" for each in destinations):
            return ""
        memory = await self.client.info("memory")
        policy = str(memory.get("maxmemory_policy", ""))
        if not memory.get("maxmemory") or not policy.startswith("allkeys-"):
            return ""
        return (
            f"Redis deletes streams and lists, with messages that it has confirmed, when its memory is full "
            f"(maxmemory-policy {policy}): set the policy to noeviction, with which the relay waits until there is room"
        )

    async def start(self) -> None:
        """Connect; raise for options that no connection accepts, on which every message would fail."""
        await super().start()
        pool = self.client.connection_pool
        try:
            pool.make_connection()  # opens none
        except TypeError as error:
            raise ValueError(f"The client of Redis does not accept an option of its URL or broker: {error}.") from error
        if pool is not self._pool:
            self._pool = pool
            self._turns = asyncio.Semaphore(max(1, pool.max_connections - pool.max_connections // _SPARED))

    async def alive(self) -> bool:
        """Ping Redis; if that fails, close the pool's idle connections, which are dead too, or lead to a replica."""
        await self.start()
        if self._is_replica:
            self._is_replica = False
            await self._disconnect()
        try:
            return bool(await self.client.ping())
        except exceptions.RedisError:
            await self._disconnect()
            raise

    async def _disconnect(self) -> None:
        await self.client.connection_pool.disconnect(inuse_connections=False)

    async def send(self, message: Outgoing) -> None:
        """Send one command; its answer is the confirmation."""
        await self.producer.publish(_command(message))

    async def send_each(self, messages: Sequence[Outgoing]) -> list[Exception | None]:
        """Send messages in pipelines, each as large as there is room: single commands would need a connection each."""
        errors: list[Exception | None] = []
        while len(errors) < len(messages):
            part = self._fitting(messages[len(errors) :])
            async with self._room(part):
                errors += await self._send_together(part, transaction=False)
            if isinstance(outage := errors[-1], OutageError):
                errors += [OutageError(f"Not sent yet: {outage}")] * (len(messages) - len(errors))
        return errors

    async def send_run(self, run: Sequence[Outgoing], holds_lease: HoldsLease) -> SentRun:
        """Send a run in transactions if it has one destination: Redis then accepts all messages of each or none."""
        if len({message.destination for message in run}) > 1:
            return await super().send_run(run, holds_lease)
        confirmed = 0
        while confirmed < len(run):
            part = self._fitting(run[confirmed:])
            async with self._room(part):
                if not holds_lease():
                    return SentRun(confirmed, LeaseLostError())
                errors = await self._send_together(part, transaction=True)
            for error in errors:
                if error is not None:
                    return SentRun(confirmed, error)
                confirmed += 1
        return SentRun(confirmed)

    def window(self, destination: str) -> Window:  # noqa: ARG002 - Redis is one destination
        """Return what bounds the bytes on their way to Redis."""
        return self._window

    def _fitting(self, messages: Sequence[Outgoing]) -> Sequence[Outgoing]:
        return messages[: self._window.count([message.size for message in messages])]

    async def _send_in_turn(self, message: Outgoing, holds_lease: HoldsLease) -> Exception | None:
        async with self._turns:
            return await super()._send_in_turn(message, holds_lease)

    @asynccontextmanager
    async def _room(self, messages: Sequence[Outgoing]) -> AsyncIterator[None]:
        """Wait for a connection, then for room for the bytes of some messages."""
        size = sum(message.size for message in messages)
        async with self._turns, self._window.room(size, self.confirm_timeout):
            yield

    async def _send_together(self, messages: Sequence[Outgoing], *, transaction: bool) -> list[Exception | None]:
        refusals: list[Exception | None] = []
        seconds = self.seconds_for(sum(message.size for message in messages))
        try:
            async with asyncio.timeout(seconds), self.client.pipeline(transaction=transaction) as pipeline:
                for message in messages:
                    refusals.append(await self._add(message, pipeline))
                    if transaction and refusals[-1] is not None:
                        break  # the messages of a key behind it must wait
                results = iter(await pipeline.execute(raise_on_error=False) if None in refusals else ())
        except TimeoutError:
            silent = NothingAcceptedError(f"Redis has answered nothing for {self.confirm_timeout:g} seconds.")
            return [silent] * len(messages)
        except Exception as error:  # noqa: BLE001 - the forwarder decides by the error
            return [self.translate(error)] * len(messages)
        answers = (next(results) if refusal is None else refusal for refusal in refusals)
        return [self.translate(each) if isinstance(each, Exception) else None for each in answers]

    async def _add(self, message: Outgoing, pipeline: Any) -> RefusedError | None:
        """Add a message to a pipeline; return an error for one that cannot be encoded, so that the others are sent."""
        try:
            await self.producer.publish(_command(message, pipeline))
        except Exception as error:  # noqa: BLE001 - nothing is sent yet, so the message is the cause
            return RefusedError(error_text(error))
        return None

    def translate(self, error: Exception) -> Exception:
        """Return the `OutageError` or `RefusedError` that an answer of Redis means."""
        self._is_replica |= isinstance(error, exceptions.ReadOnlyError)
        if isinstance(error, exceptions.ResponseError):
            text = _server_text(error)
            temporary = isinstance(error, _TEMPORARY) or text.startswith(_TEMPORARY_CODES)
            return (NothingAcceptedError if temporary else RefusedError)(f"{type(error).__name__}: {text}")
        if isinstance(error, exceptions.ConnectionError) and " connecting to " not in str(error):
            return ConnectionLostError(error_text(error))
        return super().translate(error)


def _server_text(error: Exception) -> str:
    """Return the text that Redis sent, without the values of the message.

    The client puts the command before it in a pipeline, and Redis adds the arguments of a command that it lacks.
    """
    _, in_pipeline, text = str(error).rpartition(" of pipeline caused error: ")
    if in_pipeline:
        text = " ".join(map(str, literal_eval(text)))
    return text.partition(", with args beginning with:")[0]


def _command(message: Outgoing, pipeline: Any = None) -> RedisPublishCommand:
    kind, name = _split(message.destination)
    destination: dict[str, Any] = {kind: name}
    # FastStream writes the number of characters of a text where bytes must be counted: encode what is not ASCII.
    headers: dict[Any, Any] = {_encoded(name): _encoded(value) for name, value in message.headers.items()}
    return RedisPublishCommand(
        message.payload,
        headers=headers,
        correlation_id=message.correlation_id,
        pipeline=pipeline,
        _publish_type=PublishType.PUBLISH,
        **destination,
    )


def _split(destination: str) -> tuple[str, str]:
    kind, colon, name = destination.partition(":")
    return (kind, name) if colon and kind in _KINDS else ("stream", destination)


def _encoded(text: str) -> str | bytes:
    return text if text.isascii() else text.encode()

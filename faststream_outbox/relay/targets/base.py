"""What all targets share: their contract, their errors, and how messages are sent and confirmed."""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, ClassVar, Final, NamedTuple
from weakref import WeakValueDictionary

from faststream_outbox.relay.outgoing import Outgoing
from faststream_outbox.relay.targets.window import Window
from faststream_outbox.runtime.telemetry import PlainError
from faststream_outbox.runtime.timeouts import within

# How long a broker may take to disconnect with an old password, or to connect with a new one.
_RENEW_SECONDS: Final = 10.0

# A message of so many bytes may take a second longer to be confirmed.
_BYTES_PER_SECOND: Final = 2**18

# How many destinations to remember the window of while nothing is on its way there.
_REMEMBERED_WINDOWS: Final = 100

# Returns whether the relay still holds the lease of the rows: asked before each send, as an outage may outlast a lease.
HoldsLease = Callable[[], bool]


class OutageError(Exception):
    """The broker cannot be reached or does not answer: all messages are sent again, and no row counts an attempt."""


class ConnectionLostError(OutageError):
    """The connection was lost while the message was on its way: the message may be the cause."""


class NothingAcceptedError(OutageError):
    """The broker accepts no message for now, although it may answer a ping: a confirmation ends this outage."""


class NotAcceptedError(OutageError):
    """The destination accepts nothing for now, because it is full or does not confirm; others may accept."""


class NotAllowedError(NotAcceptedError):
    """The relay has no right to send to the destination, or has lost it."""


class UnexplainedError(NotAcceptedError):
    """The broker answered with an error that does not say whether the message or its destination is at fault."""

    def __init__(self, text: str, *, accepted_at: float) -> None:
        super().__init__(text)
        # When the place that the message was sent to, such as a partition, last accepted another one.
        self.accepted_at = accepted_at


class RefusedError(PlainError):
    """The broker will never accept this message."""


class LeaseLostError(Exception):
    """The lease of the rows was lost, so they were not sent: another relay may be sending them."""


def error_text(error: Exception) -> str:
    """Return the name and the text of a client's error; the text of aiokafka's errors has their name already."""
    name, text = type(error).__name__, str(error)
    return text if name in text else f"{name}: {text}"


class SentRun(NamedTuple):
    """How many of the first messages of a key were confirmed, and the error that stopped the rest."""

    confirmed: int
    error: Exception | None = None


class DestinationCheck(NamedTuple):
    """Whether a destination is there, as far as the broker can be asked, and a sentence that says it.

    Attributes:
        text: What was found, or what to create; a sentence without its full stop.
        found: False if messages cannot be sent there, or may be lost there.

    """

    text: str
    found: bool = True


class Target(ABC):
    """A broker that a relay sends to."""

    # After so many seconds without a confirmation the broker is treated as down.
    confirm_timeout: float = 15.0
    # Returns another FastStream broker if the password has changed, or None; asked again and again while the broker is
    # down. Set where passwords may change.
    find_broker: Callable[[], Awaitable[Any]] | None = None
    # Called with a destination that has confirmed nothing for `confirm_timeout`, and the error; set by the relay.
    on_outage: Callable[[str, OutageError], None] | None = None
    # The client's errors that `translate` turns into a `RefusedError`; if they are none of those, a `NotAcceptedError`;
    # and if they are none of those either, an `OutageError`.
    refusals: ClassVar[tuple[type[Exception], ...]] = ()
    unaccepted: ClassVar[tuple[type[Exception], ...]] = ()
    outages: ClassVar[tuple[type[Exception], ...]] = ()
    # Whether one destination may accept messages while another does not; if so, messages for each are sent apart.
    by_destination: ClassVar[bool] = True
    # Whether only one message of a key is on its way at a time.
    one_of_a_key: ClassVar[bool] = False
    # Whether a client that repeats a send by itself is stopped after `confirm_timeout`; set for a twin.
    gives_up: bool = False

    async def wait_confirmed(self, confirmation: Awaitable[Any], destination: str) -> None:
        """Wait for a confirmation without limit, and report an outage each time `confirm_timeout` has passed.

        For clients that repeat a send by themselves: a second send by the relay would duplicate the message.
        """
        future = asyncio.ensure_future(confirmation)
        while not (await asyncio.wait({future}, timeout=self.confirm_timeout))[0]:
            error = self.not_confirmed(destination, await self.explain_silence(destination))
            if self.gives_up:
                future.cancel()
                raise error
            if self.on_outage is not None:
                self.on_outage(destination, error)
        future.result()

    def not_confirmed(self, destination: str, why: str = "") -> OutageError:
        """Return the error for a confirmation that did not come in time."""
        silence = f"{destination} has confirmed nothing for {self.confirm_timeout:g} seconds"
        return NotAcceptedError(f"{silence}: {why}." if why else f"{silence}.")

    async def explain_silence(self, destination: str) -> str:  # noqa: ARG002 - not every broker knows why
        """Return what the broker knows about a destination that confirms nothing; raise no error."""
        return ""

    def translate(self, error: Exception) -> Exception:
        """Return the `OutageError` or `RefusedError` that a client's error means; any other error as it is."""
        if isinstance(error, self.refusals):
            return RefusedError(error_text(error))
        if isinstance(error, self.unaccepted):
            return NotAcceptedError(error_text(error))
        if isinstance(error, self.outages):
            return OutageError(error_text(error))
        return error

    @abstractmethod
    def check(self, destination: str) -> None:
        """Raise `ValueError` for a destination that this kind of broker cannot have."""

    async def look_up(self, destination: str) -> DestinationCheck:
        """Ask the connected broker whether it has a destination; create nothing and send nothing."""
        return DestinationCheck(f"{destination!r} is not checked: this broker cannot be asked")

    async def find_risk(self, destinations: Sequence[str]) -> str:  # noqa: ARG002 - most brokers have none
        """Return how the connected broker may lose what it confirms for some destinations; "" if it does not."""
        return ""

    @abstractmethod
    async def start(self) -> None:
        """Connect, unless the broker is connected."""

    @abstractmethod
    async def stop(self) -> None:
        """Disconnect, if `start` connected."""

    async def renew(self) -> None:
        """Replace the broker by another one, if there is one; what is being sent fails, and is sent again."""
        broker = None if self.find_broker is None else await self.find_broker()
        if broker is None:
            return
        with suppress(Exception):  # the server may not let an old connection end in order
            await within(_RENEW_SECONDS, self.stop())
        self.use(broker)
        with suppress(Exception):  # the next check says whether it is connected
            await within(_RENEW_SECONDS, self.start())

    def use(self, broker: Any) -> None:
        """Connect by another FastStream broker from now on."""
        raise NotImplementedError

    def twin(self) -> "Target | None":
        """Return a target for the same broker with its own connections, to be started for messages to be sent alone.

        None if the client has one connection: such a message is then sent when no other is on its way.
        """
        return None

    @abstractmethod
    async def alive(self) -> bool:
        """Return whether the broker answers."""

    async def connect(self) -> bool:
        """Connect, and return whether the broker answers."""
        await self.start()
        return await self.alive()

    async def reachable(self) -> bool:
        """Return whether the server accepts a new connection at this moment."""
        return await self.alive()

    @abstractmethod
    async def send_each(self, messages: Sequence[Outgoing]) -> list[Exception | None]:
        """Send messages that have no order; return an error, or None, for each."""

    @abstractmethod
    async def send_run(self, run: Sequence[Outgoing], holds_lease: HoldsLease) -> SentRun:
        """Send the messages of one key in order; send none before the broker has the one before it."""


class OneByOneTarget(Target):
    """A FastStream broker that confirms single messages: a key waits for each, and keys do not wait for each other.

    The relay connects it, unless the application has. Messages go through its producer and not through its middlewares,
    because they are bytes and no handler's answer.
    """

    one_of_a_key = True
    # Whether the client repeats a send by itself; if not, the relay repeats one that is not confirmed in time.
    repeats_sends: ClassVar[bool] = False
    # Whether `send` itself limits the time until the confirmation, because it may have to wait before it sends.
    limits_time: ClassVar[bool] = False

    def __init__(self, broker: Any) -> None:
        self.use(broker)
        # By destination: of those that messages are on their way to, and of some others.
        self._windows: WeakValueDictionary[str, Window] = WeakValueDictionary()
        self._newest_windows: deque[Window] = deque(maxlen=_REMEMBERED_WINDOWS)

    def use(self, broker: Any) -> None:
        """Connect by another FastStream broker from now on."""
        self.broker = broker
        self._connected = False

    async def start(self) -> None:
        """Connect, without starting the broker's subscribers."""
        if self.client is None:
            await self.broker.connect()
            self._connected = True

    async def stop(self) -> None:
        """Disconnect, if `start` connected."""
        if self._connected:
            self._connected = False
            await self.broker.stop()

    @property
    def client(self) -> Any:
        """The connection of FastStream's broker; None while it is not connected."""
        return self.broker._connection  # noqa: SLF001 - FastStream has no public name for it

    @property
    def connection(self) -> object:
        """An object that stands for the open connection, and differs for the next one; None while there is none."""
        return None

    @property
    def producer(self) -> Any:
        """The producer that FastStream itself sends with."""
        return self.broker.config.broker_config.producer

    @abstractmethod
    async def send(self, message: Outgoing) -> None:
        """Send a message and wait until it is confirmed."""

    async def send_each(self, messages: Sequence[Outgoing]) -> list[Exception | None]:
        """Send all messages at once, then wait for all confirmations."""
        return list(await asyncio.gather(*(self._send_in_turn(message, lambda: True) for message in messages)))

    async def send_run(self, run: Sequence[Outgoing], holds_lease: HoldsLease) -> SentRun:
        """Send each message after the one before it is confirmed: the broker might accept a later one only."""
        for confirmed, message in enumerate(run):
            error = await self._send_in_turn(message, holds_lease)
            if error is not None:
                return SentRun(confirmed, error)
        return SentRun(len(run))

    async def _send_in_turn(self, message: Outgoing, holds_lease: HoldsLease) -> Exception | None:
        """Send a message when there is room for it, unless the lease is lost meanwhile."""
        if self.repeats_sends:
            return await self._try(self.send(message), message.destination) if holds_lease() else LeaseLostError()
        size, window = message.size, self.window(message.destination)
        async with window.room(size, self.confirm_timeout, may_skip=True) as admitted:
            if not holds_lease():
                return LeaseLostError()
            if not admitted:
                return self.not_confirmed(message.destination)
            seconds = None if self.limits_time else self.seconds_for(size)
            error = await self._try(self.send(message), message.destination, seconds)
            if not isinstance(error, OutageError):
                window.answered()
            return error

    def window(self, destination: str) -> Window:
        """Return what bounds the bytes on their way to a destination."""
        if (window := self._windows.get(destination)) is None:
            window = self._windows[destination] = Window()
            self._newest_windows.append(window)
        return window

    def seconds_for(self, size: int) -> float:
        """Return how long a message may take to be confirmed; a large one may be slow to send."""
        return self.confirm_timeout + size / _BYTES_PER_SECOND

    async def _try(self, sending: Awaitable[None], destination: str, seconds: float | None = None) -> Exception | None:
        connection = self.connection
        try:
            async with asyncio.timeout(seconds):
                await sending
        except TimeoutError:
            return self._unless_lost(connection, self.not_confirmed(destination))
        except Exception as error:  # noqa: BLE001 - the forwarder decides by the error
            return self._unless_lost(connection, self.translate(error))
        return None

    def _unless_lost(self, connection: object, error: Exception) -> Exception:
        """Return the error of a send, or that its connection was lost."""
        lost = isinstance(error, OutageError) and connection is not None and self.connection != connection
        return ConnectionLostError(f"The connection was lost: {error}") if lost else error


class SharedLock:
    """A lock that many hold together (`shared`) or one holds alone (`exclusive`)."""

    def __init__(self) -> None:
        # Held by the exclusive holder, from when it begins to wait; shared holders only pass through it.
        self._entry = asyncio.Lock()
        self._sharing = 0
        self._unshared = asyncio.Event()
        self._unshared.set()

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        """Hold the lock together with others."""
        async with self._entry:
            self._sharing += 1
            self._unshared.clear()
        try:
            yield
        finally:
            self._sharing -= 1
            if not self._sharing:
                self._unshared.set()

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        """Hold the lock alone."""
        async with self._entry:
            await self._unshared.wait()
            yield

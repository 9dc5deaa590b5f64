"""A broker in memory, for what needs no other: what it takes and refuses is a test's to say."""

from collections.abc import Callable, Sequence

from faststream_outbox.relay.outgoing import Outgoing
from faststream_outbox.relay.targets.base import SentRun, StillOurs, Target


class Memory(Target):
    """Takes everything, unless `fails` says what is wrong with a message."""

    def __init__(self, fails: Callable[[bytes], Exception | None] = lambda _: None) -> None:
        self.sent: list[bytes] = []
        self.destinations: dict[bytes, str] = {}
        self.is_up = True
        self._fails = fails

    def check(self, destination: str) -> None: ...
    async def start(self) -> None: ...
    async def stop(self) -> None: ...

    async def alive(self) -> bool:
        return self.is_up

    async def send_each(self, messages: Sequence[Outgoing]) -> list[Exception | None]:
        return [self._send(message) for message in messages]

    async def send_run(self, run: Sequence[Outgoing], still_ours: StillOurs) -> SentRun:
        assert still_ours()
        for confirmed, message in enumerate(run):
            if (error := self._send(message)) is not None:
                return SentRun(confirmed, error)
        return SentRun(len(run))

    def _send(self, message: Outgoing) -> Exception | None:
        if (error := self._fails(message.payload)) is None:
            self.sent.append(message.payload)
            self.destinations[message.payload] = message.destination
        return error

    def translate(self, error: Exception) -> Exception:
        return error

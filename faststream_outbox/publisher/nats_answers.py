"""Waits until NATS has received what was published, and notices what it does not allow a client to publish."""

import asyncio
import re
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final
from weakref import WeakKeyDictionary

# How often a wait for an answer checks that the connection is still the same.
_CHECK_SECONDS: Final = 0.5
# The client passes errors on in lower case.
_VIOLATION: Final = re.compile(r'permissions violation for publish to "(.*?)"')
# How many subjects to remember: many more than are being published to at any moment.
_REMEMBERED: Final = 100_000


class NatsForbiddenError(Exception):
    """NATS does not allow this user to publish to a subject."""

    def __init__(self, subject: str) -> None:
        super().__init__(f"NATS does not allow this user to publish to {subject!r}.")


class _Violations:
    """Notes each subject that the server refuses; it reports them later and drops the messages."""

    def __init__(self, client: Any) -> None:
        self._count = 0
        self._last: OrderedDict[str, int] = OrderedDict()
        pass_on = client._error_cb  # noqa: SLF001 - the client has no public name for it

        async def note(error: Exception) -> None:
            if found := _VIOLATION.search(str(error).lower()):
                self._count += 1
                self._last[found[1]] = self._count
                self._last.move_to_end(found[1])
                if len(self._last) > _REMEMBERED:
                    self._last.popitem(last=False)
            await pass_on(error)

        client._error_cb = note  # noqa: SLF001 - same

    def check_from_now(self) -> Callable[[str], None]:
        before = self._count

        def check(subject: str) -> None:
            if self._last.get(subject.lower(), 0) > before:
                raise NatsForbiddenError(subject)

        return check


_VIOLATIONS: Final[WeakKeyDictionary[Any, _Violations]] = WeakKeyDictionary()


def nats_permissions(client: Any) -> Callable[[str], None]:
    """Return a check that raises `NatsForbiddenError` for a subject that the server has refused since this call.

    The server reports that before it answers anything that is sent later.
    """
    if (violations := _VIOLATIONS.get(client)) is None:
        violations = _VIOLATIONS[client] = _Violations(client)
    return violations.check_from_now()


@asynccontextmanager
async def nats_flushed(client: Any, timeout: int = 10) -> AsyncIterator[None]:  # noqa: ASYNC109 - as the client has it
    """Publish inside, then wait until the server has received everything; raise `ConnectionError` if it has not.

    A disconnected client buffers each attempt and sends them all later, and its flush returns at once.
    """
    if not client.is_connected:
        raise ConnectionError("NATS is not connected.")
    connections = client.stats["reconnects"]
    yield
    await nats_answer(client, _flush(client, timeout), connections)


async def nats_answer(
    client: Any, waiting: Coroutine[Any, Any, Any], connections: int, *, check: Callable[[], None] = lambda: None
) -> Any:
    """Wait for an answer of the server; raise `ConnectionError` if the connection is lost, which the client does not.

    `connections` is how often the client had reconnected before. `check` raises if no answer will come.
    """
    task = asyncio.ensure_future(waiting)
    try:
        while not (await asyncio.wait({task}, timeout=_CHECK_SECONDS))[0]:
            _check_connection(client, connections)
            check()
        answer = task.result()
    finally:
        task.cancel()
        task.add_done_callback(_retrieve)
    _check_connection(client, connections)
    return answer


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Look at the error of a task whose answer is not waited for any more, or asyncio would log it."""
    if not task.cancelled():
        task.exception()


def _check_connection(client: Any, connections: int) -> None:
    if not client.is_connected or client.stats["reconnects"] != connections:
        raise ConnectionError("The connection to NATS was lost.")


async def _flush(client: Any, timeout: int) -> None:  # noqa: ASYNC109 - as the client has it
    """Write what the client holds, then exchange a ping.

    The client's own flush sends the ping first, which confirms nothing; and if it is cancelled or too slow, the client
    fails at the late answer and reads no more.
    """
    await client._flush_pending(force_flush=True)  # noqa: SLF001 - the client has no public name for it
    pong = asyncio.get_running_loop().create_future()
    await client._send_ping(pong)  # noqa: SLF001 - same
    if not (await asyncio.wait({pong}, timeout=timeout))[0]:
        raise ConnectionError(f"NATS did not answer within {timeout} seconds.")

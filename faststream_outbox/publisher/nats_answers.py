"""Waits until NATS has received what was published, and notices what it does not allow a client to publish."""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any, Final
from weakref import WeakKeyDictionary

# How often a wait for an answer checks that the connection is still the same.
_CHECK_SECONDS: Final = 0.5
# The server quotes the subject as Go does; the client passes errors on in lower case.
_VIOLATION: Final = re.compile(r'permissions violation for publish(?: to "(.*)")?', re.DOTALL)
# Eight digits begin with 000 or 001. Four digits never do: Go writes such characters as \xNN.
_ESCAPE: Final = re.compile(r"\\(?:u(00[01][0-9a-f]{5}|[0-9a-f]{4})|x([0-9a-f]{2})|(.))")
_NAMED_ESCAPES: Final = dict(zip("abfnrtv", "\a\b\f\n\r\t\v", strict=True))

# The subjects by which NATS is operated, and those of answers, in the form that is compared.
_INTERNAL: Final = ("$", "_inbox.")


class NatsForbiddenError(Exception):
    """NATS does not allow this user to publish to a subject."""

    def __init__(self, subject: str) -> None:
        super().__init__(f"NATS does not allow this user to publish to {subject!r}.")


class NatsDroppedError(Exception):
    """NATS has dropped a message, and it cannot be said which."""

    def __init__(self, report: str) -> None:
        super().__init__(f"NATS has dropped a message, perhaps this one, and reports a subject of no message: {report}")


class _Violations:
    """Notes each subject that the server refuses; it reports them later and drops the messages."""

    def __init__(self, client: Any) -> None:
        self._count = 0
        # How many messages are on their way to each subject, and the number of its last violation.
        self._on_their_way: Counter[str] = Counter()
        self._last: dict[str, int] = {}
        # The last violation of a subject that nothing was on its way to, and its number: the server may have mapped the
        # subject to another one.
        self._unknown: tuple[str, int] = ("", 0)
        pass_on = client._error_cb  # noqa: SLF001 - the client has no public name for it

        async def note(error: Exception) -> None:
            if found := _VIOLATION.search(str(error).lower()):
                self._count += 1
                subject = _comparable(_unescaped(found[1] or ""))
                if subject in self._on_their_way:
                    self._last[subject] = self._count
                elif not subject.startswith(_INTERNAL):  # such as a confirmation that the application sends
                    self._unknown = (str(error), self._count)
            await pass_on(error)

        client._error_cb = note  # noqa: SLF001 - same

    @contextmanager
    def watch(self, subjects: Iterable[str]) -> Iterator[Callable[[str], None]]:
        before = self._count
        watched = [_comparable(each) for each in subjects]
        self._on_their_way.update(watched)

        def check(subject: str) -> None:
            if self._last.get(_comparable(subject), 0) > before:
                raise NatsForbiddenError(subject)
            report, number = self._unknown
            if number > before:
                raise NatsDroppedError(report)

        try:
            yield check
        finally:
            for each in watched:
                self._on_their_way[each] -= 1
                if not self._on_their_way[each]:
                    del self._on_their_way[each]
                    self._last.pop(each, None)


def _unescaped(quoted: str) -> str:
    """Return a text that Go has quoted and the client has put in lower case."""

    def character(escape: re.Match[str]) -> str:
        digits = escape[1] or escape[2]
        return chr(int(digits, 16)) if digits else _NAMED_ESCAPES.get(escape[3], escape[3])

    return _ESCAPE.sub(character, quoted)


def _comparable(subject: str) -> str:
    """Return a form of a subject that is the same before and after the client has put it in lower case."""
    return subject.casefold()


_VIOLATIONS: Final[WeakKeyDictionary[Any, _Violations]] = WeakKeyDictionary()


def nats_permissions(client: Any, subjects: Iterable[str]) -> AbstractContextManager[Callable[[str], None]]:
    """Return a context in which to publish to some subjects; it gives a check that raises for one that was refused.

    `NatsForbiddenError` says that the server has refused the subject; `NatsDroppedError` that it has refused one which
    nothing was published to, so that any message may be dropped. The server reports that before it answers anything
    that is sent later.
    """
    if (violations := _VIOLATIONS.get(client)) is None:
        violations = _VIOLATIONS[client] = _Violations(client)
    return violations.watch(subjects)


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

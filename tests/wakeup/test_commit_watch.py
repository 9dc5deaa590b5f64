"""The watch over drivers' connections: it announces queues when a transaction has ended, and also before."""

import asyncio
from collections.abc import Iterable

from faststream_outbox.storage.sessions.raw import RawConnection
from faststream_outbox.wakeup.commit_watch import CommitWatch
from tests.waiting import until


class Connection(RawConnection):
    """A connection whose state the test sets, and that counts the looks at it."""

    def __init__(self) -> None:
        super().__init__(self)
        self.open = True
        self.looks = 0

    @property
    def in_transaction(self) -> bool:
        self.looks += 1
        return self.open


async def test_a_connection_is_looked_at_until_its_transaction_has_ended() -> None:
    announced: list[set[str]] = []

    def announce(queues: Iterable[str]) -> None:
        announced.append(set(queues))

    watch, connection, loop = CommitWatch(announce), Connection(), asyncio.get_running_loop()
    watch.add(loop, connection, "a")
    watch.add(loop, connection, "b")
    await until(lambda: len(announced) > 1)
    assert announced[0] == {"a", "b"}  # it may be in its next transaction already
    connection.open = False
    seen, before = connection.looks, len(announced)
    await until(lambda: connection.looks > seen)
    assert announced[before:] == [{"a", "b"}]
    after = connection.looks
    watch.add(loop, Connection(), "c")
    await until(lambda: {"c"} in announced)
    assert connection.looks == after


async def test_stopping_announces_what_is_left() -> None:
    announced: list[str] = []
    watch, loop = CommitWatch(announced.extend), asyncio.get_running_loop()
    watch.add(loop, Connection(), "a")
    watch.finish()
    assert announced == ["a"]
    watch.finish()
    assert announced == ["a"]


async def test_a_look_ahead_of_time_finds_those_that_have_ended() -> None:
    watch, loop = CommitWatch(lambda _: None), asyncio.get_running_loop()
    ended, still_open, not_begun = Connection(), Connection(), Connection()
    not_begun.open = False  # its INSERT is about to begin the transaction
    watch.add(loop, ended, "ended")
    watch.add(loop, still_open, "open")
    watch.add(loop, not_begun, "not begun")
    ended.open = False
    assert watch.look(loop) == {"ended"}
    assert watch.look(loop) == set()
    left = list[str]()
    watch._announce = left.extend
    watch.finish()
    assert sorted(left) == ["not begun", "open"]

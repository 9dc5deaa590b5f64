"""The window lets few bytes be on their way where confirmations are slow, and more where they are quick."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from faststream_outbox.relay.targets import window as module
from faststream_outbox.relay.targets.window import Window

MIB = 2**20
TIMEOUT = 12.0


@pytest.fixture
def pass_time(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    now = [100.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def pass_(seconds: float) -> None:
        now[0] += seconds

    return pass_


def fits(window: Window) -> int:
    """Return how many bytes the window lets be sent together."""
    return window.count([1024] * (100 * 1024)) * 1024


async def confirm(window: Window, size: int, seconds: float, pass_time: Callable[[float], None]) -> None:
    async with window.room(size, TIMEOUT):
        pass_time(seconds)


async def test_a_slow_confirmation_halves_it_down_to_a_bound(pass_time: Callable[[float], None]) -> None:
    window = Window()
    sizes = []
    for _ in range(4):
        sizes.append(fits(window))
        await confirm(window, MIB, TIMEOUT / 2, pass_time)
    assert sizes == [MIB, MIB // 2, MIB // 4, MIB // 4]


async def test_quick_confirmations_let_it_grow_if_it_was_used(pass_time: Callable[[float], None]) -> None:
    window = Window()
    await confirm(window, 1024, 0.1, pass_time)
    assert fits(window) == MIB
    sizes = []
    for _ in range(8):
        sizes.append(fits(window) // MIB)
        await confirm(window, fits(window), 0.1, pass_time)
    assert sizes == [1, 2, 4, 8, 16, 32, 64, 64]


async def test_a_confirmation_that_is_neither_leaves_it_as_it_is(pass_time: Callable[[float], None]) -> None:
    window = Window()
    await confirm(window, MIB, TIMEOUT / 4, pass_time)
    assert fits(window) == MIB


async def test_what_was_sent_together_shrinks_it_once(pass_time: Callable[[float], None]) -> None:
    window = Window()
    sent = asyncio.Event()

    async def send() -> None:
        async with window.room(MIB // 4, TIMEOUT):
            await sent.wait()

    sending = [asyncio.create_task(send()) for _ in range(4)]
    await asyncio.sleep(0)
    pass_time(TIMEOUT)
    sent.set()
    await asyncio.gather(*sending)
    assert fits(window) == MIB // 2


async def test_messages_wait_for_room_in_the_order_in_which_they_ask() -> None:
    window, order, ends = Window(), list[int](), [asyncio.Event() for _ in range(4)]

    async def send(number: int, size: int) -> None:
        async with window.room(size, TIMEOUT):
            order.append(number)
            await ends[number].wait()

    sizes = [MIB // 2, 5 * MIB, 1024, 1024]  # the second fits alone only, and the others wait behind it
    sending = [asyncio.create_task(send(number, size)) for number, size in enumerate(sizes)]
    for number in range(4):
        await asyncio.sleep(0.01)
        assert order == [[0], [0, 1], [0, 1, 2, 3], [0, 1, 2, 3]][number]
        ends[number].set()
    await asyncio.gather(*sending)


async def test_one_that_does_not_wait_any_more_keeps_no_other_from_sending() -> None:
    window, end = Window(), asyncio.Event()

    async def send(size: int) -> None:
        async with window.room(size, TIMEOUT):
            await end.wait()

    first, second = (asyncio.create_task(send(MIB)) for _ in range(2))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.wait({second})
    end.set()
    await asyncio.gather(first, send(MIB))


def test_at_least_one_message_is_sent_together() -> None:
    assert Window().count([5 * MIB, 1]) == 1
    assert Window().count([MIB // 2, MIB // 2, 1]) == 2
    assert Window().count([]) == 0


async def wait_behind(window: Window, *, sizes: int, seconds: float, pass_time: Callable[[float], None]) -> list[bool]:
    """Let messages wait behind one that is given up after some time; return which of them are admitted."""

    async def send() -> bool:
        async with window.room(MIB, TIMEOUT, may_skip=True) as admitted:
            return admitted

    async with window.room(sizes, TIMEOUT, may_skip=True):
        sending = [asyncio.create_task(send()) for _ in range(3)]
        await asyncio.sleep(0)
        pass_time(seconds)
    return await asyncio.gather(*sending)


async def test_those_that_wait_while_a_destination_becomes_silent_are_skipped(
    pass_time: Callable[[float], None],
) -> None:
    window = Window()
    assert await wait_behind(window, sizes=MIB // 4, seconds=TIMEOUT, pass_time=pass_time) == [False] * 3
    assert fits(window) == MIB // 4, "those that are skipped do not let it grow"
    async with window.room(MIB, TIMEOUT, may_skip=True) as admitted:
        assert admitted, "one that asks later tries again"


@pytest.mark.parametrize(
    ("sizes", "seconds"), [(MIB, TIMEOUT), (1024, TIMEOUT / 10)], ids=["after a large one", "after a quick answer"]
)
async def test_others_are_not_skipped(pass_time: Callable[[float], None], sizes: int, seconds: float) -> None:
    assert await wait_behind(Window(), sizes=sizes, seconds=seconds, pass_time=pass_time) == [True] * 3


async def test_a_destination_that_answers_others_is_not_silent(pass_time: Callable[[float], None]) -> None:
    window, given_up = Window(), asyncio.Event()

    async def send(size: int, *, confirmed: bool) -> bool:
        async with window.room(size, TIMEOUT, may_skip=True) as admitted:
            await given_up.wait()
            if confirmed:
                window.answered()
            return admitted

    sending = [asyncio.create_task(send(MIB // 4, confirmed=number == 0)) for number in range(2)]
    sending.append(asyncio.create_task(send(MIB, confirmed=True)))
    await asyncio.sleep(0)
    pass_time(TIMEOUT)
    given_up.set()
    assert await asyncio.gather(*sending) == [True] * 3

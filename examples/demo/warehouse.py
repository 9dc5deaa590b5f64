"""The handler of the demo: a warehouse that packs orders, and writes down every one it was given."""

import asyncio
from collections import Counter
from collections.abc import Sequence

from examples.demo.fates import Fate
from examples.demo.shop import order_in

PACKING_SECONDS = 0.002


class OutOfReachError(Exception):
    """What a handler meets when another service does not answer: worth another try."""


class UnknownArticleError(Exception):
    """What a handler meets in a message that it can never handle."""


class Warehouse:
    """Packs orders; `packed` and `failed` count what it was given, by order."""

    def __init__(self, fates: Sequence[Fate]) -> None:
        self._fates = fates
        self.packed: Counter[int] = Counter()
        self.failed: Counter[int] = Counter()

    async def pack(self, message: bytes) -> None:
        """Handle one delivery of an order's message."""
        order = order_in(message)
        await asyncio.sleep(PACKING_SECONDS)
        try:
            self._meet_fate(order)
        except Exception:
            self.failed[order] += 1
            raise
        self.packed[order] += 1

    def _meet_fate(self, order: int) -> None:
        match self._fates[order - 1]:
            case Fate.FLAKY if order not in self.failed:
                raise OutOfReachError(f"no answer while packing order {order}")
            case Fate.POISON:
                raise UnknownArticleError(f"order {order} names an article that nobody sells")

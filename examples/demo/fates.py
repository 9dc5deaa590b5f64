"""What is going to happen to each order, dealt from a seed so that a run can be repeated."""

import math
import random
from enum import Enum, auto


class Fate(Enum):
    """The life of one order."""

    SMOOTH = auto()  # committed, delivered
    DECLINED = auto()  # the shop raises after both writes: rolled back
    REFUSED = auto()  # a constraint of the database refuses the order: rolled back
    FLAKY = auto()  # committed; the first delivery fails, the second succeeds
    POISON = auto()  # committed; every delivery fails, until it is a dead letter


_SHARES = {Fate.DECLINED: 0.06, Fate.REFUSED: 0.04, Fate.FLAKY: 0.05, Fate.POISON: 0.002}


def deal_fates(orders: int, seed: int) -> list[Fate]:
    """Deal one fate to each order."""
    # Rounded up, so that a small run shows every kind of life too.
    fates = [fate for fate, share in _SHARES.items() for _ in range(math.ceil(orders * share))]
    fates += [Fate.SMOOTH] * (orders - len(fates))
    random.Random(seed).shuffle(fates)  # noqa: S311 - to be repeated, not to be secret
    return fates[:orders]

"""What will happen to each order, drawn from a seed, by which a run can be repeated."""

import math
import random
from enum import StrEnum, auto


class Fate(StrEnum):
    """The life of one order."""

    SMOOTH = auto()  # committed, confirmed, packed
    DECLINED = auto()  # the shop raises after all its writes: rolled back
    REFUSED = auto()  # a constraint of the database refuses the order: rolled back
    FLAKY = auto()  # confirmed at the second attempt
    STUBBORN = auto()  # confirmed at the third attempt, the last there is
    POISON = auto()  # every attempt fails, and the message becomes a dead letter
    FORGED = auto()  # the handler rejects the message at the first attempt: a dead letter at once
    UNPAID = auto()  # on account, and never paid: the customer is reminded
    PAID = auto()  # on account, and paid before the reminder is due: the shop cancels the reminder


_SHARES = {
    Fate.DECLINED: 0.06,
    Fate.REFUSED: 0.04,
    Fate.FLAKY: 0.04,
    Fate.STUBBORN: 0.02,
    Fate.POISON: 0.004,
    Fate.FORGED: 0.002,
    Fate.UNPAID: 0.04,
    Fate.PAID: 0.06,
}


def deal_fates(orders: int, seed: int) -> list[Fate]:
    """Deal one fate to each order."""
    # Rounded up: a small run shows every kind too.
    fates = [fate for fate, share in _SHARES.items() for _ in range(math.ceil(orders * share))]
    fates += [Fate.SMOOTH] * (orders - len(fates))
    random.Random(seed).shuffle(fates)  # noqa: S311 - to be repeated, not to be secret
    return fates[:orders]

"""The demo's app with a fault, for the tests: `python -m tests.examples.faulty_app`, and `DEMO_FAULT` says which."""

import asyncio
import os
import sys

from faststream.exceptions import AckMessage

from examples.demo import handlers
from examples.demo.app import main
from examples.demo.messages import OrderPlaced


def _forget_an_order() -> None:
    meet_fate = handlers.meet_fate

    def meet_fate_or_forget(order: OrderPlaced, attempt: int) -> None:
        meet_fate(order, attempt)
        if order.order_number == int(os.environ["DEMO_FORGOTTEN"]):
            raise AckMessage

    handlers.meet_fate = meet_fate_or_forget


def _never_finish() -> None:
    handlers.MAIL_SECONDS = 3600.0


def _die() -> None:
    sys.exit("this app has a fault")


if __name__ == "__main__":
    {"forget": _forget_an_order, "hang": _never_finish, "die": _die}[os.environ["DEMO_FAULT"]]()
    asyncio.run(main())

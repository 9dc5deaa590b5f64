"""`python -m examples.demo`: the command line and the exit status."""

import argparse
import random
import sys
from collections.abc import Sequence

PASSED, FAILED, NOT_RUN, INTERRUPTED = 0, 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo and return its exit status."""
    options = _parser().parse_args(arguments)
    try:
        return _run(options.orders, options.seed, with_console=options.console)
    except KeyboardInterrupt:
        print("Interrupted; nothing is left behind.")
        return INTERRUPTED


def _run(orders: int, seed: int, *, with_console: bool) -> int:
    # Imported here: this takes half a second, and Ctrl-C during that time must give no traceback.
    from examples.demo.run import run_demo  # noqa: PLC0415
    from faststream_outbox.embedded import EmbeddedPostgresError  # noqa: PLC0415

    try:
        return PASSED if run_demo(orders, seed, with_console=with_console) else FAILED
    except EmbeddedPostgresError as error:
        print(error, file=sys.stderr)
        return NOT_RUN


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m examples.demo",
        description="Places orders with an outbox, kills one of the workers that handle them, and checks that nothing "
        "is lost and each customer's account in order.",
    )
    parser.add_argument("--orders", type=_positive, default=2000, metavar="N", help="orders to place (default: 2000)")
    parser.add_argument(
        "--seed",
        type=int,
        default=random.randrange(1_000_000),  # noqa: S311 - to be repeated, not to be secret
        metavar="S",
        help="deal the orders the same fates as the run that showed this seed",
    )
    parser.add_argument("--console", action="store_true", help="at the end, show the web console over what is left")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


if __name__ == "__main__":
    sys.exit(main())

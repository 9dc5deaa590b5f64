"""Tells what a relay would stumble over, without relaying anything."""

import asyncio
from collections.abc import AsyncIterator
from importlib.util import find_spec
from typing import Final

from faststream_outbox.cli.errors import ProgramError
from faststream_outbox.cli.outbox import check_tables, in_words
from faststream_outbox.cli.program import Program

# Some clients try for minutes to connect.
_SECONDS_TO_CONNECT: Final = 15.0


async def findings(program: Program) -> AsyncIterator[tuple[bool, str]]:
    """Tell of each thing whether it is well, and what it is or what is wrong."""
    try:
        yield True, f"{_routes(len(program.settings.routes))} to {program.status.to}"
        yield await _check_database(program)
        yield await _check_broker(program)
    finally:
        await program.outbox.stop()
        await program.engine.dispose()


async def _check_database(program: Program) -> tuple[bool, str]:
    try:
        await check_tables(program.outbox)
        if not find_spec("alembic"):
            return True, "the tables can be read; install 'faststream-outbox[validate]' to have their columns compared"
        await program.outbox.validate_schema()
    except (ProgramError, RuntimeError) as error:
        return False, str(error)
    return True, "the tables are as they should be"


async def _check_broker(program: Program) -> tuple[bool, str]:
    to = program.to
    try:
        async with asyncio.timeout(_SECONDS_TO_CONNECT):
            await to.connect()
    except TimeoutError:
        return _silent(program)
    except Exception as error:  # noqa: BLE001 - of whatever client
        return False, f"{program.status.to} cannot be reached: {in_words(error)}"
    try:
        answers = await to.ping(timeout=_SECONDS_TO_CONNECT)
        return (True, "the broker answers") if answers else _silent(program)
    finally:
        await to.stop()


def _silent(program: Program) -> tuple[bool, str]:
    seconds = f"{_SECONDS_TO_CONNECT:g} seconds"
    return False, f"{program.status.to} has not answered for {seconds}: is it running, and can it be reached from here?"


def _routes(number: int) -> str:
    return "1 route" if number == 1 else f"{number} routes"

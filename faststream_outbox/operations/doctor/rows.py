"""Checks of rows that wait: queues that nobody serves, leases of dead nodes, pauses, dead letters."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Final

from faststream_outbox.operations.doctor.examination import Examination, RowGroup
from faststream_outbox.operations.doctor.finding import Finding, command, script
from faststream_outbox.storage.contract import MOST_COUNTED
from faststream_outbox.storage.nodes import GRACE, LOOK_EVERY
from faststream_outbox.storage.postgres.statements.examine.rows import MOST_DEAD
from faststream_outbox.storage.rows import to_datetime

# How long living nodes need to end the leases of a dead one, with room for a claim between two looks.
RECOVERY_SECONDS: Final = GRACE + 3 * LOOK_EVERY


async def check_queues(examination: Examination) -> AsyncIterator[Finding]:
    """Name queues whose due rows no process claims."""
    due: dict[str, list[RowGroup]] = {}
    for group in [*await examination.plain_rows(), *await examination.heads()]:
        if group.state in ("ready", "expired", "in_flight"):
            due.setdefault(group.queue, []).append(group)
    nodes = len(await examination.living_nodes())
    paused = {pause.queue for pause in await examination.pauses()}
    passed_over = paused | await examination.served_queues()
    for queue, groups in due.items():
        oldest = min(group.due for group in groups)
        claimed = any(group.state == "in_flight" for group in groups)
        waits = examination.server.time - oldest > examination.limits.waiting_seconds
        if waits and not claimed and queue not in passed_over:
            yield _unserved(queue, groups, oldest, nodes)


def _unserved(queue: str, groups: Iterable[RowGroup], oldest: float, nodes: int) -> Finding:
    rows = sum(group.count for group in groups)
    alive = {0: "No process with subscribers is connected", 1: "The one living node does not claim them"}.get(
        nodes, f"None of the {nodes} living nodes claims them"
    )
    return Finding(
        "queues",
        "error",
        f"{_due(rows)} in queue {queue!r}. {alive}.",
        to_datetime(oldest),
        "Nothing happens until a subscriber or a relay reads this queue.",
        f"Start the process that reads {queue!r}. If it runs: is the name of the queue misspelled, the prefix of a "
        "router missing, or another table given? What is in the wrong queue can be moved, and what nobody wants "
        "discarded; both only say what they would do until --yes is given.",
        commands=(
            command("nodes", "list"),
            command("messages", "list", "--queue", queue),
            command("messages", "move", "--queue", queue, "--to", "QUEUE", "--reason", "WHY"),
        ),
        alternatives=(command("messages", "discard", "--queue", queue, "--reason", "WHY"),),
    )


def _due(rows: int) -> str:
    """Return how many rows wait, as the beginning of a sentence."""
    if rows == 1:
        return "1 due message or key waits"
    return f"{'At least ' if rows >= MOST_COUNTED else ''}{rows:,} due messages or keys wait"


async def check_backlog(examination: Examination) -> AsyncIterator[Finding]:
    """Name queues whose due rows wait for long although processes claim rows of them."""
    queues: dict[str, list[RowGroup]] = {}
    for group in [*await examination.plain_rows(), *await examination.heads()]:
        queues.setdefault(group.queue, []).append(group)
    paused, served = {pause.queue for pause in await examination.pauses()}, await examination.served_queues()
    for queue, groups in queues.items():
        waiting = [group for group in groups if group.state in ("ready", "expired")]
        in_flight = sum(group.count for group in groups if group.state == "in_flight")
        oldest = min((group.due for group in waiting), default=examination.server.time)
        late = examination.server.time - oldest > examination.limits.backlog_seconds
        if late and queue not in paused and (in_flight or queue in served):
            rows = sum(group.count for group in waiting)
            yield Finding(
                "backlog",
                "warning",
                f"{_due(rows)} in queue {queue!r}, which is read: {in_flight:,} {'is' if in_flight == 1 else 'are'} in "
                "flight.",
                to_datetime(oldest),
                "More is published than the handlers take, or they hang; the newest messages wait longest.",
                "See what is in flight, and since when. If handlers hang, restart their process; if they are slow, "
                "raise max_workers or start more processes.",
                commands=(
                    command("nodes", "list"),
                    command("messages", "list", "--queue", queue, "--state", "in_flight"),
                    command("stats", "--watch"),
                ),
            )


async def check_handlers(examination: Examination) -> AsyncIterator[Finding]:
    """Name living nodes that have had a message in hand for long."""
    alive = await examination.living_nodes()
    for group in [*await examination.plain_rows(), *await examination.heads()]:
        if group.state != "in_flight" or group.node not in alive or group.acquired is None:
            continue
        if examination.server.time - group.acquired > examination.limits.handling_seconds:
            node = await examination.describe_node(group.node)
            yield Finding(
                "handlers",
                "info",
                f"Node {node} has had a message of queue {group.queue!r} in hand for "
                f"{(examination.server.time - group.acquired) / 60:,.0f} minutes.",
                to_datetime(group.acquired),
                "Its handler is slow, or hangs: a message runs until its handler ends, and those of its key wait.",
                "If no handler of this queue takes so long, restart the process: what it had in hand runs again.",
                commands=(command("messages", "list", "--queue", group.queue, "--node", group.node),),
            )


async def check_leases(examination: Examination) -> AsyncIterator[Finding]:
    """Name leases of nodes that are dead, and whose rows no living node takes over."""
    if not await _dead_holders(examination):
        return
    # A node may be reconnecting, and living nodes need some seconds to take over what a dead one held.
    await asyncio.sleep(RECOVERY_SECONDS)
    examination.forget_rows()
    for node, groups in (await _dead_holders(examination)).items():
        rows, since = sum(group.count for group in groups), min(group.acquired or 0 for group in groups)
        queues = ", ".join(sorted({repr(group.queue) for group in groups}))
        table = examination.found["outbox"].name
        yield Finding(
            "leases",
            "warning",
            f"Node {await examination.describe_node(node)} is dead and still holds {rows:,} "
            f"{'message or key' if rows == 1 else 'messages or keys'} of "
            f"{queues}.",
            to_datetime(since),
            "They run again only when their leases end: no living node with a lock of its own reads these queues.",
            "Start a process that reads these queues: it takes over within 10 seconds. Or end the leases.",
            script(
                f"UPDATE {table} SET lease_expires_at = now() WHERE lease_expires_at > now() "  # noqa: S608 - shown, not run
                f"AND left(acquired_token::text, 13) = '{node}'"
            ),
        )


async def _dead_holders(examination: Examination) -> dict[str, list[RowGroup]]:
    groups = [*await examination.plain_rows(), *await examination.heads()]
    # Asked after the rows: a node that holds one of them has taken its lock before.
    alive = await examination.living_nodes()
    dead: dict[str, list[RowGroup]] = {}
    for group in groups:
        if group.state == "in_flight" and group.node is not None and group.node not in alive:
            dead.setdefault(group.node, []).append(group)
    return dead


async def check_dead_letters(examination: Examination) -> AsyncIterator[Finding]:
    """Name queues whose dead letters grow."""
    statement, limits = examination.questions().dead, examination.limits
    if statement is None:
        return
    for queue, number, since, reason in await examination.fetch(statement, seconds=limits.dead_letter_seconds):
        if number >= limits.dead_letters:
            counted = f"{number:,}{'+' if number >= MOST_DEAD else ''}"
            yield Finding(
                "dead_letters",
                "warning",
                f"{counted} messages of queue {queue!r} failed for good in the last "
                f"{limits.dead_letter_seconds / 60:,.0f} minutes, most for the reason {reason!r}.",
                to_datetime(since),
                "The handler fails for what comes now: what these messages should have done is not done.",
                "See what fails, mend the handler, then send them again: replay only says what it would do until --yes "
                "is given.",
                commands=(
                    command("dlq", "groups"),
                    command("dlq", "list", "--queue", queue),
                    command("dlq", "replay", "--queue", queue, "--reason", "WHY"),
                ),
            )


async def check_pauses(examination: Examination) -> AsyncIterator[Finding]:
    """Name queues that are paused for long, without an end, and those whose due rows wait for the end of a pause."""
    waiting: dict[str, list[RowGroup]] = {}
    for group in [*await examination.plain_rows(), *await examination.heads()]:
        if group.state in ("ready", "expired"):
            waiting.setdefault(group.queue, []).append(group)
    for pause in await examination.pauses():
        paused = f"by {pause.by}: {pause.reason.rstrip('.')}."
        cure, resume = "If the reason is gone, resume it.", command("queues", "resume", pause.queue, "--reason", "WHY")
        long = examination.server.time - pause.since > examination.limits.pause_seconds
        groups = waiting.get(pause.queue, [])
        oldest = min((group.due for group in groups), default=examination.server.time)
        if pause.until is None and long:
            yield Finding(
                "pauses",
                "warning",
                f"Queue {pause.queue!r} is paused without an end, {paused}",
                to_datetime(pause.since),
                "Its messages wait until an operator resumes it, and the pause may be forgotten.",
                cure,
                commands=(resume,),
            )
        elif examination.server.time - oldest > examination.limits.waiting_seconds:
            rows, until = sum(group.count for group in groups), "it is resumed"
            if pause.until is not None:
                until = f"{to_datetime(pause.until):%Y-%m-%d %H:%M:%SZ}"
            yield Finding(
                "pauses",
                "info",
                f"{_due(rows)} in queue {pause.queue!r}. It is paused until {until}, {paused}",
                to_datetime(pause.since),
                "No process claims them before the pause ends.",
                cure,
                commands=(resume,),
            )

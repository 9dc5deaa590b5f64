"""The check of keys that wait: parked or stopped by an operator, retried for long, behind a delayed message."""

from collections.abc import AsyncIterator

from faststream_outbox.operations.doctor.examination import Examination, RowGroup
from faststream_outbox.operations.doctor.finding import Finding, Severity, command
from faststream_outbox.storage.postgres.statements.examine.rows import DELAYING, HELD, MOST_KEYS
from faststream_outbox.storage.rows import to_datetime


async def check_keys(examination: Examination) -> AsyncIterator[Finding]:
    """Name keys that wait for an operator, have failed for long, or wait behind a message that is not due."""
    heads = await examination.heads()
    for group in heads:
        if group.state == "parked":
            yield _blocked(group, "warning", "parked", "Each waits for an operator, with all messages behind it.")
        if group.state == HELD:
            yield await _held(examination, group)
        if group.state == DELAYING and examination.server.time - group.began > examination.limits.waiting_seconds:
            yield _delaying(group)
        old = examination.server.time - group.began > examination.limits.retrying_seconds
        if group.state == "retrying" and old:
            why = "A key waits while its first message is retried, with all messages behind it."
            yield _blocked(group, "warning", "retrying", why)
    if any(group.cut for group in heads):
        yield Finding(
            "keys",
            "info",
            f"Only the first {MOST_KEYS:,} keys were looked at.",
            None,
            "Others may be blocked.",
            "List those that wait.",
            commands=(command("keys", "list", "--state", "parked"), command("keys", "list", "--state", "retrying")),
        )


def _number(group: RowGroup) -> str:
    """Return how many keys a group has, and of which queue."""
    return f"{group.count:,} key{'' if group.count == 1 else 's'} of queue {group.queue!r}"


def _named(group: RowGroup) -> str:
    keys = ", ".join(map(repr, group.keys or []))
    return f"{keys} and others" if group.count > len(group.keys or []) else keys


def _looks(group: RowGroup, state: str) -> tuple[str, ...]:
    """Return the commands that show the keys of a group, and the first of them."""
    listed = command("keys", "list", "--queue", group.queue, "--state", state)
    return *([] if group.count == 1 else [listed]), command("keys", "show", *_first(group))


def _first(group: RowGroup) -> tuple[str, str]:
    return group.queue, (group.keys or ["KEY"])[0]


def _blocked(group: RowGroup, severity: Severity, state: str, why: str) -> Finding:
    return Finding(
        "keys",
        severity,
        f"{_number(group)} {'is' if group.count == 1 else 'are'} {state}: {_named(group)}.",
        to_datetime(group.began),
        why,
        "Read why. Mend the cause, then retry the key. Or skip its first message instead: it becomes a dead letter, or "
        "is deleted where there is no table of dead letters.",
        commands=(*_looks(group, state), command("keys", "retry", *_first(group), "--reason", "WHY")),
        alternatives=(command("keys", "skip", *_first(group), "--reason", "WHY"),),
    )


async def _held(examination: Examination, group: RowGroup) -> Finding:
    keys, reasons = group.keys or [], group.reasons or []
    by = await examination.holders(group.queue, keys)
    each = [
        f"{key!r}{f' by {by[key]}' if key in by else ''}{_reason(reason)}"
        for key, reason in zip(keys, reasons, strict=True)
    ]
    others = " and others" if group.count > len(keys) else ""
    long = examination.server.time - group.began > examination.limits.pause_seconds
    return Finding(
        "keys",
        "warning" if long else "info",
        f"{_number(group)} {'was' if group.count == 1 else 'were'} stopped by an operator: {'; '.join(each)}{others}.",
        to_datetime(group.began),
        f"All messages of such a key wait until it is released{', and it may be forgotten' if long else ''}.",
        "If the reason is gone, release it: the key goes on where it stopped.",
        commands=(*_looks(group, "parked"), command("keys", "release", *_first(group), "--reason", "WHY")),
    )


def _reason(text: str) -> str:
    line = text.strip().partition("\n")[0].rstrip(" .")
    return f" ({line})" if line else ""


def _delaying(group: RowGroup) -> Finding:
    waits = "waits behind its first message, which is" if group.count == 1 else "wait behind first messages that are"
    return Finding(
        "keys",
        "warning",
        f"{_number(group)} {waits} not due before {to_datetime(group.due):%Y-%m-%d %H:%M:%SZ}: {_named(group)}.",
        to_datetime(group.began),
        "Messages of a key are handled in their order: a delayed one delays those behind it, which are due.",
        "Make its first message due now. Or skip it instead. Publish what is delayed without "
        "a key, or with one of its own.",
        commands=(*_looks(group, "delayed"), command("keys", "retry", *_first(group), "--reason", "WHY")),
        alternatives=(command("keys", "skip", *_first(group), "--reason", "WHY"),),
    )

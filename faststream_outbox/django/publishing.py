"""Publish on Django's connection: inside `transaction.atomic()`, in sync and in async code."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import Any, Final
from weakref import WeakKeyDictionary

from asgiref.sync import sync_to_async
from django.db import connections, transaction
from faststream.message import encode_message

from faststream_outbox._faststream import FastDependsConfig
from faststream_outbox.django.database import option, outbox_alias, publishing_store
from faststream_outbox.envelope import stored_headers
from faststream_outbox.publisher.producer import batch_keys, plain_headers
from faststream_outbox.storage import NewRow, TimerConflict
from faststream_outbox.storage.schema.tables import notify_channel

_serializer = FastDependsConfig()._serializer  # noqa: SLF001 - as FastStream's own producers do
# The headers, the timer and the times of nearly all messages.
_NOTHING_SPECIAL: Final = (None, None, None, None)
# The `aatomic()` in which a task is; those that are open on a connection, from the outermost.
_inside: ContextVar[object | None] = ContextVar("faststream_outbox.aatomic", default=None)
_holders: WeakKeyDictionary[Any, list[object]] = WeakKeyDictionary()


def publish(
    body: Any = None,
    queue: str = "",
    *,
    headers: Mapping[str, Any] | None = None,
    correlation_id: str | None = None,
    reply_to: str = "",
    key: str | None = None,
    activate_in: timedelta | None = None,
    activate_at: datetime | None = None,
    timer_id: str | None = None,
    timer_conflict: TimerConflict = "ignore",
    using: str | None = None,
) -> int | None:
    """Insert one message in the transaction of `transaction.atomic()`; it is delivered after the commit.

    Args:
        body: Anything FastStream can encode; bytes are stored unchanged.
        queue: The name of the queue.
        headers: Names with values that JSON can hold.
        correlation_id: Given to the handler, and to the messages that it publishes; by default the id of the row.
        reply_to: The queue for the answer.
        key: Messages with the same key are delivered in the order of their commits, one at a time.
        activate_in: The delay before the message is delivered.
        activate_at: The time at which the message is delivered; with a time zone.
        timer_id: A name that at most one waiting message of the queue has.
        timer_conflict: If such a message waits: "ignore" the new one, or "extend" the delay of the waiting one.
        using: The alias of the database; by default that of the outbox.

    Returns:
        The id of the row; None if a message with this `timer_id` waits already.

    Example:
        with transaction.atomic():
            order = Order.objects.create(product="tea")
            publish({"order_id": order.id}, queue="orders")

    """
    connection = _in_transaction(using)
    payload, content_type = encode_message(body, _serializer)
    special = (headers, timer_id, activate_in, activate_at)
    if special == _NOTHING_SPECIAL and not (correlation_id or reply_to):
        row = NewRow.plain(queue, payload, plain_headers(content_type), key)
    else:
        stored = stored_headers(headers, content_type=content_type, correlation_id=correlation_id, reply_to=reply_to)
        row = NewRow(queue, payload, stored, key, timer_id, activate_in, activate_at)
    return publishing_store().insert_sync(connection, row, timer_conflict, notify=not _notify_later(connection, queue))


def publish_batch(
    *bodies: Any,
    queue: str,
    headers: Mapping[str, Any] | None = None,
    correlation_id: str | None = None,
    reply_to: str = "",
    keys: Sequence[str | None] | None = None,
    activate_in: timedelta | None = None,
    activate_at: datetime | None = None,
    using: str | None = None,
) -> list[int]:
    """Insert messages in one statement, in the transaction of `transaction.atomic()`; return the ids in their order.

    Args:
        bodies: Anything FastStream can encode; bytes are stored unchanged.
        queue: The name of the queue.
        headers: Names with values that JSON can hold, for all messages.
        correlation_id: Given to the handlers; by default the id of each row.
        reply_to: The queue for the answers.
        keys: A key for each message, None for no key.
        activate_in: The delay before the messages are delivered.
        activate_at: The time at which the messages are delivered; with a time zone.
        using: The alias of the database; by default that of the outbox.

    Example:
        with transaction.atomic():
            publish_batch(1, 2, 3, queue="orders", keys=["a", None, "b"])

    """
    connection = _in_transaction(using)
    rows = list[NewRow]()
    for body, key in zip(bodies, batch_keys(keys, len(bodies)), strict=True):
        payload, content_type = encode_message(body, _serializer)
        stored = stored_headers(headers, content_type=content_type, correlation_id=correlation_id, reply_to=reply_to)
        rows.append(NewRow(queue, payload, stored, key, None, activate_in, activate_at))
    later = bool(rows) and _notify_later(connection, queue)
    return publishing_store().insert_many_sync(connection, rows, notify=not later)


async def apublish(body: Any = None, queue: str = "", *, using: str | None = None, **options: Any) -> int | None:
    """Insert one message in async code, inside `aatomic()`.

    Like Django's own methods whose names begin with `a`, it runs in the thread of the request's sync code.

    Args:
        body: Anything FastStream can encode; bytes are stored unchanged.
        queue: The name of the queue.
        using: The alias of the database; by default that of the outbox.
        options: What `publish` takes.

    Example:
        async with aatomic():
            order = await Order.objects.acreate(product="tea")
            await apublish({"order_id": order.id}, queue="orders", key=str(order.id))

    """
    return await sync_to_async(publish, thread_sensitive=True)(body, queue, using=using, **options)


async def apublish_batch(*bodies: Any, queue: str, using: str | None = None, **options: Any) -> list[int]:
    """Insert messages in one statement in async code, inside `aatomic()`; return the ids in their order.

    Args:
        bodies: Anything FastStream can encode; bytes are stored unchanged.
        queue: The name of the queue.
        using: The alias of the database; by default that of the outbox.
        options: What `publish_batch` takes.

    Example:
        async with aatomic():
            await apublish_batch(1, 2, 3, queue="orders")

    """
    return await sync_to_async(publish_batch, thread_sensitive=True)(*bodies, queue=queue, using=using, **options)


@asynccontextmanager
async def aatomic(using: str | None = None) -> AsyncIterator[None]:
    """Hold `transaction.atomic()` open in async code: the async methods of models inside it are in its transaction.

    Django runs these methods in one thread for each request, with one connection: await them one after the other.
    Publishing in a task of the request that began outside raises, because this transaction could roll its message back.

    Args:
        using: The alias of the database; by default that of the outbox.

    Example:
        async with aatomic():
            order = await Order.objects.acreate(product="tea")
            await apublish({"order_id": order.id}, queue="orders")

    """
    alias = outbox_alias(using)
    atomic, before = transaction.atomic(using=alias), _inside.get()
    token = before or object()

    def enter() -> None:
        _check_holder(alias, token)
        atomic.__enter__()
        _holders.setdefault(connections[alias], []).append(token)

    def leave(*error: Any) -> None:
        _holders[connections[alias]].pop()
        atomic.__exit__(*error)

    try:
        await _to_its_end(enter)
    except asyncio.CancelledError as error:
        await _to_its_end(leave, type(error), error, None)
        raise
    _inside.set(token)
    try:
        yield
    except BaseException as error:
        await _to_its_end(leave, type(error), error, error.__traceback__)
        raise
    else:
        await _to_its_end(leave, None, None, None)
    finally:
        _inside.set(before)


async def _to_its_end(function: Callable[..., None], *arguments: Any) -> None:
    """Run a function in the thread of sync code, and wait for it even if this task is cancelled meanwhile.

    Otherwise the function might run later or not at all, and the transaction would stay open for the code that follows.
    """
    running = asyncio.ensure_future(sync_to_async(function, thread_sensitive=True)(*arguments))
    cancelled: asyncio.CancelledError | None = None
    while not running.done():
        try:
            await asyncio.wait([running])
        except asyncio.CancelledError as error:
            cancelled = error
    running.result()
    if cancelled is not None:
        raise cancelled


def _in_transaction(using: str | None) -> Any:
    alias = outbox_alias(using)
    connection = connections[alias]
    if connection.vendor != "postgresql":
        raise RuntimeError(
            f"The database {alias!r} is {connection.vendor}, and an outbox needs Postgres: "
            'name its alias by OUTBOX = {"database": …} or using=….'
        )
    if not connection.in_atomic_block and connection.get_autocommit():
        raise RuntimeError(
            "publish() was called outside a transaction: the message would be sent although your changes may fail. "
            f"Call it inside transaction.atomic(using={alias!r}), together with the changes that it is about."
        )
    _check_holder(alias, _inside.get())
    return connection


def _check_holder(alias: str, token: object) -> None:
    """Raise if another task holds a transaction open on the connection of this thread: it may yet roll back."""
    if (holders := _holders.get(connections[alias])) and holders[-1] is not token:
        raise RuntimeError(
            "Another task has opened a transaction by aatomic() on the connection that both share, and may roll it "
            "back. Await the two one after the other, or run each in an asgiref.sync.ThreadSensitiveContext."
        )


def _notify_later(connection: Any, queue: str) -> bool:
    """Return whether subscribers are notified after the commit; else the INSERT carries the notification.

    Commits that carry one wait for each other in Postgres; one that follows the commit is a round trip of its own.
    """
    if not option("after_commit", default=False) or not connection.in_atomic_block:
        return False
    asked = {function.queue for _, function, *_ in connection.run_on_commit if isinstance(function, _Notify)}
    if queue not in asked:
        transaction.on_commit(_Notify(connection, queue), using=connection.alias, robust=True)
    return True


class _Notify:
    """Notifies the subscribers of a queue."""

    def __init__(self, connection: Any, queue: str) -> None:
        self._connection = connection
        self.queue = queue
        # Django names a callback by it when one raises.
        self.__qualname__ = type(self).__qualname__

    def __call__(self) -> None:
        table = publishing_store().outbox_table
        with self._connection.cursor() as cursor:
            cursor.execute("SELECT pg_notify(%s, %s)", [notify_channel(table.name, table.schema), self.queue])

"""Inserts messages into the table: in the caller's transaction, or when the message they answer is settled."""

import time
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import islice
from typing import Any, NoReturn

from faststream.message import encode_message
from sqlalchemy.orm import Session

from faststream_outbox._faststream import BatchCodecProto, CodecProto, DefaultCodec, ParserComposition, ProducerProto
from faststream_outbox.configs import OutboxBrokerConfig
from faststream_outbox.envelope import stored_headers
from faststream_outbox.parser import OutboxParser
from faststream_outbox.response import CollectedMessage, OutboxPublishCommand
from faststream_outbox.storage import NewRow, TimerConflict
from faststream_outbox.storage.checks import check_answers, encode_headers
from faststream_outbox.storage.publishing import check_batch
from faststream_outbox.storage.rows import AlikeRows, payloads_of

# The payload of a body, and its content type.
Encoded = tuple[bytes, str | None]

NO_REQUESTS = (
    "An outbox has no requests: the message is sent only after your transaction commits, so no answer can come before. "
    "Publish with reply_to=… and subscribe to that queue instead."
)


@dataclass(slots=True)
class PendingRows:
    """The rows of a collected message, which wait for the commit of their session."""

    message: CollectedMessage
    rows: Sequence[NewRow]
    timer_conflict: TimerConflict
    # The bytes of all payloads that wait in the session: of these rows, and of those before them.
    size: int


class OutboxProducer(ProducerProto[OutboxPublishCommand]):
    """The last step of publishing, behind all middlewares."""

    def __init__(self, config: OutboxBrokerConfig) -> None:
        self.config = config
        self.codec: CodecProto = config.broker_codec or DefaultCodec()
        # Whether bodies can be encoded without `await`: by the codec that FastStream has by default.
        self.encodes_now = type(self.codec) is DefaultCodec
        self._parser = ParserComposition(config.broker_parser, OutboxParser.parse_message)
        self._decoder = ParserComposition(config.broker_decoder, OutboxParser.decode_message)

    async def publish(self, cmd: OutboxPublishCommand) -> int | None:
        """Insert one message; return its row's id, or None when its timer exists already."""
        codec, serializer = self.codec, self._serializer
        encoded = [await codec.encode(body, serializer) for body in cmd.batch_bodies]
        ids = await self._write(cmd, _rows(cmd, encoded, [cmd.key] * len(encoded)))
        return ids[0] if ids else None

    async def publish_batch(self, cmd: OutboxPublishCommand) -> list[int]:
        """Insert messages in one statement; return the ids of their rows in the same order."""
        bodies = cmd.batch_bodies
        keys = batch_keys(cmd.keys, len(bodies), default=cmd.key)
        encoded = await self._encode_batch(bodies)
        if (
            len(bodies) > 1
            and all(key is None for key in keys)
            and len({content_type for _, content_type in encoded}) == 1
        ):
            first = _first_row(cmd, *encoded[0], None)
            return await self._write(cmd, AlikeRows(first, [payload for payload, _ in encoded]))
        return await self._write(cmd, _rows(cmd, encoded, keys))

    @property
    def is_direct(self) -> bool:
        """Whether messages need no command, because nothing but this producer would see it."""
        return self.encodes_now and not self.config.broker_middlewares and type(self) is OutboxProducer

    def make_row(
        self,
        body: Any,
        queue: str,
        *,
        headers: Mapping[str, Any] | None,
        correlation_id: str | None,
        reply_to: str,
        key: str | None,
        activate_in: timedelta | None,
        activate_at: datetime | None,
        timer_id: str | None,
        timer_conflict: TimerConflict,
    ) -> NewRow:
        """Return the checked row of a message that needs no command."""
        payload, content_type = encode_message(body, self._serializer)
        if (
            timer_id is None
            and timer_conflict == "ignore"
            and activate_in is None
            and activate_at is None
            and headers is None
            and not (correlation_id or reply_to or self.config.generates_ids)
        ):
            return NewRow.plain(queue, payload, plain_headers(content_type), key)
        cmd = OutboxPublishCommand(
            body,
            queue=queue,
            session=None,
            headers=headers,
            correlation_id=correlation_id,
            reply_to=reply_to,
            key=key,
            activate_in=activate_in,
            activate_at=activate_at,
            timer_id=timer_id,
            timer_conflict=timer_conflict,
        )
        self.config.give_correlation_id(cmd)
        return _first_row(cmd, payload, content_type, key)

    async def insert_row(self, session: Any, row: NewRow, timer_conflict: TimerConflict) -> int | None:
        """Insert one row that was made by `make_row`; return its id, or None when its timer exists already."""
        began = time.perf_counter()
        wakeup = self.config.wakeup
        try:
            notify = wakeup is None or not wakeup.defer(session, row.queue, inserts=row.timer_id is None)
            row_id = await self.config.store.insert(session, row, timer_conflict=timer_conflict, notify=notify)
        except Exception as error:
            self._record(row.queue, (row,), began, error=error)
            raise
        self._record(row.queue, (row,), began, int(row_id is not None))
        return row_id

    async def request(self, cmd: OutboxPublishCommand) -> NoReturn:
        """Raise: an outbox has no requests."""
        raise NotImplementedError(NO_REQUESTS)

    async def _encode_batch(self, bodies: Sequence[Any]) -> Sequence[Encoded]:
        codec, serializer = self.codec, self._serializer
        if self.encodes_now:
            return [encode_message(body, serializer) for body in bodies]
        if not bodies or not isinstance(codec, BatchCodecProto):
            return [await codec.encode(body, serializer) for body in bodies]
        encoded = await codec.encode_batch(bodies, serializer)
        if len(encoded) != len(bodies):
            kind = type(codec).__name__
            raise ValueError(
                f"{kind}.encode_batch returned {len(encoded)} bodies for {len(bodies)} messages: return one for each."
            )
        return encoded

    @property
    def _serializer(self) -> Any:
        return self.config.fd_config._serializer  # noqa: SLF001 - as FastStream's own producers do

    async def _write(self, cmd: OutboxPublishCommand, rows: Sequence[NewRow]) -> list[int]:
        if cmd.session is None and cmd.answered is not None:
            if len(rows) > 1:
                check_batch(rows)
            outputs = (*cmd.answered.outputs, *rows)  # inserted, and counted, when the answered message is settled
            check_answers(row.payload for row in outputs)
            cmd.answered.outputs = outputs
            return []
        if not rows:
            return await self._insert(cmd, rows)  # checks the session
        began = time.perf_counter()
        try:
            ids = await self._insert(cmd, rows)
        except Exception as error:
            self._record(cmd.queue, rows, began, error=error)
            raise
        self._record(cmd.queue, rows, began, len(ids))
        return ids

    def _record(
        self, queue: str, rows: Sequence[NewRow], began: float, count: int = 0, *, error: Exception | None = None
    ) -> None:
        monitor = self.config.publishing_monitor
        if not monitor.counts:
            return
        failure = {} if error is None else {"exception_type": type(error).__name__}
        monitor.record(
            "published",
            queue=queue,
            status="success" if error is None else "error",
            count=count,
            size_bytes=sum(map(len, payloads_of(rows))),
            duration_seconds=time.perf_counter() - began,
            **failure,
        )

    def insert_collected(self, session: Session, pending: Sequence[PendingRows]) -> list[int]:
        """Insert what a session has collected in one statement, before its commit; return the ids of the rows."""
        began = time.perf_counter()
        rows = [row for each in pending for row in each.rows]
        conflicts = [each.timer_conflict for each in pending for _ in each.rows]
        queues: dict[str, list[NewRow]] = {}
        for row in rows:
            queues.setdefault(row.queue, []).append(row)
        wakeup = self.config.wakeup
        deferred = [
            wakeup is not None and wakeup.defer(session, queue, inserts=all(row.timer_id is None for row in sent))
            for queue, sent in queues.items()
        ]
        try:
            ids = self.config.store.insert_collected(session, rows, conflicts, notify=not all(deferred))
        except Exception as error:
            for queue, sent in queues.items():
                self._record(queue, sent, began, error=error)
            raise
        inserted = iter(ids)
        for each in pending:
            each.message._ids = list(islice(inserted, len(each.rows)))  # noqa: SLF001 - users only read it
        new = Counter(row.queue for row, row_id in zip(rows, ids, strict=True) if row_id is not None)
        for queue, sent in queues.items():
            self._record(queue, sent, began, new[queue])
        return [row_id for row_id in ids if row_id is not None]

    async def _insert(self, cmd: OutboxPublishCommand, rows: Sequence[NewRow]) -> list[int]:
        if cmd.session is None and cmd.own_transaction:
            async with self.config.store.transaction() as transaction:
                return await self._insert_into(transaction, cmd, rows, notify=True)
        wakeup = self.config.wakeup
        inserts = cmd.timer_id is None
        notify = wakeup is None or not (rows and wakeup.defer(cmd.session, cmd.queue, inserts=inserts))
        return await self._insert_into(cmd.session, cmd, rows, notify=notify)

    async def _insert_into(
        self, session: Any, cmd: OutboxPublishCommand, rows: Sequence[NewRow], *, notify: bool
    ) -> list[int]:
        store = self.config.store
        if len(rows) != 1:
            if cmd.synchronous:
                return store.insert_many_sync(session, rows, notify=notify)
            return await store.insert_many(session, rows, notify=notify)
        if cmd.synchronous:
            row_id = store.insert_sync(session, rows[0], cmd.timer_conflict, notify=notify)
        else:
            row_id = await store.insert(session, rows[0], timer_conflict=cmd.timer_conflict, notify=notify)
        return [] if row_id is None else [row_id]


def _rows(cmd: OutboxPublishCommand, encoded: Sequence[Encoded], keys: Sequence[str | None]) -> list[NewRow]:
    """Make a row of each body; check and encode the headers once for each content type."""
    rows: list[NewRow] = []
    firsts: dict[str | None, NewRow] = {}
    for (payload, content_type), key in zip(encoded, keys, strict=True):
        if first := firsts.get(content_type):
            row = first.beside(payload, key)
        else:
            row = firsts[content_type] = _first_row(cmd, payload, content_type, key)
        rows.append(row)
    return rows


def _first_row(cmd: OutboxPublishCommand, payload: bytes, content_type: str | None, key: str | None) -> NewRow:
    headers = stored_headers(
        cmd.headers, content_type=content_type, correlation_id=cmd.correlation_id, reply_to=cmd.reply_to
    )
    return NewRow(cmd.queue, payload, headers, key, cmd.timer_id, cmd.activate_in, cmd.activate_at)


def batch_keys(keys: Sequence[str | None] | None, count: int, *, default: str | None = None) -> list[str | None]:
    """Return the key of each message of a batch: the given ones, which are as many, or the default."""
    if keys is None:
        return [default] * count
    if isinstance(keys, str):
        raise TypeError(
            f"keys is the string {keys!r}: give a list with a key for each message, such as [{keys!r}] * n."
        )
    given = list(keys)
    if len(given) != count:
        raise ValueError(f"keys has {len(given)} entries for {count} messages: one each, None for no key.")
    return given


@lru_cache(maxsize=64)
def plain_headers(content_type: str | None) -> str | None:
    """Return the encoded headers of a message that has none but its content type, as nearly all messages."""
    return encode_headers(stored_headers(None, content_type=content_type, correlation_id=None, reply_to=None))


def run_now(coroutine: Coroutine[Any, Any, Any], caller: str) -> Any:
    """Run a coroutine that waits for nothing, without an event loop, and return its result."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    coroutine.close()
    raise RuntimeError(
        f"{caller} runs middlewares and the codec without an event loop, and one of them waits for something. "
        "Make it publish without waiting, or publish from async code."
    )

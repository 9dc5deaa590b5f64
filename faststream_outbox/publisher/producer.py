"""Inserts messages into the table: in the caller's transaction, or when the message they answer is settled."""

import time
from collections.abc import Sequence
from typing import Any, NoReturn

from faststream_outbox._faststream import BatchCodecProto, CodecProto, DefaultCodec, ParserComposition, ProducerProto
from faststream_outbox.configs import OutboxBrokerConfig
from faststream_outbox.envelope import stored_headers
from faststream_outbox.parser import OutboxParser
from faststream_outbox.response import OutboxPublishCommand
from faststream_outbox.storage import NewRow
from faststream_outbox.storage.contract import check_batch

# The payload of a body, and its content type.
Encoded = tuple[bytes, str | None]

NO_REQUESTS = (
    "An outbox has no requests: the message is sent only after your transaction commits, so no answer can come before. "
    "Publish with reply_to=… and subscribe to that queue instead."
)


class OutboxProducer(ProducerProto[OutboxPublishCommand]):
    """The last step of publishing, behind all middlewares."""

    def __init__(self, config: OutboxBrokerConfig) -> None:
        self.config = config
        self.codec: CodecProto = config.broker_codec or DefaultCodec()
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
        if isinstance(cmd.keys, str):
            raise TypeError(
                f"keys is the string {cmd.keys!r}: give a list with a key for each message, such as [{cmd.keys!r}] * n."
            )
        keys = [cmd.key] * len(bodies) if cmd.keys is None else list(cmd.keys)
        if len(keys) != len(bodies):
            raise ValueError(f"keys has {len(keys)} entries for {len(bodies)} messages: one each, None for no key.")
        return await self._write(cmd, _rows(cmd, await self._encode_batch(bodies), keys))

    async def request(self, cmd: OutboxPublishCommand) -> NoReturn:
        """Raise: an outbox has no requests."""
        raise NotImplementedError(NO_REQUESTS)

    async def _encode_batch(self, bodies: Sequence[Any]) -> Sequence[Encoded]:
        codec, serializer = self.codec, self._serializer
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

    async def _write(self, cmd: OutboxPublishCommand, rows: list[NewRow]) -> list[int]:
        if cmd.session is None and cmd.answered is not None:
            if len(rows) > 1:
                check_batch(rows)
            cmd.answered.outputs += tuple(rows)  # inserted, and counted, when the answered message is settled
            return []
        if not rows:
            return await self._insert(cmd, rows)  # checks the session
        ids: list[int] = []
        failure: dict[str, str] = {}
        began = time.perf_counter()
        try:
            ids = await self._insert(cmd, rows)
        except Exception as error:
            failure = {"exception_type": type(error).__name__}
            raise
        finally:
            self.config.publishing_monitor.record(
                "published",
                queue=cmd.queue,
                status="error" if failure else "success",
                count=len(ids),
                size_bytes=sum(len(row.payload) for row in rows),
                duration_seconds=time.perf_counter() - began,
                **failure,
            )
        return ids

    async def _insert(self, cmd: OutboxPublishCommand, rows: list[NewRow]) -> list[int]:
        if cmd.session is None and cmd.own_transaction:
            async with self.config.store.transaction() as transaction:
                return await self._insert_into(transaction, cmd, rows, notify=True)
        wakeup = self.config.wakeup
        notify = wakeup is None or not (rows and wakeup.defer(cmd.session, cmd.queue))
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

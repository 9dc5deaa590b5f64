"""The access log of the broker: that of FastStream, with a column for the queue."""

import logging
from functools import partial
from typing import Any

from faststream import ContextRepo

from faststream_outbox._faststream import DefaultLoggerStorage, LoggerProto, get_broker_logger, make_logger_state

_MESSAGE_ID_LENGTH = 10


class OutboxParamsStorage(DefaultLoggerStorage):
    """Keeps the width of the queue column."""

    __slots__ = ("_queue_length",)

    def __init__(self) -> None:
        super().__init__()
        self._queue_length = len("queue")
        self.logger_log_level = logging.INFO

    def set_level(self, level: int) -> None:
        """Set the level of the logger that will be made."""
        self.logger_log_level = level

    def register_subscriber(self, params: dict[str, Any]) -> None:
        """Widen the queue column for a subscriber's queues."""
        self._queue_length = max(self._queue_length, len(params.get("queue", "")))

    def get_logger(self, *, context: ContextRepo) -> LoggerProto:
        """Return the logger, made at the first call."""
        if not (logger := self._get_logger_ref()):
            logger = get_broker_logger(
                name="outbox",
                default_context={"queue": ""},
                message_id_ln=_MESSAGE_ID_LENGTH,
                fmt=(
                    f"%(asctime)s %(levelname)-8s - %(queue)-{self._queue_length}s | "
                    f"%(message_id)-{_MESSAGE_ID_LENGTH}s - %(message)s"
                ),
                context=context,
                log_level=self.logger_log_level,
            )
            self._logger_ref.add(logger)
        return logger


make_outbox_logger_state = partial(make_logger_state, default_storage_cls=OutboxParamsStorage)

"""What happens inside a broker, told to its logger and its metrics recorder."""

import logging
from typing import Any

from faststream_outbox.configs import OutboxBrokerConfig
from faststream_outbox.subscriber.events import Monitor


class BrokerMonitor(Monitor):
    """Logs through the broker's logger, and records through the user's recorder under the subscriber's name."""

    def __init__(self, config: OutboxBrokerConfig, subscriber: str = "") -> None:
        self._config = config
        self._tags = {"subscriber": subscriber} if subscriber else {}

    def report(
        self,
        event: str,
        message: str,
        *,
        level: int = logging.WARNING,
        error: BaseException | None = None,
        **fields: Any,
    ) -> None:
        """Write a record whose `extra` a log pipeline can filter by."""
        self._config.logger.log(message, level, extra={"event": event, **fields}, exc_info=error)

    def record(self, event: str, **tags: Any) -> None:
        """Tell the recorder."""
        self._config.record(event, **self._tags, **tags)

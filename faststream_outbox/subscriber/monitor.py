"""What happens inside a broker, told to its logger and its metrics recorder."""

import logging
from collections.abc import Sequence
from typing import Any

from faststream_outbox.configs import OutboxBrokerConfig
from faststream_outbox.metrics import ignore
from faststream_outbox.runtime.events import Monitor


class BrokerMonitor(Monitor):
    """Logs through the broker's logger, and records through the user's recorder under the subscriber's name."""

    def __init__(self, config: OutboxBrokerConfig, subscriber: str = "", queues: Sequence[str] = ()) -> None:
        super().__init__()
        self._config = config
        self._counts = config.metrics_recorder is not ignore
        self._tags = {"subscriber": subscriber} if subscriber else {}
        self._origin = {**self._tags, "queue": ",".join(queues)} if queues else self._tags

    @property
    def counts(self) -> bool:
        """Whether there is a recorder."""
        return self._counts

    def hears(self, level: int) -> bool:
        """Tell whether the broker's logger writes such records; of one that is no `Logger` nobody knows."""
        logger = self._config.logger.logger.logger
        return logger.isEnabledFor(level) if isinstance(logger, logging.Logger) else logger is not None

    def write_log(self, level: int, message: str, error: BaseException | None, extra: dict[str, Any]) -> None:
        """Write through the broker's logger; what is not about one row tells of which subscriber it is."""
        extra = extra if "row_id" in extra else {**self._origin, **extra}
        self._config.logger.log(message, level, extra=extra, exc_info=error)

    def write_metric(self, event: str, tags: dict[str, Any]) -> None:
        """Tell the recorder."""
        self._config.metrics_recorder(event, {**self._tags, **tags})

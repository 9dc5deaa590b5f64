"""A process of an older version: run by its path, with PYTHONPATH set to where that version is.

It uses names that all versions since the first have: those of the public API, and those of the tests of that version.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import faststream_outbox
from faststream_outbox import OutboxBroker
from faststream_outbox.relay import Relay
from faststream_outbox.storage import OutboxRow
from tests.order.settings import QUEUE, OrderSettings
from tests.order.worker import OrderWorker
from tests.soak.process import SoakProcess, run_process
from tests.soak.settings import Settings

_BROKERS: Final = {
    "kafka": ("faststream.kafka", "KafkaBroker"),
    "confluent": ("faststream.confluent", "KafkaBroker"),
    "rabbit": ("faststream.rabbit", "RabbitBroker"),
    "nats": ("faststream.nats", "NatsBroker"),
    "redis": ("faststream.redis", "RedisBroker"),
}


class BusyRelay(Relay):
    """A relay that takes its time before it sends and before it settles."""

    worker: "OlderRelay"

    async def _forward(self, rows: Sequence[OutboxRow]) -> Any:
        await self.worker.take_time()
        done = await super()._forward(rows)
        await self.worker.take_time()
        return done


class OlderRelay(OrderWorker):
    """Relays to the server of a round."""

    relay: BusyRelay | None = None

    def __init__(self, settings: Settings, name: str, *, target: Mapping[str, str]) -> None:
        super().__init__(settings, name)
        self._target = target

    def subscribe(self, broker: OutboxBroker) -> None:
        """Handle nothing."""

    async def begin(self, broker: OutboxBroker) -> None:
        """Start to send."""
        module, name = _BROKERS[self._target["to"]]
        relay = BusyRelay(
            broker,
            to=getattr(import_module(module), name)(self._target["address"], logger=None),
            routes={QUEUE: self._target["destination"]},
            source=self._target["source"],
            ordering=self.settings.ordering(self._number),
            lease_ttl_seconds=self.settings.lease_seconds,
        )
        relay.worker = self
        await relay.start()
        self.relay = relay

    async def end(self, broker: OutboxBroker) -> None:
        """Wait until what was sent is confirmed."""
        if self.relay is not None:
            await self.relay.stop()
        await broker.stop()


def main(role: str, name: str, settings: str, older: str) -> None:
    """Be that process."""
    assert Path(faststream_outbox.__file__).is_relative_to(older), "this is not the older version"
    given = json.loads(settings)
    known = {field.name for field in fields(OrderSettings)}
    values = {name: value for name, value in given.items() if name in known}
    own = OrderSettings(**values | {"directory": Path(values["directory"])})
    make: Callable[[Settings, str], SoakProcess] = own.producer if role == "producer" else own.worker
    if role == "relay":
        make = partial(OlderRelay, target=given["target"])
    run_process(make, own, name)
    # As multiprocessing ends its own: a signal that comes while the interpreter is torn down would look like a crash.
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])

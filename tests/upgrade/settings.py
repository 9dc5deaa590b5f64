"""Rounds whose processes are of two versions, of subscribers and of relays, and what each version did in them."""

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.order import settings as order
from tests.order.settings import OrderSettings
from tests.relay.faults import settings as relay
from tests.relay.faults.round import RelayRound
from tests.relay.faults.settings import SOURCE, RelayRoundSettings
from tests.soak.history import Claimed, Committed, Event
from tests.soak.round import Round
from tests.soak.settings import Settings

if TYPE_CHECKING:
    from tests.soak.process import SoakProcess

# What each version has to do in a round, so that it proves something.
WORK_OF_BOTH: Final = {
    f"{what} the {version} version": count
    for version in ("older", "newer")
    for what, count in (("rows claimed by", 50), ("commits of", 10))
}
_PROGRAM: Final = Path(__file__).with_name("older_process.py")


def is_older(name: str) -> bool:
    """Return whether the process of this name is of the older version: three in five, whatever its handler is."""
    return int(name.removeprefix("worker").removeprefix("producer")) % 5 in {0, 2, 4}


def make_worker(settings: Settings, name: str) -> "SoakProcess":
    """Make a consumer of the version that its name says."""
    _become_older(settings, "worker", name)
    return order.make_worker(settings, name)


def make_relay(settings: Settings, name: str) -> "SoakProcess":
    """Make a relay of the version that its name says."""
    assert isinstance(settings, RelayUpgradeSettings)
    target = {"to": settings.to, "address": settings.address, "destination": settings.endpoint.destination}
    _become_older(settings, "relay", name, target=target | {"source": SOURCE})
    return relay.make_relay(settings, name)


def make_producer(settings: Settings, name: str) -> "SoakProcess":
    """Make a producer of the version that its name says."""
    _become_older(settings, "producer", name)
    return order.make_producer(settings, name)


def _become_older(settings: Settings, role: str, name: str, **more: Any) -> None:
    """Replace this process by one of the older version, which keeps its id, if its name says that it is one."""
    assert isinstance(settings, UpgradeSettings | RelayUpgradeSettings)
    if not is_older(name):
        return
    values = {field.name: getattr(settings, field.name) for field in fields(OrderSettings)}
    plain = {key: value for key, value in values.items() if isinstance(value, str | int | float | tuple)}
    plain |= {"directory": str(settings.directory), **more}
    environment = os.environ | {"PYTHONPATH": str(settings.older)}
    # -P: the folder of the program is not one to import from.
    command = [sys.executable, "-P", str(_PROGRAM), role, name, json.dumps(plain), str(settings.older)]
    os.execve(sys.executable, command, environment)  # noqa: S606 - that is the point


@dataclass(frozen=True)
class UpgradeSettings(OrderSettings):
    """One round with keys, handled by processes of this version and of an older one."""

    # Where the older version is.
    older: Path = Path()
    worker: "Callable[[Settings, str], SoakProcess]" = make_worker
    producer: "Callable[[Settings, str], SoakProcess]" = make_producer


@dataclass(frozen=True)
class RelayUpgradeSettings(RelayRoundSettings):
    """One round whose rows are relayed by processes of this version and of an older one."""

    older: Path = Path()
    # By their numbers, the first relays and the first producers are one of each version.
    workers: int = 2
    producers: int = 2
    worker: "Callable[[Settings, str], SoakProcess]" = make_relay
    producer: "Callable[[Settings, str], SoakProcess]" = make_producer


class UpgradeRound(Round):
    """A round that counts what each version did."""

    def counts(self) -> Counter[str]:
        """Count as well what each version did."""
        return super().counts() + count_by_version(self._reader.events)


class RelayUpgradeRound(UpgradeRound, RelayRound):
    """The same of relays, checked by what arrived."""


def count_by_version(events: Iterable[Event]) -> Counter[str]:
    """Count the rows that processes of each version claimed, and the transactions that they committed."""
    counts: Counter[str] = Counter()
    for event in events:
        match event:
            case Claimed(call=name, rows=rows):
                counts[f"rows claimed by the {_version(name)} version"] += len(rows)
            case Committed(tx=name):
                counts[f"commits of the {_version(name)} version"] += 1
    return counts


def _version(name: str) -> str:
    process, _, _ = name.partition(".")
    return "older" if is_older(process) else "newer"

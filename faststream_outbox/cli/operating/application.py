"""What options name as `module:attribute`: `--app` the broker whose database and tables a command works on."""

import sys
from functools import reduce
from importlib import import_module
from pathlib import Path
from typing import Any

from faststream_outbox.broker.broker import OutboxBroker
from faststream_outbox.cli.errors import ProgramError, UsageError
from faststream_outbox.cli.secrets import remember_secret
from faststream_outbox.client import OutboxClient


def load_broker(target: str) -> OutboxBroker:
    """Import an application, and return its `OutboxBroker`, which may be that of a FastStream application or router."""
    found = load_attribute(target, "--app", "broker")
    broker = found if isinstance(found, OutboxBroker) else getattr(found, "broker", None)
    if not isinstance(broker, OutboxBroker):
        raise UsageError(f"--app: {target} is a {type(found).__name__}, not an OutboxBroker; name the broker.")
    client = broker.client
    if isinstance(client, OutboxClient) and client.engine is not None:
        remember_secret(client.engine.url.password or "")
    return broker


def load_attribute(target: str, option: str, what: str) -> Any:
    """Import what an option names as `module:attribute`."""
    module, colon, attribute = target.partition(":")
    if not (module and colon and attribute):
        raise UsageError(f"{option}: {target!r} names no {what}; write module:attribute, such as service:{what}.")
    return _find(_import(module, option), module, attribute, option, what)


def _import(module: str, option: str) -> Any:
    # As `faststream run` and uvicorn do: the application is in the folder that the command is given in.
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module}.".startswith(f"{error.name}."):
            raise UsageError(f"{option}: there is no module {module}; run the command in its folder.") from error
        raise ProgramError(f"{option}: importing {module} failed: {error}.") from error
    except Exception as error:  # an application may raise anything
        raise ProgramError(f"{option}: importing {module} failed: {type(error).__name__}: {error}") from error


def _find(module: Any, name: str, attribute: str, option: str, what: str) -> Any:
    try:
        return reduce(getattr, attribute.split("."), module)
    except AttributeError as error:
        raise UsageError(f"{option}: {name} has no {attribute}; name its {what}.") from error

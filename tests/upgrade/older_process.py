"""A worker or a producer of an older version: run by its path, with PYTHONPATH set to where that version is."""

import json
import os
import sys
from dataclasses import fields
from pathlib import Path

import faststream_outbox
from tests.order.settings import OrderSettings
from tests.soak.process import run_process


def main(role: str, name: str, settings: str, older: str) -> None:
    """Be that process."""
    assert Path(faststream_outbox.__file__).is_relative_to(older), "this is not the older version"
    known = {field.name for field in fields(OrderSettings)}
    values = {name: value for name, value in json.loads(settings).items() if name in known}
    own = OrderSettings(**values | {"directory": Path(values["directory"])})
    run_process(own.worker if role == "worker" else own.producer, own, name)
    # As multiprocessing ends its own: a signal that comes while the interpreter is torn down would look like a crash.
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])

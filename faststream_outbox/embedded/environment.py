"""The environment that PostgreSQL's programs get: nothing of ours that could steer or leak into them."""

import os

_PASSED_ON = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")


def clean_environment() -> dict[str, str]:
    """Only what the programs need to be found and loaded, so `PGDATA`, `PGPORT` and our secrets stay out."""
    environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    # English messages, since we look for a few of them; a named zone, since initdb otherwise tries every zone file.
    return environment | {"LC_ALL": "C", "TZ": "UTC"}

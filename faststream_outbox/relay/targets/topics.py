"""What Kafka takes for a topic's name."""

import re
from typing import Final

_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")


def check_topic(name: str) -> None:
    """Refuse what is no topic."""
    if not _TOPIC.fullmatch(name) or name in (".", ".."):
        raise ValueError(f"{name!r} is no topic: up to 249 letters, digits, dots, underscores and hyphens.")

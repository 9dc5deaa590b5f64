"""What NATS does to headers: to the one by which it drops duplicates, and to the key of a row."""

from typing import Final

# JetStream drops a second message with the same value of this header.
NATS_MESSAGE_ID: Final = "Nats-Msg-Id"
# The client replaces these within a value.
_NEWLINES: Final = str.maketrans("\r\n", "  ")


def check_key(key: str | None) -> None:
    """Raise `ValueError` for a key that would arrive as another one.

    A consumer that compares `outbox_sequence` within a key would take two keys for one, and skip messages.
    """
    if key is not None and key.strip().translate(_NEWLINES) != key:
        raise ValueError(
            f"The key {key[:100]!r} would arrive changed in the header outbox_key: NATS removes spaces around a value, "
            "and replaces line breaks. Publish with a key without them."
        )

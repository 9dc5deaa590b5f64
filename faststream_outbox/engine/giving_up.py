"""What becomes of a row that is given up."""

from typing import Literal

from faststream_outbox.storage import Dead, OutboxRow, Park

# Whether the key of a dead row goes on without it, or waits until an operator has looked.
OnDead = Literal["skip", "park"]


def give_up(row: OutboxRow, dead: Dead, on_dead: OnDead) -> Dead | Park:
    """Let a row die, or park it where that is asked for; a row without a key keeps nobody waiting, so it dies."""
    return Park(dead) if on_dead == "park" and row.entity_key is not None else dead


def check_on_dead(value: object) -> None:
    """Refuse a word that is not an `OnDead`."""
    if value not in ("skip", "park"):
        raise ValueError(
            'on_dead is "skip" (a dead message goes to the dead-letter table, and its key goes on) or "park" (it stays '
            f"at the head of its key, which waits for an operator), not {value!r}."
        )

"""What an operator does with a key, as values."""

from dataclasses import dataclass

from faststream_outbox.storage.checks import check_reason


@dataclass(frozen=True, slots=True)
class RetryKey:
    """Its head is due now; one that was parked starts from the beginning, with no attempts counted."""


@dataclass(frozen=True, slots=True)
class ReleaseKey:
    """Its parked head is what it was before: its attempts stay counted, and it is due when it was due."""


@dataclass(frozen=True, slots=True)
class ParkKey:
    """Its head is parked."""

    reason: str

    def __post_init__(self) -> None:
        check_reason(self.reason)


@dataclass(frozen=True, slots=True)
class SkipKey:
    """Its head is dead, and the key goes on with the next row."""

    reason: str

    def __post_init__(self) -> None:
        check_reason(self.reason)


KeyAction = RetryKey | ReleaseKey | ParkKey | SkipKey

"""The messages of the bank, and their queues."""

from typing import Final

from pydantic import BaseModel

TRANSFERS: Final = "transfers"
NOTIFICATIONS: Final = "notifications"


class TransferAccepted(BaseModel):
    """The bank has accepted a transfer; its money is not moved yet."""

    transfer_id: int
    source: int
    target: int
    cents: int
    # How often the handler fails before it succeeds, as with a bug.
    stumbles: int = 0


class MoneyMoved(BaseModel):
    """The money was moved; the owner of the target account is not notified yet."""

    transfer_id: int
    account_id: int
    text: str

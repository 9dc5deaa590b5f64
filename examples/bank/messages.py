"""What the parts of the bank tell each other, and on which queues."""

from typing import Final

from pydantic import BaseModel

TRANSFERS: Final = "transfers"
NOTIFICATIONS: Final = "notifications"


class TransferAccepted(BaseModel):
    """A transfer was committed, and its money is to be moved."""

    transfer_id: int
    source: int
    target: int
    cents: int
    # What a bug would do: fail so often before it works.
    stumbles: int = 0


class MoneyMoved(BaseModel):
    """The money was moved; the owner of the account that got it is to be notified."""

    transfer_id: int
    account_id: int
    text: str

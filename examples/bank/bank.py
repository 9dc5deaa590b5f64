"""The bank: accepts transfers, moves their money, and notifies the owner of the account that gets it."""

from sqlalchemy import insert, update
from sqlalchemy.ext.asyncio import AsyncSession

from examples.bank.messages import NOTIFICATIONS, TRANSFERS, MoneyMoved, TransferAccepted
from examples.bank.tables import Account, LedgerLine, Notification, Transfer
from faststream_outbox import ConstantRetry, OutboxBroker, OutboxRouter, OutboxSession
from faststream_outbox.annotations import OutboxMessage

WORKERS = 4
MAX_ATTEMPTS = 3
# How long the messages of a killed process wait for another process; the default is a minute.
LEASE_SECONDS = 1.0

router = OutboxRouter()


class UnknownAccountError(Exception):
    """There is no account with that number."""


class StumbleError(Exception):
    """A bug, or a service that does not answer: a retry may help."""


async def accept(
    broker: OutboxBroker, session: AsyncSession, *, source: int, target: int, cents: int, stumbles: int = 0
) -> int:
    """Accept a transfer in the caller's transaction: its row and its message are committed together."""
    transfer = Transfer(source=source, target=target, cents=cents)
    session.add(transfer)
    await session.flush()
    message = TransferAccepted(transfer_id=transfer.id, source=source, target=target, cents=cents, stumbles=stumbles)
    await broker.publish(message, queue=TRANSFERS, session=session)
    return transfer.id


@router.publisher(NOTIFICATIONS)
@router.subscriber(
    TRANSFERS,
    max_workers=WORKERS,
    lease_ttl_seconds=LEASE_SECONDS,
    retry_strategy=ConstantRetry(delay_seconds=0.2, max_attempts=MAX_ATTEMPTS),
)
async def move(transfer: TransferAccepted, session: OutboxSession, message: OutboxMessage) -> MoneyMoved:
    """Move the money. One transaction commits the writes, publishes the result and deletes the message."""
    attempt = message.raw_message.attempts_count + 1
    print(f"transfer {transfer.transfer_id}, attempt {attempt}: {transfer.cents} cents to {transfer.target}")
    # Lock in the order of the numbers: two transfers between the same accounts cannot deadlock.
    for account_id, cents in sorted([(transfer.source, -transfer.cents), (transfer.target, transfer.cents)]):
        await _change(session, account_id, cents)
    line = transfer.model_dump(include={"transfer_id", "source", "target", "cents"})
    await session.execute(insert(LedgerLine).values(line))
    if attempt <= transfer.stumbles:
        raise StumbleError(f"transfer {transfer.transfer_id} failed with everything written, and nothing committed")
    text = f"{transfer.cents} cents from account {transfer.source}"
    return MoneyMoved(transfer_id=transfer.transfer_id, account_id=transfer.target, text=text)


@router.subscriber(NOTIFICATIONS, batch=True, max_records=100, lease_ttl_seconds=LEASE_SECONDS)
async def notify(moves: list[MoneyMoved], session: OutboxSession) -> None:
    """Notify all owners that wait, in one transaction."""
    await session.execute(insert(Notification), [move.model_dump() for move in moves])


async def _change(session: AsyncSession, account_id: int, cents: int) -> None:
    change = update(Account).where(Account.id == account_id).values(cents=Account.cents + cents)
    if (await session.execute(change.returning(Account.id))).first() is None:
        raise UnknownAccountError(f"there is no account {account_id}")

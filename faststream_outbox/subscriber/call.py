"""One call of a handler: its rows, the transaction it may share with them, and the settlement of each row."""

from asyncio import CancelledError
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Final, NoReturn

from sqlalchemy.ext.asyncio import AsyncSession

from faststream_outbox.message import OutboxDelivery
from faststream_outbox.storage import Ack, Lease, OutboxRow, Outcome, Retry, Settlement, SharedTransaction, Store
from faststream_outbox.subscriber.judge import Interrupted, Judge

_GROUP_NUMBERS: Final = count(1)


class _LazyTransaction:
    """The transaction that a handler shares with its rows; it begins when the handler asks for a session.

    It holds leases, not deliveries: these refer to it, and a reference cycle would wait for the garbage collector.
    """

    def __init__(self, store: Store, leases: Sequence[Lease]) -> None:
        self._store = store
        self._leases = leases
        self.transaction: SharedTransaction | None = None
        self.over = False

    def open_session(self) -> AsyncSession:
        """Return the session of the transaction, and begin it first where it has not begun."""
        if self.over:
            raise RuntimeError(
                "This handler has ended, and the session of its message with it: nothing would commit what is written "
                "now. Open a session of your own."
            )
        if self.transaction is None:
            self.transaction = self._store.share_transaction(self._leases)
        return self.transaction.session

    async def rollback(self) -> None:
        """Undo what the handler wrote, and refuse further use of the session."""
        self.over = True
        if self.transaction is not None:
            await self.transaction.rollback()


def _refuse_session() -> NoReturn:
    # The pool was not checked for its connection, and no middleware watches what the handler raises.
    raise RuntimeError("A handler asks for its message's session by a parameter: session: OutboxSession.")


class Call:
    """Turns what a handler did with its messages into one settlement for each row."""

    # Why the transaction of a handler that returned was not committed.
    failed_commit: Exception | None = None

    def __init__(self, store: Store, rows: Sequence[OutboxRow], *, shares_transaction: bool) -> None:
        self.deliveries = tuple(map(OutboxDelivery.of, rows))
        self._leases = [row.lease for row in rows]
        self._shared = _LazyTransaction(store, self._leases) if shares_transaction else None
        batch_size, open_session = len(rows), _refuse_session if self._shared is None else self._shared.open_session
        for delivery in self.deliveries:
            delivery.batch_size = batch_size
            delivery.open_session = open_session

    async def cancel(self, cancelled: CancelledError, *, interrupting: bool) -> BaseException | None:
        """Return the error to judge by after the handler was cancelled; None if every message has a valid verdict.

        `interrupting`: the drain timeout cancelled the handler. Then, without any verdict, raise the error.
        """
        # A verdict is not valid if it was to be committed together with work that the handler did not end.
        in_transaction = self._shared is not None and self._shared.transaction is not None
        decided = 0 if in_transaction else sum(delivery.verdict is not None for delivery in self.deliveries)
        if decided == len(self.deliveries):
            return None
        if not interrupting:
            return cancelled  # something that the handler awaited was cancelled
        if decided:
            return Interrupted()
        await self.rollback()
        raise cancelled

    async def rollback(self) -> None:
        """Undo what was written through the session."""
        if self._shared is not None:
            await self._shared.rollback()

    async def conclude(self, judge: Judge, error: BaseException | None) -> list[Settlement]:
        """Judge every message after the handler returned, or raised `error`; then commit or roll back."""
        settlements = self._judge(judge, error)
        if self._shared is None:
            return settlements
        self._shared.over = True
        transaction = self._shared.transaction
        if transaction is None:
            return settlements
        if error is not None:
            settlements = self._judge_acks_again(judge, error, settlements)
        acked = [settlement for settlement in settlements if isinstance(settlement.outcome, Ack)]
        # An exception that a middleware handled is still a reason to roll back: the handler did only half of its work.
        if not acked or any(delivery.raised for delivery in self.deliveries):
            await self.rollback()
            return settlements
        if self._head is not None and len(acked) < len(settlements):
            await self.rollback()
            return self._retry_in_halves()
        return await self._commit(transaction, judge, settlements, acked)

    async def _commit(
        self, transaction: SharedTransaction, judge: Judge, settlements: list[Settlement], acked: list[Settlement]
    ) -> list[Settlement]:
        leases = [settlement.lease for settlement in acked]
        outcomes = (settlement.outcome for settlement in acked)
        outputs = [output for outcome in outcomes if isinstance(outcome, Ack) for output in outcome.outputs]
        try:
            committed = await transaction.settle(leases, outputs, head=self._head)
        except Exception as failure:  # noqa: BLE001 - it fails as if the handler had raised it
            self.failed_commit = failure
            judge.report_failed_commit(self.deliveries, failure)
            return self._judge_acks_again(judge, failure, settlements)
        if not committed and self._head is None and len(acked) > 1:
            return self._give_back(settlements)
        for settlement in acked:
            settlement.committed = committed
        return settlements

    @property
    def _ordered(self) -> bool:
        return self.deliveries[0].entity_key is not None

    @property
    def _head(self) -> Lease | None:
        """Return the lease that covers all rows, if they are several rows of one key."""
        return self.deliveries[0].lease if len(self.deliveries) > 1 and self._ordered else None

    def _retry_in_halves(self) -> list[Settlement]:
        """Return retries, due at once, for all rows of a key of which one failed.

        The handler wrote for all of them in one transaction, of which no part can be kept. The batch size is remembered
        for each row, and the next call takes half as many.
        """
        batch_size = len(self.deliveries)
        return [
            Settlement(each.lease, Retry(0.0, each.attempts_count, batch_size=batch_size)) for each in self.deliveries
        ]

    def _outcome(self, judge: Judge, delivery: OutboxDelivery, error: BaseException | None) -> Outcome:
        """Judge a message; a handler whose transaction an outage of the database has ended did not fail."""
        if error is None or self._shared is None or self._shared.transaction is None:
            return judge.outcome(delivery, error)
        return judge.excuse(delivery, error) or judge.outcome(delivery, error)

    def _judge(self, judge: Judge, error: BaseException | None) -> list[Settlement]:
        outcomes = [self._outcome(judge, each, error) for each in self.deliveries]
        settlements = list(map(Settlement, self._leases, outcomes))
        if len(settlements) == 1 or self._ordered:
            return settlements
        return self._group(_with_equal_delays(settlements))

    def _judge_acks_again(
        self, judge: Judge, error: BaseException, settlements: Sequence[Settlement]
    ) -> list[Settlement]:
        """Judge acknowledged messages as failed, because what their handler wrote is rolled back."""
        judged = []
        for delivery, settlement in zip(self.deliveries, settlements, strict=True):
            if isinstance(settlement.outcome, Ack):
                delivery.verdict = None
                settlement = Settlement(delivery.lease, self._outcome(judge, delivery, error))  # noqa: PLW2901 - judged anew
            judged.append(settlement)
        return _with_equal_delays(judged)

    def _give_back(self, settlements: Sequence[Settlement]) -> list[Settlement]:
        """Retry acknowledged rows at once, no attempt counted; settling these retries finds the lease that was lost."""
        return [
            Settlement(each.lease, Retry(0.0, delivery.attempts_count)) if isinstance(each.outcome, Ack) else each
            for delivery, each in zip(self.deliveries, settlements, strict=True)
        ]

    def _group(self, settlements: list[Settlement]) -> list[Settlement]:
        """Group the acknowledgements of a batch if it has outputs, which answer all of its messages together."""
        outputs = tuple(output for delivery in self.deliveries for output in delivery.outputs)
        if not outputs:
            return settlements
        group, left = next(_GROUP_NUMBERS), outputs
        for settlement in settlements:
            if isinstance(settlement.outcome, Ack):
                settlement.outcome, settlement.group, left = Ack(left), group, ()
        return settlements


def _with_equal_delays(settlements: list[Settlement]) -> list[Settlement]:
    """Give rows that failed in one call, and equally often, the same delay: jitter would scatter them.

    They come back together, so that halving the batch finds the row that fails.
    """
    shortest: dict[int, float] = {}
    for each in settlements:
        if isinstance(outcome := each.outcome, Retry) and outcome.batch_size > 1:
            attempts, delay = outcome.attempts_count, outcome.delay_seconds
            shortest[attempts] = min(delay, shortest.get(attempts, delay))
    if shortest:
        for each in settlements:
            if isinstance(outcome := each.outcome, Retry) and outcome.batch_size > 1:
                each.outcome = replace(outcome, delay_seconds=shortest[outcome.attempts_count])
    return settlements

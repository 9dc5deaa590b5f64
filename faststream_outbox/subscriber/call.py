"""One call of a handler: the rows that it is given, and the transaction that it shares with them if it asks for one."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Final, NoReturn

from sqlalchemy.ext.asyncio import AsyncSession

from faststream_outbox.engine.handling import Handled
from faststream_outbox.message import OutboxDelivery
from faststream_outbox.storage import (
    Ack,
    Lease,
    NewRow,
    OutboxRow,
    Retry,
    Settled,
    Settlement,
    SharedTransaction,
    Store,
)
from faststream_outbox.subscriber.judge import Judge

_GROUPS: Final = count(1)


class _Sharing:
    """The transaction that a handler shares with its rows, begun when it asks for a session.

    It knows leases, not deliveries, which know it: in a circle, they would stay until the garbage collector comes.
    """

    def __init__(self, store: Store, leases: Sequence[Lease]) -> None:
        self._store = store
        self._leases = leases
        self.transaction: SharedTransaction | None = None
        self.over = False

    def open_session(self) -> AsyncSession:
        """Return the session of the transaction, which is begun if it was not."""
        if self.over:
            raise RuntimeError(
                "There is a session for a message while its handler runs, and this handler has ended: nobody would "
                "commit what is written now. Open a session of your own."
            )
        if self.transaction is None:
            self.transaction = self._store.share_transaction(self._leases)
        return self.transaction.session

    async def abandon(self) -> None:
        """Undo what was written."""
        self.over = True
        if self.transaction is not None:
            await self.transaction.rollback()


def _refuse() -> NoReturn:
    # Its connection has not been reckoned with, nor would what the handler raises be noticed.
    raise RuntimeError("A handler asks for its message's session by a parameter: session: OutboxSession.")


class Call:
    """Turns what a handler did with its messages into what becomes of their rows."""

    def __init__(self, store: Store, rows: Sequence[OutboxRow], *, shares_transaction: bool) -> None:
        self.deliveries = tuple(map(OutboxDelivery.of, rows))
        self._leases = [row.lease for row in rows]
        self._sharing = _Sharing(store, self._leases) if shares_transaction else None
        company, open_session = len(rows), _refuse if self._sharing is None else self._sharing.open_session
        for delivery in self.deliveries:
            delivery.company = company
            delivery.open_session = open_session

    @property
    def shares_a_transaction(self) -> bool:
        """Whether the handler has asked for a session."""
        return self._sharing is not None and self._sharing.transaction is not None

    @property
    def _ordered(self) -> bool:
        return self.deliveries[0].entity_key is not None

    @property
    def decided(self) -> int:
        """On how many messages a verdict was given."""
        return sum(delivery.verdict is not None for delivery in self.deliveries)

    async def abandon(self) -> None:
        """Undo what was written through the session."""
        if self._sharing is not None:
            await self._sharing.abandon()

    async def conclude(self, judge: Judge, error: BaseException | None) -> Handled:
        """Judge every message after the handler returned, or raised `error`; then commit or roll back."""
        settlements = self._judge(judge, error)
        if self._sharing is None:
            return Handled(settlements)
        self._sharing.over = True
        transaction = self._sharing.transaction
        if transaction is None:
            return Handled(settlements)
        if error is not None:
            settlements = self._judge_acks(judge, error, settlements)
        acked = [settlement for settlement in settlements if isinstance(settlement.outcome, Ack)]
        # What was raised and then handled by a middleware is no reason to keep half of the handler's writes.
        if not acked or any(delivery.raised for delivery in self.deliveries):
            await self.abandon()
            return Handled(settlements)
        if self._head is not None and len(acked) < len(settlements):
            await self.abandon()
            return Handled(self._in_parts())
        return await self._commit(transaction, judge, settlements, acked)

    async def _commit(
        self, transaction: SharedTransaction, judge: Judge, settlements: list[Settlement], acked: list[Settlement]
    ) -> Handled:
        leases = [settlement.lease for settlement in acked]
        try:
            committed = await transaction.settle(leases, _outputs(acked), head=self._head)
        except Exception as failure:  # noqa: BLE001 - it fails as if the handler had raised it
            judge.tell_of_failed_commit(self.deliveries, failure)
            return Handled(self._judge_acks(judge, failure, settlements))
        covering = frozenset(leases if self._head is None else [self._head])
        if committed:
            return Handled(settlements, Settled(held=covering))
        if len(covering) == 1:
            return Handled(settlements, Settled(lost=covering))
        return Handled(self._give_back(settlements))

    @property
    def _head(self) -> Lease | None:
        """The lease that covers all rows, where they are those of one key."""
        return self.deliveries[0].lease if len(self.deliveries) > 1 and self._ordered else None

    def _in_parts(self) -> list[Settlement]:
        """Have the rows of a key run again, at once and in parts, because one of them blocks those behind it.

        What was written for all of them is one transaction, of which no part can be kept. Only the first is written so;
        that they were so many is remembered of each, so that they come in halves.
        """
        company = len(self.deliveries)
        return [Settlement(each.lease, Retry(0.0, each.attempts_count, company=company)) for each in self.deliveries]

    def _judge(self, judge: Judge, error: BaseException | None) -> list[Settlement]:
        outcomes = [judge.outcome(each, error) for each in self.deliveries]
        settlements = list(map(Settlement, self._leases, outcomes))
        return self._group(_in_step(settlements)) if len(settlements) > 1 and not self._ordered else settlements

    def _judge_acks(self, judge: Judge, error: BaseException, settlements: Sequence[Settlement]) -> list[Settlement]:
        """Leave those to the retry strategy whose effects are rolled back: they were not handled after all."""
        judged = []
        for delivery, settlement in zip(self.deliveries, settlements, strict=True):
            if isinstance(settlement.outcome, Ack):
                delivery.verdict = None
                settlement = Settlement(delivery.lease, judge.outcome(delivery, error))  # noqa: PLW2901 - judged anew
            judged.append(settlement)
        return _in_step(judged)

    def _give_back(self, settlements: Sequence[Settlement]) -> list[Settlement]:
        """Free those of a batch at once that did not lose their leases, no attempt counted; who did, settling tells."""
        return [
            Settlement(each.lease, Retry(0.0, delivery.attempts_count)) if isinstance(each.outcome, Ack) else each
            for delivery, each in zip(self.deliveries, settlements, strict=True)
        ]

    def _group(self, settlements: list[Settlement]) -> list[Settlement]:
        """Tie the acknowledgements of a batch together if it has outputs, which answer all of them."""
        outputs = tuple(output for delivery in self.deliveries for output in delivery.outputs)
        if not outputs:
            return settlements
        group, grouped, left = next(_GROUPS), list[Settlement](), outputs
        for settlement in settlements:
            if isinstance(settlement.outcome, Ack):
                settlement, left = replace(settlement, outcome=Ack(left), group=group), ()  # noqa: PLW2901 - the same one, in company
            grouped.append(settlement)
        return grouped


def _outputs(settlements: Sequence[Settlement]) -> list[NewRow]:
    return [output for each in settlements if isinstance(each.outcome, Ack) for output in each.outcome.outputs]


def _in_step(settlements: list[Settlement]) -> list[Settlement]:
    """Let those that failed together, and as often, come back together: a strategy's jitter would scatter them."""
    soonest: dict[int, float] = {}
    for each in settlements:
        if isinstance(outcome := each.outcome, Retry) and outcome.company > 1:
            attempts, delay = outcome.attempts_count, outcome.delay_seconds
            soonest[attempts] = min(delay, soonest.get(attempts, delay))
    if not soonest:
        return settlements
    return [
        replace(each, outcome=replace(outcome, delay_seconds=soonest[outcome.attempts_count]))
        if isinstance(outcome := each.outcome, Retry) and outcome.company > 1
        else each
        for each in settlements
    ]

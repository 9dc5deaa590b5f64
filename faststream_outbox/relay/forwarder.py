"""Sends rows on, and says what becomes of them: those that were confirmed are done, the others as it was answered."""

from collections.abc import Callable, Sequence

from faststream_outbox.message import OutboxDelivery, Reject
from faststream_outbox.relay.outage import Outage
from faststream_outbox.relay.outgoing import ExtraHeaders, Outgoing, make_outgoing
from faststream_outbox.relay.routing import Routes, UnroutableError
from faststream_outbox.relay.targets.base import (
    LeaseLostError,
    OutageError,
    RefusedError,
    SentRun,
    StillOurs,
    Target,
)
from faststream_outbox.storage import Ack, Dead, OutboxRow, Outcome, Retry, Settlement
from faststream_outbox.subscriber.judge import Judge

_SENT = Ack()


class Forwarder:
    """Handles rows by sending them: those of one key in their order, the others as they come."""

    def __init__(
        self,
        target: Target,
        routes: Routes,
        judge: Judge,
        outage: Outage,
        *,
        is_ours: Callable[[OutboxRow], bool],
        source: str,
        extra: ExtraHeaders | None = None,
    ) -> None:
        self._target = target
        self._routes = routes
        self._judge = judge
        self._outage = outage
        self._is_ours = is_ours
        self._source = source
        self._extra = extra

    async def forward(self, rows: Sequence[OutboxRow]) -> list[Settlement]:
        """Send rows: all of one key, or all without one. Through an outage they are kept, and sent when it is over."""
        send = self._forward_each if rows[0].entity_key is None else self._forward_run
        return await send(rows)

    async def _forward_each(self, rows: Sequence[OutboxRow]) -> list[Settlement]:
        settlements: list[Settlement] = []
        left = list(rows)
        while left:
            made = [self._make(row) for row in left]
            sent = iter(await self._target.send_each([each for each in made if isinstance(each, Outgoing)]))
            errors = [next(sent) if isinstance(each, Outgoing) else each for each in made]
            kept = list[OutboxRow]()
            for row, error in zip(left, errors, strict=True):
                if isinstance(error, OutageError):
                    kept.append(row)
                else:
                    settlements.append(Settlement(row.lease, self._outcome(row, error)))
            outage = next((error for error in errors if isinstance(error, OutageError)), None)
            if outage is None:
                break
            await self._outage.endure(outage)
            left = [row for row in kept if self._is_ours(row)]
            ours = {row.id for row in left}
            settlements += [Settlement(row.lease, _untouched(row)) for row in kept if row.id not in ours]
        return settlements

    async def _forward_run(self, rows: Sequence[OutboxRow]) -> list[Settlement]:
        """Send the rows of a key up to the first that has to be tried again; one that is dead may let others pass."""
        settlements: list[Settlement] = []
        left = list(rows)
        while left:
            confirmed, error = await self._send_first(left, lambda: self._is_ours(rows[0]))
            settlements += [Settlement(row.lease, _SENT) for row in left[:confirmed]]
            left = left[confirmed:]
            if error is None:
                break
            if isinstance(error, OutageError):
                await self._outage.endure(error)
                continue
            outcome = self._outcome(left[0], error)
            settlements.append(Settlement(left[0].lease, outcome))
            if not isinstance(outcome, Dead):
                break
            left = left[1:]
        return settlements

    async def _send_first(self, rows: Sequence[OutboxRow], still_ours: StillOurs) -> SentRun:
        """Send the first rows of a key, up to one that has no destination."""
        messages = list[Outgoing]()
        for row in rows:
            made = self._make(row)
            if not isinstance(made, Outgoing):
                sent = await self._target.send_run(messages, still_ours) if messages else SentRun(0)
                return sent if sent.error is not None else SentRun(sent.confirmed, made)
            messages.append(made)
        return await self._target.send_run(messages, still_ours)

    def _make(self, row: OutboxRow) -> Outgoing | Exception:
        try:
            destination = self._routes.destination(row)
            self._target.check(destination)
            return make_outgoing(row, destination, source=self._source, extra=self._extra)
        except UnroutableError as error:
            return error
        except ValueError as error:  # of the destination, or of headers that are none
            return RefusedError(str(error))

    def _outcome(self, row: OutboxRow, error: Exception | None) -> Outcome:
        match error:
            case None:
                return _SENT
            case LeaseLostError():
                return _untouched(row)
            case RefusedError() | UnroutableError():
                delivery = OutboxDelivery.of(row)
                delivery.verdict = Reject()
                return self._judge.outcome(delivery, error)
            case _:
                return self._judge.outcome(OutboxDelivery.of(row), error)


def _untouched(row: OutboxRow) -> Retry:
    """Give a row back as it was: it was no attempt of its own that failed."""
    return Retry(0.0, row.attempts_count)

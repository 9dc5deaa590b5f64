"""Sends rows on, and says what becomes of them: those that were confirmed are done, the others as it was answered."""

from collections.abc import Sequence

from faststream_outbox.message import OutboxDelivery, Rejected
from faststream_outbox.relay.outage import Outage
from faststream_outbox.relay.outgoing import ExtraHeaders, Outgoing, make_outgoing
from faststream_outbox.relay.routing import Routes, UnroutableError
from faststream_outbox.relay.targets.base import OutageError, RefusedError, Target
from faststream_outbox.storage import Ack, Dead, OutboxRow, Outcome, Retry, Settlement
from faststream_outbox.subscriber.handling import Handled
from faststream_outbox.subscriber.verdicts import Judge

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
        source: str,
        extra: ExtraHeaders | None = None,
    ) -> None:
        self._target = target
        self._routes = routes
        self._judge = judge
        self._outage = outage
        self._source = source
        self._extra = extra

    async def forward(self, rows: Sequence[OutboxRow]) -> Handled:
        """Send rows: all of one key, or all without one."""
        if self._outage.lasts:
            return Handled([Settlement(row.lease, _untouched(row)) for row in rows])
        if rows[0].entity_key is not None:
            return Handled(await self._forward_run(rows))
        made = [self._make(row) for row in rows]
        sent = await self._target.send_each([each for each in made if isinstance(each, Outgoing)])
        results = iter(sent)
        errors = [next(results) if isinstance(each, Outgoing) else each for each in made]
        return Handled(
            [Settlement(row.lease, self._outcome(row, error)) for row, error in zip(rows, errors, strict=True)]
        )

    async def _forward_run(self, rows: Sequence[OutboxRow]) -> list[Settlement]:
        """Send the rows of a key up to the first that has to be tried again; one that is dead may let others pass."""
        settlements: list[Settlement] = []
        left = list(rows)
        while left:
            made = [self._make(row) for row in left]
            whole = next((n for n, each in enumerate(made) if not isinstance(each, Outgoing)), len(made))
            confirmed, error = await self._target.send_run(
                [each for each in made[:whole] if isinstance(each, Outgoing)]
            )
            settlements += [Settlement(row.lease, _SENT) for row in left[:confirmed]]
            if error is None and whole < len(made):
                unmade = made[whole]
                error = unmade if isinstance(unmade, Exception) else None
            if error is None:
                break
            outcome = self._outcome(left[confirmed], error)
            settlements.append(Settlement(left[confirmed].lease, outcome))
            if not isinstance(outcome, Dead):
                break
            left = left[confirmed + 1 :]
        return settlements

    def _make(self, row: OutboxRow) -> Outgoing | Exception:
        try:
            return make_outgoing(row, self._routes.destination(row), source=self._source, extra=self._extra)
        except UnroutableError as error:
            return error

    def _outcome(self, row: OutboxRow, error: Exception | None) -> Outcome:
        match error:
            case None:
                return _SENT
            case OutageError():
                self._outage.begin(error)
                return _untouched(row)
            case RefusedError() | UnroutableError():
                delivery = OutboxDelivery.of(row)
                delivery.verdict = Rejected()
                return self._judge.outcome(delivery, error)
            case _:
                return self._judge.outcome(OutboxDelivery.of(row), error)


def _untouched(row: OutboxRow) -> Retry:
    """Give a row back as it was: it was no attempt of its own that failed."""
    return Retry(0.0, row.attempts_count)

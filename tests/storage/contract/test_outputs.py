"""A handler's outputs: in the store together with the end of their input, or not at all."""

from datetime import timedelta

import pytest

from faststream_outbox.storage import Ack, NewRow, OutboxRow, Retry, Settled, Settlement
from tests.backends import Backend, everywhere

HOUR = timedelta(hours=1)


async def claimed(backend: Backend, count: int) -> list[OutboxRow]:
    await backend.insert(*(NewRow("in", b"%d" % n) for n in range(count)))
    return (await backend.claim("in")).rows


async def settle(backend: Backend, *settlements: Settlement) -> Settled:
    async with backend.store.connect() as lane:
        return await lane.settle(settlements)


async def test_outputs_are_inserted_once_and_their_input_is_gone(backend: Backend) -> None:
    [row] = await claimed(backend, 1)
    ack = Settlement(row.lease, Ack((NewRow("out", b"1", {"h": "é"}), NewRow("other", b"2"))))
    assert (await settle(backend, ack)).held == {row.lease}
    again = await settle(backend, ack)
    assert again.lost == {row.lease}
    first, second = await backend.rows()
    assert (first.queue, first.payload, first.headers) == ("out", b"1", {"h": "é"})
    assert (second.queue, second.payload, second.headers) == ("other", b"2", None)
    for output in (first, second):
        assert (output.acquired_token, output.attempts_count, output.deliveries_count) == (None, 0, 0)
    assert [row.payload for row in (await backend.claim("out")).rows] == [b"1"], "due at once"


async def test_a_lost_lease_brings_no_outputs(backend: Backend) -> None:
    await backend.insert(NewRow("in", b"lost"), NewRow("in", b"held"))
    lost, held = (await backend.claim("in", lease_seconds=10)).rows
    async with backend.store.connect() as lane:
        await lane.renew([held.lease], lease_seconds=60)
        await backend.pass_time(11)
        [thief] = (await lane.claim_suspect(everywhere("in"), lease_seconds=60)).rows
        assert thief.id == lost.id
    settled = await settle(
        backend,
        Settlement(lost.lease, Ack((NewRow("out", b"lost"), NewRow("out", b"lost", key="k")))),
        Settlement(held.lease, Ack((NewRow("out", b"held"),))),
    )
    assert settled.held == {held.lease}
    assert settled.lost == {lost.lease}
    assert sorted((row.queue, row.payload) for row in await backend.rows()) == [("in", b"lost"), ("out", b"held")]


async def test_ids_follow_the_order_of_the_outputs(backend: Backend) -> None:
    rows = await claimed(backend, 30)
    outputs = {row.id: [b"%d/%d" % (row.id, n) for n in range(20)] for row in rows}
    settled = await settle(
        backend,
        *(
            Settlement(row.lease, Ack(tuple(NewRow("out", p, key=f"{n % 3}") for n, p in enumerate(outputs[row.id]))))
            for row in reversed(rows)
        ),
    )
    assert settled.held == {row.lease for row in rows}
    written = [row.payload for row in await backend.rows()]
    assert written == [payload for row in rows for payload in outputs[row.id]]


async def test_outputs_have_keys_and_delays(backend: Backend) -> None:
    [row] = await claimed(backend, 1)
    outputs = (NewRow("out", b"key", key="k"), NewRow("out", b"delay", activate_in=HOUR), NewRow("out", b"now"))
    await settle(backend, Settlement(row.lease, Ack(outputs)))
    keyed, delayed, now = await backend.rows()
    assert [row.entity_key for row in (keyed, delayed, now)] == ["k", None, None]
    assert delayed.next_attempt_at - delayed.created_at == pytest.approx(HOUR, abs=timedelta(seconds=1))
    assert [row.payload for row in (await backend.claim("out")).rows] == [b"now"]
    at = delayed.next_attempt_at + HOUR
    await settle(
        backend, Settlement((await claimed(backend, 1))[0].lease, Ack((NewRow("out", b"at", activate_at=at),)))
    )
    assert (await backend.rows())[-1].next_attempt_at == at


async def test_a_timer_that_is_waiting_is_left_alone(backend: Backend) -> None:
    await backend.insert(NewRow("out", b"first", timer_id="t", activate_in=HOUR))
    rows = await claimed(backend, 2)
    again, fresh, plain = (NewRow("out", b"again", timer_id="t"), NewRow("out", b"u", timer_id="u"), NewRow("out", b""))
    settled = await settle(
        backend,
        Settlement(rows[0].lease, Ack((again, fresh, plain))),
        Settlement(rows[1].lease, Ack((fresh,))),
    )
    assert settled.held == {row.lease for row in rows}
    assert [row.payload for row in await backend.rows()] == [b"first", b"u", b""]


async def test_a_timer_may_set_itself_anew(backend: Backend) -> None:
    for _ in range(3):
        await backend.insert(NewRow("in", b"tick", timer_id="clock"))
        [row] = (await backend.claim("in")).rows
        anew = NewRow("in", b"tock", timer_id="clock", activate_in=HOUR)
        assert (await settle(backend, Settlement(row.lease, Ack((anew,))))).held == {row.lease}
        [waiting] = await backend.rows()
        assert (waiting.payload, waiting.timer_id) == (b"tock", "clock")
        await backend.pass_time(3601)


async def test_one_batch_takes_acks_with_and_without_outputs(backend: Backend) -> None:
    rows = await claimed(backend, 4)
    outputs = [(), (NewRow("out", b"a"),), (), (NewRow("out", b"b"), NewRow("out", b"c"))]
    settled = await settle(backend, *(Settlement(row.lease, Ack(new)) for row, new in zip(rows, outputs, strict=True)))
    assert settled.held == {row.lease for row in rows}
    assert [row.payload for row in await backend.rows()] == [b"a", b"b", b"c"]


@pytest.mark.parametrize("outputs", [[NewRow("q", b"")], (b"",), "q"])
def test_what_is_no_output_is_refused(outputs: object) -> None:
    with pytest.raises(TypeError, match="a tuple of NewRow"):
        Ack(outputs)  # type: ignore[arg-type]


async def test_a_group_is_settled_whole(backend: Backend) -> None:
    rows = await claimed(backend, 3)
    answers = (NewRow("out", b"answer"), NewRow("out", b"another"))
    settled = await settle(
        backend, *(Settlement(row.lease, Ack(answers if row is rows[1] else ()), group=7) for row in rows)
    )
    assert settled.held == {row.lease for row in rows}
    assert [row.payload for row in await backend.rows()] == [b"answer", b"another"]


async def test_of_a_group_that_has_lost_a_lease_nothing_is_settled(backend: Backend) -> None:
    """Neither its outputs nor its other rows; another group of the same statement is none the worse for it."""
    *torn, gone, one, two = await claimed(backend, 5)
    assert (await settle(backend, Settlement(gone.lease, Ack()))).held
    settled = await settle(
        backend,
        *(Settlement(row.lease, Ack((NewRow("out", b"torn"),)), group=1) for row in (*torn, gone)),
        *(Settlement(row.lease, Ack((NewRow("out", b"whole"),)), group=2) for row in (one, two)),
    )
    assert settled.held == {one.lease, two.lease}
    assert settled.lost == {row.lease for row in (*torn, gone)}
    left = sorted((row.queue, row.payload) for row in await backend.rows())
    assert left == [("in", b"0"), ("in", b"1"), ("out", b"whole"), ("out", b"whole")]


async def test_only_acknowledgements_are_grouped(backend: Backend) -> None:
    [row] = await claimed(backend, 1)
    with pytest.raises(TypeError, match="acknowledgements"):
        Settlement(row.lease, Retry(1.0, 1), group=1)

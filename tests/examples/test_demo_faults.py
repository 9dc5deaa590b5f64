"""`make demo` with a fault in it: the check finds it, and the run fails."""

import re
from functools import partial
from typing import Any

import pytest
from rich.console import Console
from sqlalchemy import text

from examples.demo import crash, process, run, shop
from examples.demo.__main__ import main
from examples.demo.crash import kill_one
from examples.demo.fates import Fate, deal_fates
from examples.demo.watch import Watch
from examples.demo.workers import Workers
from faststream_outbox import OutboxBroker
from faststream_outbox.embedded import EmbeddedPostgres
from tests.examples.demo_output import counts_in
from tests.waiting import until


@pytest.fixture
def quick_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Durability is no matter where the outcome is made up anyway."""
    monkeypatch.setattr(run, "EmbeddedPostgres", partial(EmbeddedPostgres, fast=True))


@pytest.fixture
def faulty_app(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An app with the fault that `DEMO_FAULT` names."""
    monkeypatch.setattr(process, "MODULE", "tests.examples.faulty_app")
    return monkeypatch


@pytest.mark.usefixtures("plain_output", "quick_server")
def test_a_handler_that_loses_a_message_fails_the_run(
    faulty_app: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = deal_fates(50, seed=1).index(Fate.SMOOTH) + 1
    faulty_app.setenv("DEMO_FAULT", "forget")
    faulty_app.setenv("DEMO_FORGOTTEN", str(lost))
    assert main(["--orders", "50", "--seed", "1"]) == 1
    output = capsys.readouterr().out
    assert "FAILED" in output
    assert f"Orders lost: order {lost}\n" in re.sub(" +\n", "\n", output)


@pytest.mark.usefixtures("plain_output", "quick_server")
def test_a_row_that_disappears_fails_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def steal_a_reminder(console: Console, watch: Watch, workers: Workers, orders: int) -> None:
        await until(lambda: 1 in watch.shop.accepted)
        async with watch.engine.begin() as connection:
            await connection.execute(text("DELETE FROM outbox WHERE queue = 'reminders' AND timer_id = 'order-1'"))
        await kill_one(console, watch, workers, orders)

    monkeypatch.setattr(run, "deal_fates", lambda orders, seed: [Fate.UNPAID, *deal_fates(orders - 1, seed)])
    monkeypatch.setattr(run, "kill_one", steal_a_reminder)
    assert main(["--orders", "50"]) == 1
    output = capsys.readouterr().out
    assert "Reminders lost: order 1\n" in re.sub(" +\n", "\n", output)
    counts = counts_in(output)
    assert counts["Reminders lost"] == 1
    assert counts["Orders lost"] == counts["Parcels lost"] == 0


@pytest.mark.usefixtures("plain_output", "quick_server")
def test_a_message_outside_the_transaction_fails_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    publish = OutboxBroker.publish

    async def publish_elsewhere(self: OutboxBroker, body: Any, *, session: Any, **options: Any) -> int | None:
        async with session.bind.begin() as connection:
            return await publish(self, body, session=connection, **options)

    monkeypatch.setattr(OutboxBroker, "publish", publish_elsewhere)
    # The tills' own transactions and these need a connection each.
    monkeypatch.setattr(run, "CONNECTIONS", 2 * run.CONNECTIONS)
    assert main(["--orders", "50", "--seed", "1"]) == 1
    output = capsys.readouterr().out
    assert counts_in(output)["Delivered although rolled back"] == 5
    assert "Delivered although rolled back: order " in output
    assert "FAILED" in output


@pytest.mark.usefixtures("plain_output", "quick_server")
def test_charges_without_a_key_fail_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    publish = OutboxBroker.publish

    async def publish_without_key(self: OutboxBroker, body: Any, **options: Any) -> int | None:
        return await publish(self, body, **options | {"key": None})

    monkeypatch.setattr(OutboxBroker, "publish", publish_without_key)
    monkeypatch.setattr(shop, "REGULAR_CUSTOMERS", 1)
    assert main(["--orders", "50", "--seed", "1"]) == 1
    output = capsys.readouterr().out
    assert counts_in(output)["Two at once on one account"] > 0
    assert "FAILED" in output


@pytest.mark.usefixtures("plain_output", "quick_server")
def test_an_app_that_never_ends_fails_the_run(
    faulty_app: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    faulty_app.setenv("DEMO_FAULT", "hang")
    faulty_app.setattr(crash, "PATIENCE_SECONDS", 2.0)
    faulty_app.setattr(process, "STOP_SECONDS", 0.5)
    assert main(["--orders", "50", "--seed", "1"]) == 1
    output = capsys.readouterr().out
    assert counts_in(output)["Left in the outbox"] > 0
    assert "The workers did not finish." in output


@pytest.mark.usefixtures("plain_output", "quick_server")
def test_an_app_that_dies_fails_the_run_and_its_log_is_shown(
    faulty_app: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    faulty_app.setenv("DEMO_FAULT", "die")
    assert main(["--orders", "50", "--seed", "1"]) == 1
    output = capsys.readouterr().out
    assert "this app has a fault" in output
    counts = counts_in(output)
    assert counts["Left in the outbox"] == counts["Orders committed"] == 45

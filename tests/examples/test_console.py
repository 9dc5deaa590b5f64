"""`make console`: the shop has what an operator meets; and `make demo ARGS="--console"` ends with a console."""

from functools import partial

import httpx
import pytest

from examples.console.__main__ import running_shop
from examples.demo import run
from examples.demo.__main__ import PASSED, main
from faststream_outbox.console import make_console
from faststream_outbox.operations import OutboxOperations
from tests.waiting import until


async def test_the_shop_has_a_parked_key_dead_letters_timers_and_a_relay() -> None:
    async with running_shop() as broker:
        transport = httpx.ASGITransport(make_console(broker), client=("127.0.0.1", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            for path, shown in {
                "/": "newsletter",
                "/dead-letters": "AddressUnknownError",
                "/timers": "invoice-700",
                "/nodes": ">ledger</a>",
                "/keys?state=parked": "PaymentRefusedError",
            }.items():
                await until(partial(_shows, client, path, shown))


async def _shows(client: httpx.AsyncClient, path: str, shown: str) -> bool:
    return shown in (await client.get(path)).text


def test_the_demo_ends_with_a_console_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[OutboxOperations] = []

    async def do_nothing(*_: object, **__: object) -> bool:
        return True

    async def serve(operations: OutboxOperations, **options: object) -> None:
        assert options["host"] == "127.0.0.1"
        assert await operations.queues() == []
        served.append(operations)

    monkeypatch.setattr(run, "_run", do_nothing)
    monkeypatch.setattr(run, "serve_console", serve)
    assert main(["--orders", "1"]) == PASSED
    assert served == []
    assert main(["--orders", "1", "--console"]) == PASSED
    assert len(served) == 1

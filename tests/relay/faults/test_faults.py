"""Every row arrives, in the order of its key, while relays, Postgres and the server that they send to are killed."""

import os
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from faststream_outbox.embedded import Database
from faststream_outbox.embedded.database import DSN_VARIABLE
from tests.order.settings import STRATEGIES
from tests.relay.faults.round import run_relay_round
from tests.relay.faults.settings import ENDPOINTS, NO_FAULTS, RelayRoundSettings
from tests.servers.plugin import Servers
from tests.servers.server import Server
from tests.soak import __main__ as command
from tests.soak.database import Restart, own_database
from tests.soak.least import KILLED, PAUSED, TERMINATED, Least
from tests.soak.round import Result
from tests.soak.settings import Settings

# A busy machine takes long to start a server again, and to send what came meanwhile.
pytestmark = pytest.mark.timeout(500)

SEED = int(os.environ.get("OUTBOX_SOAK_SEED") or random.randrange(1_000_000))
# The tests of tests/relay/kafka take away one broker of two; rounds with such a pair are for longer runs.
QUICK = [to for to in ENDPOINTS if not to.endswith("-pair")]
FAULTLESS_SECONDS = 3.0
# A busy machine needs longer than the shortest round to do as much.
LONGEST = 60.0
OUTAGES = ("target killed", "target stopped", "target paused")
LEAST = Least(8.0, {"rows acked": 200, "rollbacks": 3}, {KILLED: 2, PAUSED: 1, TERMINATED: 2, OUTAGES: 1})


@pytest.fixture(scope="module")
def restartable() -> Iterator[tuple[Database, Restart | None]]:
    """A Postgres to crash, unless another was named."""
    with own_database(os.environ.get(DSN_VARIABLE)) as database_and_restart:
        yield database_and_restart


@pytest.fixture
async def server(to: str, servers: Servers, request: pytest.FixtureRequest) -> Server:
    return await servers.up(ENDPOINTS[to].server, request)


@pytest.mark.parametrize("to", QUICK)
def test_nothing_is_lost_and_keys_keep_their_order(
    restartable: tuple[Database, Restart | None], server: Server, to: str
) -> None:
    database, restart = restartable
    strategy = random.Random(f"{SEED}/{to}").choice(STRATEGIES)
    print(f"OUTBOX_SOAK_SEED={SEED}, {strategy}")  # noqa: T201 - to repeat the run
    settings = RelayRoundSettings(database.url("asyncpg"), Path(), SEED, until=0.0, to=to, strategy=strategy)
    result = run_relay_round(settings, database, LONGEST, server, restart=restart, least=LEAST)
    assert result.violations == [], result.stories
    print(dict(result.counts), dict(result.faults))  # noqa: T201 - how much arrived again, and how late
    assert LEAST.lacks(result.counts, result.faults) == {}, "it was an idle run"
    assert result.counts["messages arrived"] >= 200


@pytest.mark.parametrize("to", QUICK)
def test_nothing_comes_again_when_nothing_goes_wrong(outbox_postgres: Database, server: Server, to: str) -> None:
    url = outbox_postgres.url("asyncpg")
    # No process dies, so none has to wait for a lease, and a busy machine has time to renew it.
    settings = RelayRoundSettings(url, Path(), SEED, until=0.0, to=to, faults=NO_FAULTS, lease_seconds=30.0, slow=0.0)
    result = run_relay_round(settings, outbox_postgres, FAULTLESS_SECONDS, server)
    assert result.violations == [], result.stories
    assert result.counts["messages arrived"] >= 50


@pytest.mark.parametrize("to", ENDPOINTS)
def test_the_command_takes_a_server(outbox_postgres_server: Database, monkeypatch: pytest.MonkeyPatch, to: str) -> None:
    asked = []

    def recorded_round(settings: Settings, *_: object, **__: object) -> Result:
        asked.append(settings)
        return Result(settings.seed, [], Counter(), Counter(), 0.1, {})

    monkeypatch.setattr(command, "relay_rounds", lambda _: nullcontext(recorded_round))
    arguments = ["--relay", to, "--seconds", "1", "--seed", "41", "--processes", "3"]
    assert command.main([*arguments, "--dsn", outbox_postgres_server.dsn]) == command.PASSED
    [settings] = asked
    assert isinstance(settings, RelayRoundSettings)
    assert (settings.to, settings.seed, settings.workers, settings.producers) == (to, 41, 2, 1)

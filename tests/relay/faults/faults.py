"""The faults of a relay round: those of a soak, and outages of the server that rows are relayed to."""

import asyncio
from collections.abc import Callable
from functools import partial

from tests.relay.faults.settings import RelayRoundSettings
from tests.servers.server import Server
from tests.soak.database import Restart
from tests.soak.faults import Faults
from tests.soak.process_group import ProcessGroup


class RelayFaults(Faults):
    """Takes the server away while other faults go on, and brings it back; one outage at a time."""

    _settings: RelayRoundSettings

    def __init__(
        self, settings: RelayRoundSettings, dsn: str, processes: ProcessGroup, restart: Restart | None, server: Server
    ) -> None:
        super().__init__(settings, dsn, processes, restart)
        self._server = server
        self._runner = asyncio.Runner()
        self._outage: asyncio.Task[None] | None = None

    def tick(self) -> None:
        """Do what is due, and let an outage go on by a moment."""
        super().tick()
        if self._outage is not None:
            self._runner.run(asyncio.wait({self._outage}, timeout=0.01))
            if self._outage.done():
                self._outage.result()
                self._outage = None

    def stop(self) -> None:
        """No more faults: the server is back."""
        super().stop()
        if self._outage is not None:
            self._runner.run(asyncio.wait({self._outage}))
        self._runner.run(self._server.start())
        self._runner.close()

    def _cards(self) -> list[Callable[[], None]]:
        outages = [partial(self._begin_outage, how) for how in ("killed", "stopped", "paused")]
        return super()._cards() + outages * self._settings.faults.outage

    def _begin_outage(self, how: str) -> None:
        seconds = self._rng.uniform(0.0, self._settings.away_seconds)
        if self._outage is None:
            self.counts[f"target {how}"] += 1
            self._outage = self._runner.get_loop().create_task(self._be_away(how, seconds))

    async def _be_away(self, how: str, seconds: float) -> None:
        match how:
            case "killed":
                await self._server.kill()
            case "stopped":
                await self._server.stop()
            case "paused":
                self._server.pause()
        await asyncio.sleep(seconds)
        await self._server.start()

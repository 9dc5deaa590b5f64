"""A RabbitMQ of one node, by the server's own script: the wrapper on the path insists on the system's directories."""

import os
import shutil
import subprocess
from pathlib import Path

from tests.servers.process import Process, accepts, free_port
from tests.servers.server import Server

# Where the packages of Debian and Fedora have it.
_PACKAGED = "/usr/lib/rabbitmq/bin/rabbitmq-server"


class RabbitMQ(Server):
    name = "RabbitMQ"
    how = "apt-get install rabbitmq-server"

    def __init__(self) -> None:
        super().__init__()
        self._ports_port, self._cluster_port = free_port(), free_port()
        self._ports: Process | None = None

    @classmethod
    def lacks(cls) -> str | None:
        if not _script():
            return "there is no rabbitmq-server"
        return next((f"there is no {each}" for each in ("erl", "epmd") if not shutil.which(each)), None)

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    @property
    def processes(self) -> list[Process]:
        return super().processes + ([self._ports] if self._ports is not None and self._ports.runs else [])

    async def prepare(self) -> None:
        (self.directory / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = 127.0.0.1:{self.port}\n"
            # It blocks publishers when little is left of either, of which a test machine may have little.
            "vm_memory_high_watermark.absolute = 1GB\ndisk_free_limit.absolute = 1MB\n"
        )
        (self.directory / "plugins").write_text("[].\n")
        # Erlang's table of ports is a daemon that would outlive us if the server started it.
        where = ["-port", str(self._ports_port), "-address", "127.0.0.1"]
        self._ports = Process("epmd", *where, log=self.directory / "epmd.log")
        await self._ports.until(lambda: accepts(self._ports_port), seconds=20)

    def launch(self) -> Process:
        return Process(_script() or "rabbitmq-server", log=self.log, env=self._environment())

    def control(self, *arguments: str) -> None:
        """Run `rabbitmqctl`, which lies beside the server's script."""
        program = Path(_script() or "").with_name("rabbitmqctl")
        subprocess.run([program, *arguments], env=self._environment(), check=True, capture_output=True, timeout=60)

    def _environment(self) -> dict[str, str]:
        directory = str(self.directory)
        return {
            "PATH": os.environ["PATH"],
            "HOME": directory,  # of Erlang's cookie
            "LANG": "C.UTF-8",
            "ERL_EPMD_PORT": str(self._ports_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": "outbox@localhost",
            "RABBITMQ_DIST_PORT": str(self._cluster_port),
            "RABBITMQ_MNESIA_BASE": f"{directory}/data",
            "RABBITMQ_LOG_BASE": directory,
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_CONFIG_FILE": f"{directory}/rabbitmq.conf",
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{directory}/plugins",
            # One scheduler that does not spin: it shares two cores with a test suite.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +sbwt none -kernel inet_dist_use_interface {127,0,0,1}",
            # The script then becomes the server, so that signals reach it and its pid is the server's.
            "RUNNING_UNDER_SYSTEMD": "true",
        }

    def end(self) -> None:
        super().end()
        if self._ports is not None:
            self._ports.kill()


def _script() -> str | None:
    return _PACKAGED if Path(_PACKAGED).exists() else shutil.which("rabbitmq-server")

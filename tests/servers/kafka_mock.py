"""The mock cluster of librdkafka as a process of its own: `python -m tests.servers.kafka_mock PORT` takes orders there.

It is Kafka's protocol and not Kafka: idempotence is accepted and not enforced, topics are created by asking for them
and not by admin clients, several aiokafka members of one group fail, and it is slow at what Kafka is quick at.
"""

import asyncio
import json
import sys
from pathlib import Path

from tests.servers.librdkafka import MockCluster, library
from tests.servers.process import Process, ask
from tests.servers.server import Server

PRODUCE = 0  # the number of this request in Kafka's protocol
_ROOT = Path(__file__).parents[2]


class KafkaMock(Server):
    """What is stopped comes back with its data, but what is killed comes back empty and elsewhere."""

    name = "mock of Kafka"
    how = "pip install confluent-kafka, as a wheel"

    def __init__(self) -> None:
        super().__init__()
        self.bootstrap_servers = ""
        self._down = False

    @classmethod
    def lacks(cls) -> str | None:
        return None if library() else "the wheel of confluent-kafka has no librdkafka inside"

    @property
    def runs(self) -> bool:
        return super().runs and not self._down

    async def create_topic(self, name: str, partitions: int = 1) -> None:
        """Create one with so many partitions; a topic that is asked for without has four."""
        await self._order("create_topic", name, partitions)

    async def fail(self, *errors: int, request: int = PRODUCE) -> None:
        """Answer the next requests of a kind, one each, with these errors: 7 is a time-out, 10 a message too large."""
        await self._order("fail", request, errors)

    async def delay(self, milliseconds: int) -> None:
        """Answer everything so late."""
        await self._order("set_delay", milliseconds)

    def launch(self) -> Process:
        self._down = False
        return Process(sys.executable, "-m", __name__, str(self.port), log=self.log, cwd=_ROOT)

    async def ready(self) -> bool:
        return await ask(self.port) is not None

    async def start(self) -> None:
        await super().start()
        if self._down:
            await self._order("set_up")
            self._down = False
        self.bootstrap_servers = await self._order("bootstrap_servers")

    async def stop(self) -> None:
        """Refuse connections, and keep the process for the sake of its data and its port."""
        if self.runs:
            self.resume()
            await self._order("set_down")
            self._down = True

    async def _order(self, order: str, *arguments: object) -> str:
        answer = await ask(self.port, json.dumps([order, *arguments]).encode() + b"\n", lines=1)
        assert answer, f"{self.name} did not obey: {order}"
        return str(json.loads(answer))


async def main(port: int) -> None:
    cluster = MockCluster()

    async def obey(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if line := await reader.readline():
            order, *arguments = json.loads(line)
            told = getattr(cluster, order)
            answer = told(*arguments) if callable(told) else told
            writer.write(json.dumps(answer or "").encode() + b"\n")
        writer.close()

    async with await asyncio.start_server(obey, "127.0.0.1", port) as server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))

"""A consumer killed between commit and ack: `python -m tests.inbox.killed_consumer DATABASE [STREAM SERVER]`.

It consumes from an outbox, or from a stream of another broker.
"""

import asyncio
import os
import signal
import sys
from typing import Any

from faststream import BaseMiddleware
from sqlalchemy.ext.asyncio import create_async_engine

from faststream_outbox.annotations import InboxSession
from tests.backends import PostgresBackend
from tests.inbox.inbox_app import InboxApp
from tests.inbox.streams import STREAMS


class Die(BaseMiddleware):
    """Outside the inbox, inside FastStream's acknowledgement: when this ends, the one is done and the other is not."""

    async def after_processed(self, *_: Any) -> bool:
        os.kill(os.getpid(), signal.SIGKILL)
        return False


async def main(database: str, stream: str | None = None, server: str = "") -> None:
    app = InboxApp(PostgresBackend(create_async_engine(database)))

    async def handle(body: str, session: InboxSession) -> None:
        await app.write(session, body)

    broker: Any
    if stream is None:
        broker = app.broker(middlewares=[Die])
        app.subscriber(broker, app.inbox(), lease_ttl_seconds=1.0)(handle)
    else:
        broker = STREAMS[stream].broker(server, middlewares=[Die])
        # Or a second delivery might be skipped, and acked, in the moment before the end.
        STREAMS[stream].subscribe(broker, app.inbox(), handle, one_by_one=True)
    await broker.start()
    await asyncio.sleep(60)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

"""`python -m tests.exactly_once.fork_server BELL`: imports what a worker needs, opens no connection, forks on request.

Each line that it reads is a request, each line that it writes an answer: `["fork", {…}]` gives the id of a new process,
`["reap", id]` waits for one that was killed and gives its exit status. When nobody can ask any more, all of them end.
The bell is a file descriptor to which each worker writes its name when it has started.
"""

import asyncio
import importlib
import json
import os
import signal
import sys
import traceback
from typing import Any, Final, NoReturn

from tests.exactly_once.worker import work
from tests.exactly_once.worker_options import Orders

# Drivers are imported by SQLAlchemy when it first needs them; here they are imported once for all workers.
DRIVERS: Final = (
    "asyncpg",
    "psycopg",
    "sqlalchemy.dialects.postgresql.asyncpg",
    "sqlalchemy.dialects.postgresql.psycopg",
)


class Nursery:
    """The process that forks."""

    def __init__(self, bell: int) -> None:
        self._bell = bell
        self._children: set[int] = set()
        # Nobody writes into it: a worker at its one end learns that the nursery, which has the other, is gone.
        self._watched, self._held = os.pipe()

    def run(self) -> None:
        """Serve until the requests end."""
        try:
            for line in sys.stdin:
                print(json.dumps(self._answer(*json.loads(line))), flush=True)  # noqa: T201 - the answer
        finally:
            for pid in list(self._children):
                os.kill(pid, signal.SIGKILL)
                self._reap(pid)

    def _answer(self, request: str, argument: Any) -> int:
        return self._fork(Orders(**argument)) if request == "fork" else self._reap(argument)

    def _fork(self, orders: Orders) -> int:
        pid = os.fork()
        if pid == 0:
            self._live(orders)
        self._children.add(pid)
        return pid

    def _reap(self, pid: int) -> int:
        _, status = os.waitpid(pid, 0)
        self._children.discard(pid)
        return os.waitstatus_to_exitcode(status)

    def _live(self, orders: Orders) -> NoReturn:
        """Be a worker; whatever happens, do not come back as a second nursery."""
        status = 1
        try:
            os.close(self._held)
            nothing = os.open(os.devnull, os.O_RDWR)
            for standard in (0, 1):  # requests and answers are not for a worker
                os.dup2(nothing, standard)
            asyncio.run(work(orders, bell=self._bell, lifeline=self._watched))
            status = 0
        except BaseException:  # noqa: BLE001 - the last chance to tell
            traceback.print_exc()
        finally:
            os._exit(status)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the test, whose end is the end of the requests
    for driver in DRIVERS:
        importlib.import_module(driver)
    Nursery(int(sys.argv[1])).run()

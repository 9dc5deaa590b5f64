"""What all areas of the operations share: the store, the optional tables, and the transaction of a call."""

import getpass
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import Table

from faststream_outbox.runtime.telemetry import Monitor
from faststream_outbox.storage import SessionOrConnection, Store

_P = ParamSpec("_P")
_T = TypeVar("_T")


class OperationsTableError(RuntimeError):
    """An operation needs a table that was not given."""

    def __init__(self, purpose: str, argument: str) -> None:
        super().__init__(
            f"{purpose} needs {argument}=…: make it with make_operations_tables(metadata), create it "
            f"(`faststream-outbox schema sql {argument.removesuffix('_table')}` prints its DDL), and give it to "
            "OutboxOperations or OutboxBroker."
        )


class OperationsBase:
    """Calls the store's functions for operators, in the caller's transaction or in one of its own."""

    def __init__(
        self,
        store: Store,
        *,
        control_table: Table | None = None,
        audit_table: Table | None = None,
        nodes_table: Table | None = None,
    ) -> None:
        self._store = store
        # Where acts are logged that no audit table keeps.
        self.monitor = Monitor()
        self.control_table = control_table
        self.audit_table = audit_table
        self.nodes_table = nodes_table

    @property
    def has_dead_letters(self) -> bool:
        """Whether there is a table of dead letters."""
        return self._store.keeps_dead

    async def _call(
        self,
        session: SessionOrConnection | None,
        function: Callable[Concatenate[Any, _P], _T],
        /,
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> _T:
        """Call a function of the store in the caller's transaction; without a session in one of our own."""
        if session is not None:
            return await self._store.run(session, function, *args, **kwargs)
        async with self._store.transaction() as own:
            return await self._store.run(own, function, *args, **kwargs)

    async def _read(
        self,
        session: SessionOrConnection | None,
        function: Callable[Concatenate[Any, _P], _T],
        /,
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> _T:
        """Call a function of the store that only reads; without a session in a read-only transaction of our own."""
        if session is not None:
            return await self._store.run(session, function, *args, **kwargs)
        async with self._store.transaction() as own:
            await self._store.run(own, self._store.admin.begin_read)
            return await self._store.run(own, function, *args, **kwargs)

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[SessionOrConnection | None]:
        """Open a read-only transaction, and yield its connection, for several reads that should fit together.

        Example:
            async with operations.reading() as session:
                print(
                    await operations.queues(session=session),
                    await operations.keys(session=session),
                )

        """
        async with self._store.transaction() as own:
            await self._store.run(own, self._store.admin.begin_read)
            yield own

    @asynccontextmanager
    async def _own_or(self, session: SessionOrConnection | None) -> AsyncIterator[SessionOrConnection | None]:
        """Use the caller's session; without one, a transaction of our own that is committed at the end."""
        if session is not None:
            yield session
        else:
            async with self._store.transaction() as own:
                yield own


def current_user() -> str:
    """Return who runs this process, for the audit: the name of the user and of the host."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container may have no entry for its user
        user = "unknown"
    return f"{user}@{socket.gethostname()}"

"""Hold keys of the Postgres store."""

from typing import Any

from faststream_outbox.storage.postgres.acts.base import ActsBase, check_isolation


class KeyActs(ActsBase):
    """Holds keys, and ends that."""

    def hold_key(self, session: Any, queue: str, key: str, reason: str) -> tuple[bool, int | None]:
        """Park the head of a key or, if it has none that is free, insert a row that holds the key."""
        of_key = {"queue": queue, "key": key}
        [[isolation, locked]] = self._execute(session, self._keys.lock, **of_key)
        check_isolation(isolation)
        if not locked:
            return False, None
        parked = self._execute(session, self._operators.park, **of_key, head=None, reason=reason)
        head = self._execute(session, self._keys.head, **of_key)
        if not parked and head and head[0][1]:
            return True, None
        if not parked and head:
            parked = self._execute(session, self._keys.find_hold, **of_key)
        if not parked:
            parked = self._execute(session, self._keys.hold, **of_key, reason=reason)
        return True, int(parked[0][0])

    def drop_holds(self, session: Any, queue: str, key: str) -> list[int]:
        """Delete the rows that hold a key and are no messages."""
        return [each for [each] in self._execute(session, self._keys.drop_holds, queue=queue, key=key)]

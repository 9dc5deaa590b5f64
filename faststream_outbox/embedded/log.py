"""The file that a server's output goes to."""

import os
from pathlib import Path

_TAIL_BYTES = 4000


class ServerLog:
    """Opened once and kept open, so that a name in a directory of another account is never followed again."""

    def __init__(self, path: Path) -> None:
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)

    def size(self) -> int:
        """Tell how much was written so far."""
        return os.fstat(self.fd).st_size

    def tail(self, *, since: int = 0) -> str:
        """Return the end of what was written after position `since`."""
        end = self.size()
        start = max(since, end - _TAIL_BYTES)
        return os.pread(self.fd, end - start, start).decode(errors="replace").strip() or "(nothing was logged)"

    def close(self) -> None:
        """Let go of the file."""
        os.close(self.fd)

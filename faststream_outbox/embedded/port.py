"""A loopback port that stays ours, also while the server on it is down."""

import socket
import sys

HOST = "127.0.0.1"

# Only Linux lets a server listen where another socket of ours is bound but does not listen.
_CAN_HOLD = sys.platform == "linux"


class ReservedPort:
    """Picks a free port and, where the system allows it, keeps others off it until released.

    Without the hold an outgoing connection of any program could be given the port while the server restarts; a client
    that retries against the port could even end up connected to itself.
    """

    def __init__(self, port: int | None = None, *, hold: bool = True) -> None:
        self._socket: socket.socket | None = None
        holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind((HOST, port or 0))
        except OSError:
            holder.close()
            if port is None:
                raise
            # Left to the server, which fails with a message about the port.
            self.number = port
            return
        self.number = int(holder.getsockname()[1])
        if hold and _CAN_HOLD:
            self._socket = holder
        else:
            holder.close()

    def release(self) -> None:
        """Give the port back."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

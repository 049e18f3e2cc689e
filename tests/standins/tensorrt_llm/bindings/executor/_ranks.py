"""Leader mode without MPI: mpirun tells rank and size; the ranks meet at an abstract Unix socket.

The constructor of every rank returns once all have come; the others then wait until the leader ends.
"""

from __future__ import annotations

import os
import socket
import time

RANK = int(os.environ.get("OMPI_COMM_WORLD_RANK", "0"))
SIZE = int(os.environ.get("OMPI_COMM_WORLD_SIZE", "1"))
_MEETING_TIMEOUT_S = 60.0


class Ranks:
    def __init__(self) -> None:
        self._connections: list[socket.socket] = []
        if SIZE == 1:
            return
        place = "\0standin-" + os.environ["PMIX_NAMESPACE"]
        if RANK == 0:
            self._meet_others(place)
        else:
            self._connections.append(_connect(place))

    def _meet_others(self, place: str) -> None:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(place)
            listener.listen(SIZE)
            listener.settimeout(_MEETING_TIMEOUT_S)
            self._connections = [listener.accept()[0] for _ in range(SIZE - 1)]
        for connection in self._connections:
            connection.sendall(b"!")

    def close(self) -> None:
        """End the leader; any other rank waits for that."""
        for connection in self._connections:
            if RANK != 0:
                connection.recv(1)
            connection.close()


def _connect(place: str) -> socket.socket:
    deadline_s = time.monotonic() + _MEETING_TIMEOUT_S
    while True:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(place)
        except OSError:
            connection.close()
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.01)
        else:
            connection.recv(1)
            return connection

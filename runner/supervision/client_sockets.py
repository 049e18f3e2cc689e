"""What Linux does for connections of clients: holds bursts, sends at once, cuts the dead and the silent."""

import socket

_STALL_TIMEOUT_S = 60
"""How long a client may leave what was sent to it unread."""
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 4))
_OPTIONS = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * _STALL_TIMEOUT_S),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *((socket.IPPROTO_TCP, option, value) for option, value in _KEEPALIVE),
)
_BACKLOG = 4096
"""Linux takes less where ``net.core.somaxconn`` is less."""


def hold_bursts(listener: socket.socket) -> None:
    """Have so many connections wait until they are accepted.

    NOTE: Linux drops those for which there is no room, and their clients try again after 1, 3 and 7 seconds.
    coglet has room for 128.
    """
    listener.listen(_BACKLOG)


def set_options(listener: socket.socket) -> None:
    """Of connections to come, which inherit them from the socket that listens."""
    for level, option, value in _OPTIONS:
        listener.setsockopt(level, option, value)

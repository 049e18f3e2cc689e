"""Linux's options for client connections: hold bursts, send at once, close dead or silent ones."""

import socket

_STALL_TIMEOUT_S = 60
"""Longest time that a client may leave data unread."""
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 4))
_OPTIONS = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * _STALL_TIMEOUT_S),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *((socket.IPPROTO_TCP, option, value) for option, value in _KEEPALIVE),
)
_BACKLOG = 4096
"""Length of the queue; Linux takes less where ``net.core.somaxconn`` is less."""


def hold_bursts(listener: socket.socket) -> None:
    """Let ``_BACKLOG`` connections wait until they are accepted.

    NOTE: Linux drops further connections, and their clients try again after 1, 3 and 7 seconds.
    coglet has room for 128.
    """
    listener.listen(_BACKLOG)


def set_options(listener: socket.socket) -> None:
    """Set options of a listening socket, which its connections inherit."""
    for level, option, value in _OPTIONS:
        listener.setsockopt(level, option, value)

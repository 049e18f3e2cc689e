"""Sockets that Dynamo's runtime binds to 0.0.0.0: a filter of the kernel confines each to one address."""

import ctypes
import socket
import struct
from pathlib import Path

_SO_ATTACH_FILTER = 26
_LOAD_WORD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_DESTINATION = (-0x100000 + 16) % (1 << 32)
"""Offset of a packet's destination: Linux's ``SKF_NET_OFF``, and the place in the header of IPv4."""
_ALL_BYTES = (1 << 32) - 1
_ANY = "0.0.0.0"  # noqa: S104 - it is what this looks for


def confine_listeners(host: str) -> None:
    """Have the sockets of this process that listen on all addresses accept connections to ``host`` alone."""
    for entry in Path("/proc/self/fd").iterdir():
        if not entry.is_socket():
            continue  # NOTE: ``fromfd`` would leave a duplicate of it open.
        try:
            with socket.fromfd(int(entry.name), socket.AF_INET, socket.SOCK_STREAM) as each:
                if each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) and _is_on_all_addresses(each):
                    _attach_filter(each, host)
        except OSError:  # It was closed meanwhile.
            continue


def _is_on_all_addresses(each: socket.socket) -> bool:
    address = each.getsockname()
    return isinstance(address, tuple) and address[0] == _ANY


def _attach_filter(listener: socket.socket, host: str) -> None:
    """Have the kernel drop packets to other addresses. Raises OSError."""
    (address,) = struct.unpack("!I", socket.inet_aton(host))
    steps = (
        (_LOAD_WORD, 0, 0, _DESTINATION),
        (_JUMP_IF_EQUAL, 0, 1, address),
        (_RETURN, 0, 0, _ALL_BYTES),
        (_RETURN, 0, 0, 0),
    )
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    option = struct.pack("HP", len(steps), ctypes.addressof(program))
    listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, option)

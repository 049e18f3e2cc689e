"""Where the URL of an untrusted caller may lead: to the internet, not into this machine's network.

Host names are resolved here, and the connection goes to one of the addresses that were checked, so DNS
rebinding has no effect. Each redirect is checked again.
"""

import ipaddress
import socket
import time
from collections.abc import Mapping

from engine.switch import is_on
from errors.download import AddressRefused

ALLOW_VARIABLE = "COG_TRITON_ALLOW_PRIVATE_URLS"

_NOT_PUBLIC = tuple(map(ipaddress.ip_network, ("168.63.129.16/32", "192.0.0.0/24")))
"""Metadata services of clouds (Azure; Oracle) that ``is_global`` accepts in some Python version."""
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_IPV6_INTERNET = ipaddress.ip_network("2000::/3")
"""Addresses outside may stand for private IPv4 ones, by ``64:ff9b:1::/48`` or ``::ffff:0:0:0/96``."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def allows_private_urls(environment: Mapping[str, str] | None = None) -> bool:
    """Return what the operator has set. Raises E1006."""
    return is_on(ALLOW_VARIABLE, environment, default=False)


def connect_to_public(
    target: tuple[str, int], timeout_s: float, source_address: tuple[str, int] | None = None
) -> socket.socket:
    """Connect as ``socket.create_connection`` does, but within ``timeout_s`` for all addresses together.

    Raises AddressRefused if an address of the host is not public.
    """
    host, port = target
    error: OSError | None = None
    deadline_s = time.monotonic() + timeout_s
    for family, address in _public_addresses(host, port):
        if (left_s := deadline_s - time.monotonic()) <= 0:
            break
        connection = socket.socket(family, socket.SOCK_STREAM)
        try:
            connection.settimeout(left_s)
            if source_address:
                connection.bind(source_address)
            connection.connect(address)
            connection.settimeout(timeout_s)
            return connection
        except OSError as exc:
            connection.close()
            error = exc
    raise error or OSError("the host has no address")


def require_public_host(host: str, port: int) -> None:
    """Raise AddressRefused if this machine resolves the host that a proxy connects to, and it is not public.

    A name that only the proxy can resolve is left to the proxy.
    """
    try:
        _public_addresses(host, port)
    except socket.gaierror:
        pass


def is_public(address: Address) -> bool:
    """Return True for an internet address, and not for one that stands for a private address."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if address in _NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(inner)
        if address.teredo is not None or address not in _IPV6_INTERNET:
            return False
    is_secret_teller = any(address in network for network in _NOT_PUBLIC)
    return address.is_global and not address.is_multicast and not is_secret_teller


def _public_addresses(host: str, port: int) -> list[tuple[socket.AddressFamily, tuple[str, int]]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError as exc:  # An empty label, or one that is too long.
        raise socket.gaierror(socket.EAI_NONAME, "it is no host name") from exc
    addresses: list[tuple[socket.AddressFamily, tuple[str, int]]] = []
    for family, _, _, _, socket_address in found:
        number = str(socket_address[0]).partition("%")[0]
        if not is_public(ipaddress.ip_address(number)):
            raise AddressRefused(host=host, address=number, variable=ALLOW_VARIABLE)
        addresses.append((family, (number, port)))
    return addresses

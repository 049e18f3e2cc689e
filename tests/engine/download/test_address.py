"""A stranger's URL leads to the internet or nowhere: not by name, redirect, rebinding or disguise."""

import ipaddress
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.download.address import ALLOW_VARIABLE, allows_private_urls, is_public
from engine.download.body import Transfer
from engine.download.fetch import fetch
from engine.download.url import checked_url, proxy_for
from errors.coded_error import CodedError
from errors.download import AddressRefused, SourceUnreachable
from errors.settings import InvalidSetting
from tests.engine.tar_server import Fault, TarServer

QUICK = Transfer(attempts=2, first_wait_s=0.001, timeout_s=2.0)

PRIVATE = [
    "0.0.0.0",
    "127.0.0.1",
    "127.255.0.3",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.1.1",
    "169.254.169.254",  # the metadata service of AWS, GCP, Azure
    "100.100.100.200",  # of Alibaba
    "192.0.0.192",  # of Oracle
    "168.63.129.16",  # Azure's, on a public number
    "224.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "fe80::1",
    "fd00:ec2::254",  # AWS's by IPv6
    "ff02::1",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::7f00:1",
    "::7f00:1",
    "2002:7f00:1::",
    "2001::1",
    "fec0::1",
]


def test_an_address_of_our_own_network_is_not_public_and_one_of_the_internet_is() -> None:
    assert [number for number in PRIVATE if is_public(ipaddress.ip_address(number))] == []
    for number in ("1.1.1.1", "140.82.121.4", "2606:4700::1111", "64:ff9b::101:101"):
        assert is_public(ipaddress.ip_address(number))


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "2130706433", "0177.0.0.1", "[::1]", "[::ffff:7f00:1]"]
)
def test_whatever_loopback_is_called_nothing_is_asked(server: TarServer, host: str) -> None:
    for place in (f"{host}:{server.port}/engine.tar", host):
        with pytest.raises(AddressRefused, match=f"E1327.*{ALLOW_VARIABLE}=true") as caught:
            fetch(f"http://user:s3cret@{place}?sig=s3cret", only_public=True, transfer=QUICK)
        assert "s3cret" not in str(caught.value)
    assert server.asked == []


def _resolve(monkeypatch: pytest.MonkeyPatch, **names: list[list[str]]) -> None:
    """Stand in for DNS, of which a test must not depend: a name has the addresses given, in turns."""
    real = socket.getaddrinfo

    def resolve(host: str, port: int, *arguments: object, **more: object) -> list[object]:
        answers = names.get(host.replace(".", "_"))
        if answers is None:
            return real(host, port, *arguments, **more)
        numbers = answers.pop(0) if len(answers) > 1 else answers[0]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (number, port)) for number in numbers]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)


@pytest.fixture
def public_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no public server here: 127.0.0.1 stands in for one, 127.0.0.2 is as private as ever."""
    monkeypatch.setattr(
        "engine.download.address.is_public", lambda address: str(address) == "127.0.0.1" or is_public(address)
    )


def test_a_name_that_also_has_a_private_address_is_refused(
    server: TarServer, monkeypatch: pytest.MonkeyPatch, public_loopback: None
) -> None:
    _resolve(monkeypatch, mixed_example=[["127.0.0.1", "127.0.0.2"]])
    with pytest.raises(AddressRefused, match=r"mixed\.example is at 127\.0\.0\.2"):
        fetch(f"http://mixed.example:{server.port}/x", only_public=True, transfer=QUICK)
    assert server.asked == []


@pytest.mark.parametrize("host", ["a..com", "a" * 70 + ".com"])
def test_what_is_no_host_name_is_told(host: str) -> None:
    with pytest.raises(CodedError, match="does not resolve"):
        fetch(f"http://{host}/x", only_public=True, transfer=QUICK)


@pytest.mark.parametrize("status", [301, 303, 308])
def test_a_redirect_into_our_network_is_refused(
    server: TarServer, public_loopback: None, status: int
) -> None:
    with TarServer(b"secret") as inner:
        to = inner.url.replace("127.0.0.1", "127.0.0.2")
        server.fault = lambda request: Fault(status=status, headers={"Location": to})
        with pytest.raises(AddressRefused, match=r"127\.0\.0\.2"):
            fetch(server.url, only_public=True, transfer=QUICK)
        assert inner.asked == []


def test_a_name_that_turns_private_between_two_looks_leads_nowhere(
    server: TarServer, monkeypatch: pytest.MonkeyPatch, public_loopback: None
) -> None:
    """DNS rebinding: what was judged is what is connected to, and every new connection is judged."""
    server.content = bytes(300_000)
    _resolve(monkeypatch, rebound_example=[["127.0.0.1"], ["127.0.0.2"]])
    transfer = Transfer(head_bytes=1000, part_bytes=100_000, attempts=2, first_wait_s=0.001)
    with fetch(f"http://rebound.example:{server.port}/x", only_public=True, transfer=transfer) as source:
        buffer = memoryview(bytearray(300_000))
        assert source.readinto(buffer) == 1000
        with pytest.raises(AddressRefused):
            source.readinto(buffer)
    assert len(server.asked) == 1


def test_tls_still_checks_the_name_and_not_the_address(
    monkeypatch: pytest.MonkeyPatch, public_loopback: None
) -> None:
    names: list[str | None] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sni_callback = lambda connection, name, context: names.append(name)
    _resolve(monkeypatch, tls_example=[["127.0.0.1"]])
    with TarServer(tls=context) as server, pytest.raises(SourceUnreachable):
        fetch(f"https://tls.example:{server.port}/", only_public=True, transfer=QUICK)
    assert names[0] == "tls.example"


def test_a_path_of_this_machine_is_no_url_of_a_caller() -> None:
    for url in ("FILE:/etc/passwd", "/etc/passwd", Path("/etc/passwd")):
        with pytest.raises(AddressRefused, match="a path of this machine"):
            fetch(url, only_public=True)


@pytest.mark.parametrize("excepted", ["::1", "[::1]", "example.com,::1"])
def test_no_proxy_may_name_an_ipv6_address(excepted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", excepted)
    for url in ("http://[::1]/x", "http://[::1]:80/x"):
        assert proxy_for(checked_url(url)) is None
    assert proxy_for(checked_url("http://[::2]/x")) is not None


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[TarServer]:
    with TarServer(b"through the proxy") as proxy:
        monkeypatch.setenv("http_proxy", proxy.url.rpartition("/")[0])
        yield proxy


def test_the_operators_proxy_may_be_private_but_its_target_not(proxy: TarServer) -> None:
    with pytest.raises(AddressRefused):
        fetch("http://169.254.169.254/latest/meta-data/", only_public=True, transfer=QUICK)
    assert proxy.asked == []
    with fetch("http://only.the.proxy.knows.invalid/x", only_public=True, transfer=QUICK) as source:
        assert source.size_bytes == len(proxy.content)


def test_the_operator_decides() -> None:
    assert not allows_private_urls({})
    assert allows_private_urls({ALLOW_VARIABLE: "true"})
    with pytest.raises(InvalidSetting, match=ALLOW_VARIABLE):
        allows_private_urls({ALLOW_VARIABLE: "perhaps"})

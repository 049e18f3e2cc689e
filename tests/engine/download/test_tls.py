"""HTTPS against a real TLS server, whose certificate is trusted or is not."""

import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from errors.download import RedirectRefused, SourceUnreachable
from tests.engine.download.test_fetch import CONTENT, fetched
from tests.engine.tar_server import Fault, TarServer

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificate")
    request = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
    request += " -subj /CN=localhost"
    more = f"-addext subjectAltName=DNS:localhost -keyout {folder}/key.pem -out {folder}/cert.pem"
    subprocess.run([*request.split(), *more.split()], check=True, capture_output=True)
    return folder


@pytest.fixture
def tls_server(certificate: Path) -> Iterator[TarServer]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    with TarServer(CONTENT, tls=context) as server:
        yield server


def test_a_trusted_server_is_read_over_several_connections(
    tls_server: TarServer, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate / "cert.pem"))
    tls_server.fault = lambda request: Fault(body_bytes=50_000) if request.number in (3, 5) else None
    assert fetched(tls_server.url) == CONTENT


def test_a_server_that_nobody_vouches_for_is_refused_at_once(tls_server: TarServer) -> None:
    with pytest.raises(SourceUnreachable, match="certificate verify failed"):
        fetched(tls_server.url)
    assert tls_server.asked == []


def test_no_redirect_leaves_tls(
    tls_server: TarServer, server: TarServer, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate / "cert.pem"))
    tls_server.fault = lambda request: Fault(status=302, headers={"Location": server.url})
    with pytest.raises(RedirectRefused, match="less safe"):
        fetched(tls_server.url)
    assert server.asked == []

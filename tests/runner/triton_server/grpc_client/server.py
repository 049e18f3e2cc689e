"""Triton's side of a gRPC connection: a server of the library h2, in memory."""

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import DataReceived, Event
from h2.settings import SettingCodes, Settings

from runner.triton_server.grpc_client.call import TritonCall
from runner.triton_server.grpc_client.connection import TritonConnection
from tests.runner.triton_server.transport import Transport

HEAD = [(":status", "200"), ("content-type", "application/grpc")]


class Server:
    """Triton's side. ``settings``: what it tells the front at the start."""

    def __init__(self, settings: dict[SettingCodes, int] | None = None) -> None:
        self.connection = TritonConnection("triton")
        self.transport = Transport(self.connection)
        self.h2 = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        self.h2.local_settings = Settings(client=False, initial_values=settings)
        self.h2.initiate_connection()
        self.events: list[Event] = []
        self.got: list[tuple[int, bytes]] = []
        self.ends: list[tuple[int, int, str]] = []
        self.exchange()

    def begin(self, number: int) -> TritonCall:
        """Return a call whose messages and end are noted with its number."""
        return self.connection.begin(
            "/a",
            [],
            lambda message: self.got.append((number, message)),
            lambda status, text: self.ends.append((number, status, text)),
        )

    def exchange(self) -> None:
        while data := (bytes(self.transport.sent) or self.h2.data_to_send()):
            if self.transport.sent:
                self.transport.sent.clear()
                self.events += self.h2.receive_data(data)
            else:
                self.transport.feed(data)

    def data_of(self, stream_id: int) -> bytes:
        data = [e.data for e in self.events if isinstance(e, DataReceived) and e.stream_id == stream_id]
        return b"".join(data)

    def happened(self, kind: type[Event], stream_id: int) -> bool:
        return any(isinstance(each, kind) and each.stream_id == stream_id for each in self.events)

"""The processes of the API in front of an engine server that a test is itself."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from runner.api.supervisor import APIServers
from runner.engines.protocol.messages import Finished, FromClient, Ready, Submit, Tokens
from runner.engines.protocol.wire import decode_frames, frame
from runner.observability.meter import clear_folder
from runner.settings.paths import engine_socket_path, make_runtime_dir, metrics_dir
from runner.settings.ports import free_ports
from runner.settings.settings import Settings, load_settings
from tests.runner.api.apis import CHAT_TEMPLATE
from tests.runner.paced_engine import PacedModel, make_paced_model
from tests.runner.servers import HOST


class StandInEngineServer:
    """It is ready after ``delay_s``, and answers each request at once with one token."""

    def __init__(self, delay_s: float = 0.0) -> None:
        self._delay_s = delay_s
        self.submits: list[Submit] = []
        """Requests until now."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        encoder, buffer = msgspec.msgpack.Encoder(), bytearray()
        decoder: msgspec.msgpack.Decoder[list[FromClient]] = msgspec.msgpack.Decoder(list[FromClient])
        await asyncio.sleep(self._delay_s)
        writer.write(frame(encoder, [Ready("paced", 1000, 1000, 8)]))
        while data := await reader.read(1 << 16):
            buffer += data
            for submit in (each for messages in decode_frames(buffer, decoder) for each in messages):
                assert isinstance(submit, Submit)
                self.submits.append(submit)
                writer.write(frame(encoder, [Tokens([(submit.request_id, [5])])]))
                writer.write(frame(encoder, [Finished(submit.request_id, "length")]))
        writer.close()


def settings_of(folder: Path, model: PacedModel | None = None, **more: str) -> tuple[Settings, int]:
    """Return settings of an API on a free port, and the port. ``more``: variables."""
    model = model or make_paced_model(folder / "model", 0)
    port, triton_port = free_ports(2)
    template = folder / "template.jinja"
    template.write_text(CHAT_TEMPLATE)
    environment = {
        "HOME": str(folder),
        "ENGINE_DIR": str(model.directory),
        "CHAT_TEMPLATE": str(template),
        "COG_TRITON_ENGINE_PYTHON": sys.executable,
        "OPENAI_HOST": HOST,
        "OPENAI_PORT": str(port),
        "OPENAI_PROCESSES": "1",
        "TRITON_HTTP_PORT": str(triton_port),
        **more,
    }
    settings = load_settings(environment)
    make_runtime_dir(triton_port)
    clear_folder(metrics_dir(triton_port))
    return settings, port


@asynccontextmanager
async def started(
    settings: Settings, engine_server: StandInEngineServer, *, starts_again: bool = True
) -> AsyncIterator[APIServers]:
    """They have begun, and are stopped in the end. ``starts_again``: whether one that ends is."""
    path = engine_socket_path(settings.triton_http_port)
    servers = APIServers(settings, path, None, log=lambda line: None, on_failure=lambda failure: starts_again)
    async with await asyncio.start_unix_server(engine_server.serve, str(path)):
        servers.begin()
        try:
            yield servers
        finally:
            await servers.stop()

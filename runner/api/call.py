"""Facts of one call of the API, filled in by the modules that serve it."""

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

from starlette.types import Scope

from errors.coded_error import CodedError
from runner.http.exchange import EXCHANGE_KEY, Exchange

EMBEDDINGS_PATH = "/v1/embeddings"
GENERATION_PATHS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "text_completion",
    EMBEDDINGS_PATH: "embeddings",
    "/v1/messages": "chat",
    "/v1/responses": "chat",
}
"""Operations by OpenTelemetry's names, by path. Requests for other paths are not counted."""
RENDER = "/render"
"""End of the paths that tell what the path before it would generate from."""
_REQUEST_LINE = re.compile(rb"POST (\S+?)(?:\?\S*)? HTTP/1")
_KEY = "cog_triton.call"


@dataclass(slots=True)
class Call:
    request_id: str
    path: str
    connection: Exchange | None = None
    """Connection; None in another ASGI server, where a disconnect of the client is not noticed."""
    arrived_s: float = field(default_factory=time.perf_counter)
    status: int | None = None
    error: CodedError | None = None
    """Error of the answer, or of the end of its stream."""
    is_generating: bool = False
    """True once the call is admitted: its generations then report their ends."""
    is_whole: bool = False
    """True if its answer is no stream."""
    is_large: bool = False
    """True if all of its body is processed in a thread."""
    api_key: str = ""
    """Key of the client; empty if the server has none."""
    model: str = ""
    response_id: str = ""
    on_release: list[Callable[[], None]] = field(default_factory=list)
    """Functions that ``release`` calls."""

    def release(self) -> None:
        """Release the body: its prompt was sent to the engine, or the call is over."""
        if self.connection is not None:
            self.connection.release()
        for each in self.on_release:
            each()
        self.on_release.clear()


def begin_call(scope: Scope, request_id: str) -> Call:
    call = scope[_KEY] = Call(request_id, scope["path"], scope.get(EXCHANGE_KEY))
    return call


def call_of(scope: Scope) -> Call:
    return cast(Call, scope[_KEY])


def is_generation(head: bytes) -> bool:
    """Tell whether a request with this HTTP/1 head asks to generate text."""
    match = _REQUEST_LINE.match(head)
    return match is not None and match[1].decode(errors="replace") in GENERATION_PATHS

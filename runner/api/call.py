"""One call of the API: what is known of it. The modules that serve it fill it in."""

from __future__ import annotations

import time
from typing import cast

from starlette.types import Scope

from errors.coded_error import CodedError

_KEY = "cog_triton.call"


class Call:
    __slots__ = (
        "arrived_s",
        "error",
        "is_generating",
        "model",
        "path",
        "request_id",
        "response_id",
        "status",
    )

    def __init__(self, request_id: str, path: str) -> None:
        self.request_id = request_id
        self.path = path
        self.arrived_s = time.perf_counter()
        self.status: int | None = None
        self.error: CodedError | None = None
        """The error of the answer, or of the end of its stream."""
        self.is_generating = False
        """It was admitted: from now on its generations report how they end."""
        self.model = ""
        self.response_id = ""


def begin_call(scope: Scope, request_id: str) -> Call:
    call = scope[_KEY] = Call(request_id, scope["path"])
    return call


def call_of(scope: Scope) -> Call:
    return cast(Call, scope[_KEY])

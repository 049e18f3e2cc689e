"""The endpoints as an ASGI application, with API keys, CORS, and errors as answers."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from errors.api import InternalError, UnknownEndpoint
from errors.coded_error import CodedError
from runner.api.application import API
from runner.api.call import call_of
from runner.api.error_response import ErrorResponse
from runner.api.middleware.hosts import AllowedHosts, restricts_hosts
from runner.api.middleware.keys import RequireKey
from runner.api.middleware.nearest_path import nearest_path
from runner.api.served import Served
from runner.http.rules import ALLOWED_METHODS
from runner.observability.request_id import REQUEST_ID_HEADER
from runner.settings.api_keys import APIKeys

Endpoint = Callable[[Request], Awaitable[Response]]


class DirectEndpoints:
    """A router past Starlette, whose layers cost as much as a short answer."""

    def __init__(self, app: ASGIApp, endpoints: Mapping[str, Endpoint]) -> None:
        self._app = app
        self._endpoints = endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = self._endpoints.get(scope["path"]) if scope["method"] == "POST" else None
        if endpoint is None:
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        try:
            response = await _response_of(endpoint, request)
            await response(scope, receive, send)
        except Exception:
            if call_of(scope).status is None:
                await ErrorResponse(InternalError())(scope, receive, send)
            raise


async def _response_of(endpoint: Endpoint, request: Request) -> Response:
    try:
        return await endpoint(request)
    except CodedError as exc:
        return ErrorResponse(exc)
    except ClientDisconnect as exc:
        return await _on_disconnect(request, exc)


def make_application(api: API, served: Served) -> ASGIApp:
    settings = served.settings
    routes = api.routes()
    handlers: dict[Any, Any] = {
        CodedError: _on_coded_error,
        HTTPException: partial(_on_http_error, paths=[each.path for each in routes]),
        ClientDisconnect: _on_disconnect,
        Exception: _on_unknown_error,
    }
    endpoints = {each.path: each.endpoint for each in routes if each.methods == {"POST"}}
    starlette = Starlette(routes=routes, exception_handlers=handlers)
    # NOTE: the absolute URL has the scheme and path that a proxy in front has changed.
    starlette.router.redirect_slashes = False
    application: ASGIApp = DirectEndpoints(starlette, endpoints)
    if settings.api_keys:
        application = RequireKey(application, APIKeys(settings.api_keys))
    if restricts_hosts(settings):
        application = AllowedHosts(application, settings.allowed_hosts)
    if settings.openai_cors_origins:
        # CORS is around the others, so that a page on another origin can read why its key is refused.
        application = CORSMiddleware(
            application,
            allow_origins=settings.openai_cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=[REQUEST_ID_HEADER],
        )
    return application


async def _on_coded_error(request: Request, error: Any) -> Response:
    return ErrorResponse(error)


async def _on_http_error(request: Request, error: Any, paths: Sequence[str]) -> Response:
    """Answer 404 and 405: Starlette raises no others."""
    path, headers = request.scope["path"], dict(error.headers or {})
    if path == "*":  # Of OPTIONS alone: it asks about the server.
        return Response(status_code=204, headers={"Allow": ALLOWED_METHODS.decode()})
    facts = {"method": request.method, "path": path}
    if "Allow" in headers:
        facts["remedy"] = f"it takes {headers['Allow']}."
    elif (near := nearest_path(path, paths)) is not None:
        facts["remedy"] = f"did you mean {near}?"
    response = ErrorResponse(UnknownEndpoint(**facts))
    response.status_code = error.status_code
    response.headers.update(headers)
    return response


async def _on_disconnect(request: Request, error: Exception) -> Response:
    """Send nothing: the client has disconnected."""
    return Response(status_code=400)


async def _on_unknown_error(request: Request, error: Exception) -> Response:
    """Answer an unknown error, which Starlette raises again after this, so that it is logged."""
    return ErrorResponse(InternalError())

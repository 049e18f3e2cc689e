"""Client of a model with NVIDIA's tensor contract in Triton, by gRPC.

The Triton is an external one, or our own with NVIDIA's C++ backend. Over HTTP, Triton notices that a client
has disconnected only when it sends something to it (server#7077): a request that waits for its first token
would go on.
"""

import asyncio
import logging
import os
import re
import socket
import struct
from collections.abc import AsyncGenerator
from contextlib import suppress

from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2 as pb

from engine.kinds import CPP_KIND
from errors import find_in_text
from errors.coded_error import CodedError
from errors.external_triton import ExternalTritonUnavailable
from errors.requests import PromptTooLong, UnsupportedArgument
from errors.settings import InvalidSetting
from errors.triton import (
    TritonMalformedEvent,
    TritonMalformedJSON,
    TritonTimeout,
    TritonTokenizerError,
    TritonUnavailable,
    TritonUnknownError,
)
from errors.triton_front import UnknownTritonModel
from runner.engines.protocol.checks import check_task
from runner.engines.protocol.messages import Output, Submit
from runner.engines.protocol.outlet import Outlet
from runner.settings.triton_address import EXPECTED, TritonAddress
from runner.supervision.child import cancelled, within
from runner.triton_server.grpc_client.triton import RefusedByTriton, Triton
from runner.triton_server.grpc_wire import INTERNAL, OK, UNAVAILABLE, UNIMPLEMENTED
from runner.triton_server.nvidia_model import NvidiaModel, output_of

_UNKNOWN = 2
"""The status of an answer that has none of gRPC's."""
_QUOTED_BYTES = 200
_ANSWER_TIMEOUT_S = 2.0
_CONNECT_POLL_S = 0.1
_READY_POLL_S = 1.0
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""Beginning of an HTTP/2 client: its settings, here none."""
_HEAD_BYTES, _KIND, _SETTINGS = 9, 3, 4
"""Length of a frame's head, where its kind is, and the kind of the first frame."""
_AGAIN = "send the request again when it is back"
_IF_REPEATED = "send the request again, and look into Triton's log if that repeats"
_ANOTHER = "where a server of another protocol answers"
_AT_START = "start it, or give the HOST:PORT of its gRPC API (8001 by default) as --triton"
_PROMPT_TOO_LONG = re.compile(r"Prompt length \((\d{1,9})\) exceeds maximum input length \((\d{1,9})\)")
"""An error of NVIDIA's TensorRT-LLM backend, which has no code of ours."""
_UNEXPECTED = re.compile(r"[Uu]nexpected inference input '(guided_decoding_\w+)'")
"""Triton's message if NVIDIA's C++ backend fills the slot without a guided decoding backend."""

log = logging.getLogger("cog_triton.nvidia_client")


class NvidiaClient:
    """Client of NVIDIA's backend: one per process, as ``async with``. It reconnects to a restarted Triton."""

    def __init__(self, address: TritonAddress, timeout_s: float) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._triton = Triton(address.port, address.host)
        self._model: NvidiaModel | None = None
        self._problem = "it was not asked yet"
        """Why it does not serve now; blank while it does."""
        self._streams: set[_Stream] = set()
        self._watching: asyncio.Task[None]

    async def __aenter__(self) -> "NvidiaClient":
        self._watching = asyncio.create_task(self._watch(), name="nvidia-client")
        return self

    async def __aexit__(self, *_: object) -> None:
        await cancelled(self._watching)
        self.end_all()
        self.close()

    def close(self) -> None:
        self._triton.close()

    async def generate(
        self, submit: Submit, outlet: Outlet[Output] | None = None
    ) -> AsyncGenerator[Output, None]:
        """See ``TokenSource``. Closing the generator cancels the call in Triton's backend."""
        check_task(embeds=submit.embeds, is_embedding=False)
        if self._model is None or not self._triton.is_connected:
            raise self._unavailable(self._problem or "its connection was lost", _AGAIN)
        request = self._model.request(submit)
        traceparent = [(b"traceparent", submit.traceparent.encode())] if submit.traceparent else []
        stream, num_tokens, has_ended = _Stream(), 0, False
        call = self._triton.begin("ModelStreamInfer", traceparent, stream.received, stream.ended)
        self._streams.add(stream)
        try:
            call.send(request, is_last=True)
            while stream.end is None or stream.messages:
                if not await stream.wait(self._timeout_s):
                    raise TritonTimeout(who="Triton", timeout_s=self._timeout_s, reason="no token arrived")
                output = Output()
                for message in stream.take():
                    new = _read(message)
                    output.tokens += new.tokens
                    output.finish_reason = new.finish_reason or output.finish_reason
                num_tokens += len(output.tokens)
                has_ended = has_ended or output.finish_reason is not None
                if output.tokens or output.finish_reason:
                    yield output
            status, text = stream.end
            if status != OK:
                raise self._refusal(status, text)
            if not has_ended:
                if not num_tokens:
                    raise self._unavailable("it ended the request without a token", _IF_REPEATED)
                # NOTE: NVIDIA's backend tells no finish reason.
                yield Output(finish_reason="length" if num_tokens >= submit.max_tokens else "end")
        finally:
            self._streams.discard(stream)
            call.reset()

    async def is_answering(self) -> bool:
        """Return True if Triton said within the last second that the model is ready."""
        return not self._problem and self._triton.is_connected

    def end_all(self) -> None:
        """End every running request as if the connection were lost."""
        for stream in self._streams:
            stream.ended(UNAVAILABLE, "the connection was closed")

    async def find_model(self) -> NvidiaModel:
        """Connect, and read the model's configuration.

        Raises E2113 (E2105 for our own Triton) while Triton may still be starting; E1006 if it can't be one,
        E1108 if it has no such model, E1113 if that model is another kind.
        """
        if self._address.is_external:
            await self._check_protocol()
        try:
            await self._triton.connect()
            if not await self._is_model_ready():
                await self._explain()
            request = pb.ModelConfigRequest(name=self._address.model).SerializeToString()
            config = pb.ModelConfigResponse.FromString(await self._ask("ModelConfig", request)).config
        except TritonUnavailable as exc:
            raise self._unavailable(str(exc.facts.get("reason"))) from exc
        except DecodeError as exc:
            raise self._no_triton(_ANOTHER) from exc
        except RefusedByTriton as exc:
            if (error := find_in_text(exc.message)) is not None:
                raise error from exc
            if exc.status in (_UNKNOWN, UNIMPLEMENTED, INTERNAL):
                raise self._no_triton("which is another server's") from exc
            raise self._unavailable(exc.message or f"gRPC status {exc.status}") from exc
        self._model = NvidiaModel.read(config, self._address.address)
        return self._model

    async def _watch(self) -> None:
        """Stay connected, and ask from time to time whether the model is ready."""
        while True:
            try:
                if self._model is None or not self._triton.is_connected:
                    self._model = None
                    await self.find_model()
                is_ready = await self._is_model_ready()
                self._problem = "" if is_ready else f"its model {self._address.model} is not ready"
            except CodedError as exc:
                self._problem = str(exc.facts.get("reason") or exc)
            except (RefusedByTriton, DecodeError) as exc:
                self._problem = f"it answered: {exc}"
            except Exception as exc:  # It must not end silently.
                log.exception("Triton could not be asked")
                self._problem = type(exc).__name__
            await asyncio.sleep(_READY_POLL_S if self._triton.is_connected else _CONNECT_POLL_S)

    async def _check_protocol(self) -> None:
        """Raise E1006 unless a server of HTTP/2 listens there, which is all that ``Triton`` can talk to."""
        try:
            answer = await within(self._first_bytes(), _ANSWER_TIMEOUT_S)
        except socket.gaierror as exc:
            if exc.errno == socket.EAI_NONAME:
                raise self._no_triton("a host that is not known") from exc
            raise self._unavailable(str(exc.strerror)) from exc
        except asyncio.TimeoutError as exc:
            raise self._unavailable(f"it does not answer within {_ANSWER_TIMEOUT_S:g} s") from exc
        except OSError as exc:
            # NOTE: asyncio tells no number if it tried several addresses.
            raise self._unavailable(os.strerror(exc.errno) if exc.errno else "no connection") from exc
        if len(answer) < _HEAD_BYTES or answer[_KIND] != _SETTINGS:
            raise self._no_triton(_ANOTHER)

    async def _first_bytes(self) -> bytes:
        reader, writer = await asyncio.open_connection(self._address.host, self._address.port)
        try:
            writer.write(_PREFACE)
            return await reader.readexactly(_HEAD_BYTES)
        except asyncio.IncompleteReadError as exc:
            return exc.partial
        finally:
            writer.close()

    async def _is_model_ready(self) -> bool:
        """Ask whether the model is ready. Raises TritonUnavailable, RefusedByTriton."""
        request = pb.ModelReadyRequest(name=self._address.model).SerializeToString()
        return bool(pb.ModelReadyResponse.FromString(await self._ask("ModelReady", request)).ready)

    async def _explain(self) -> None:
        """Raise the error of a model that is not ready."""
        is_ready = pb.ServerReadyResponse.FromString(await self._ask("ServerReady", b"")).ready
        index = None
        with suppress(RefusedByTriton):  # Closed in front of ours.
            request = pb.RepositoryIndexRequest().SerializeToString()
            index = pb.RepositoryIndexResponse.FromString(await self._ask("RepositoryIndex", request))
        models = list(index.models) if index is not None else []
        states = {each.name: each for each in models}
        if (state := states.get(self._address.model)) is not None and state.state != "READY":
            known = " ".join(filter(None, (state.state.lower(), state.reason)))
            raise self._unavailable(f"its model {self._address.model} is {known or 'not loaded'}")
        if not is_ready:
            raise self._unavailable("it is not ready")
        among = f"among: {', '.join(sorted(states))}" if states else "if it has another name there"
        remedy = f"name the model of NVIDIA's tensorrt_llm backend as --triton-model, {among}"
        raise UnknownTritonModel(model=self._address.model, remedy=remedy)

    async def _ask(self, method: str, message: bytes) -> bytes:
        try:
            return await within(self._triton.ask(method, message), _ANSWER_TIMEOUT_S)
        except asyncio.TimeoutError as exc:
            reason = f"it does not answer within {_ANSWER_TIMEOUT_S:g} s"
            raise self._unavailable(reason) from exc

    def _refusal(self, status: int, text: str) -> CodedError:
        error = _error_of(text)
        if status == UNAVAILABLE and (isinstance(error, TritonUnavailable) or not find_in_text(text)):
            return self._unavailable("its connection was lost", _AGAIN)
        return error

    def _unavailable(self, reason: str, remedy: str = _AT_START) -> CodedError:
        if not self._address.is_external:
            return TritonUnavailable(reason=reason)
        return ExternalTritonUnavailable(address=self._address.address, reason=reason, remedy=remedy)

    def _no_triton(self, what: str) -> InvalidSetting:
        return InvalidSetting(name="--triton", expected=EXPECTED, value=f"{self._address.address}, {what}")


class _Stream:
    """The messages and the end of one call."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.end: tuple[int, str] | None = None
        self._changed = asyncio.Event()

    def received(self, message: bytes) -> None:
        self.messages.append(message)
        self._changed.set()

    def ended(self, status: int, text: str) -> None:
        self.end = self.end or (status, text)
        self._changed.set()

    async def wait(self, timeout_s: float) -> bool:
        """Wait until something arrives. Return False if nothing does in time."""
        if not self.messages and self.end is None:
            self._changed.clear()
            timer = asyncio.get_running_loop().call_later(timeout_s, self._changed.set)
            try:
                await self._changed.wait()
            finally:
                timer.cancel()
        return bool(self.messages) or self.end is not None

    def take(self) -> list[bytes]:
        taken, self.messages = self.messages, []
        return taken


def _read(message: bytes) -> Output:
    """Return the tokens of a ``ModelStreamInferResponse``. Raises the error in it, E2103, E2104."""
    try:
        response = pb.ModelStreamInferResponse.FromString(message)
        if not response.error_message:
            return output_of(response.infer_response)
    except DecodeError as exc:
        raise TritonMalformedJSON(data=message[:_QUOTED_BYTES]) from exc
    except (struct.error, KeyError) as exc:
        raise TritonMalformedEvent(event=message[:_QUOTED_BYTES]) from exc
    raise _error_of(response.error_message)


def _error_of(text: str) -> CodedError:
    """Return the coded error in the slot's answer, else the one for a known text of Triton."""
    if (error := find_in_text(text)) is not None:
        return error
    if (lengths := _PROMPT_TOO_LONG.search(text)) is not None:
        return PromptTooLong(prompt_tokens=int(lengths[1]), max_input_tokens=int(lengths[2]))
    if (unexpected := _UNEXPECTED.search(text)) is not None:
        remedy = "set guided_decoding_backend and xgrammar_tokenizer_info_path in the server configuration"
        return UnsupportedArgument(name=unexpected[1], value="given", engine_kind=CPP_KIND, remedy=remedy)
    if "the first token of the stop sequence IDs was not" in text:
        return TritonTokenizerError(reason=text)
    return TritonUnknownError(reason=text)

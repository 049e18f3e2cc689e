"""The client of NVIDIA's backend, against our Triton and one with a stand-in of that backend."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb

from engine.machine.root import SOURCE_ROOT
from errors.coded_error import CodedError
from errors.engines import EngineCrashed
from errors.external_triton import ExternalTritonUnavailable
from errors.requests import InvalidTensor, PromptTooLong, UnsupportedArgument
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
from runner.api.standalone import wait_for_triton
from runner.engines.protocol.messages import Output, Sampling, Submit
from runner.settings.ports import free_ports
from runner.settings.triton_address import TritonAddress
from runner.triton_server.nvidia_client import NvidiaClient, _read
from tests.runner.paced_engine import PacedModel
from tests.runner.servers import HOST, TritonUnderTest, wait_until
from tests.standins.nvidia_triton import MODEL, NvidiaTriton

pytestmark = pytest.mark.servers

IDS = [71, 72, 73]
SLOW = Sampling(temperature=30)
"""Parameters with which the stand-in takes half a minute for each token."""


@pytest.fixture(scope="module")
def nvidia(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NvidiaTriton]:
    """With the types of an earlier version of the backend."""
    triton = NvidiaTriton(tmp_path_factory.mktemp("nvidia"))
    triton.add_model(request_output_len="TYPE_UINT32", input_lengths=None, pad_id=None, runtime_top_k=None)
    triton.add_model("whole", is_decoupled=False, runtime_top_k=None)
    triton.start()
    wait_until(triton.is_ready)
    yield triton
    triton.kill()


@asynccontextmanager
async def connected(port: int, model: str = MODEL, timeout_s: float = 60) -> AsyncIterator[NvidiaClient]:
    async with NvidiaClient(TritonAddress(host=HOST, port=port, model=model), timeout_s) as client:
        while not await client.is_answering():  # noqa: ASYNC110 - asked from time to time
            await asyncio.sleep(0.01)
        yield client


async def read(client: NvidiaClient, submit: Submit) -> Output:
    """All of one request as one output."""
    whole = Output()
    async for output in client.generate(submit):
        whole.tokens += output.tokens
        whole.finish_reason = output.finish_reason
    return whole


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - another process writes
        await asyncio.sleep(0.01)


async def error_of(work: Awaitable[Any]) -> CodedError:
    with pytest.raises(CodedError) as raised:
        await work
    return raised.value


@pytest.mark.parametrize("model", [MODEL, "whole"])
async def test_nvidias_backend_is_asked_in_its_own_types(nvidia: NvidiaTriton, model: str) -> None:
    async with connected(nvidia.port, model) as client:
        output = await read(client, Submit(0, IDS, 5, end_id=0, pad_id=0, sampling=Sampling(seed=1)))
        assert (output.tokens, output.finish_reason) == ([71, 72, 73, 71, 72], "length")
        output = await read(client, Submit(0, IDS, 5, end_id=73))
        assert (output.tokens, output.finish_reason) == ([71, 72], "end")
        slow = client.generate(Submit(0, IDS, 30))
        tokens = (await anext(slow)).tokens
        await until(lambda: nvidia.counts()[0] == 0)  # All is sent before more is read.
        assert tokens + [token async for output in slow for token in output.tokens] == IDS * 10
        # The API's other requests go on beside those that are refused.
        refused = Submit(0, IDS, 5, sampling=Sampling(top_k=3))
        error = await error_of(read(client, refused))
        assert isinstance(error, UnsupportedArgument)
        assert error.facts["name"] == "runtime_top_k"
        error = await error_of(read(client, Submit(0, IDS * 200, 5)))
        assert isinstance(error, PromptTooLong)
        assert error.facts["max_input_tokens"] == 500
        error = await error_of(read(client, Submit(0, IDS, 0)))
        assert isinstance(error, ExternalTritonUnavailable)
        assert "ended the request without a token); send the request again" in error.sentence
        assert (await read(client, Submit(0, IDS, 1))).tokens == IDS[:1]


@pytest.mark.parametrize("sampling", [SLOW, Sampling(temperature=0.001)], ids=["before", "after"])
async def test_a_client_that_leaves_frees_the_sequence_before_and_after_its_first_token(
    nvidia: NvidiaTriton, sampling: Sampling
) -> None:
    _, cancelled = nvidia.counts()
    async with connected(nvidia.port) as client:
        outputs = client.generate(Submit(0, IDS, 100_000, sampling=sampling))
        waiting = asyncio.ensure_future(anext(outputs))
        if sampling is SLOW:
            await until(lambda: nvidia.counts()[0] == 1)
        else:
            await waiting
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await outputs.aclose()
        await until(lambda: nvidia.counts() == (0, cancelled + 1))


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("E1103 InvalidTensor: top_k must be at least 0, but is -1.", InvalidTensor),
        ("in ensemble 'ensemble', E2107 EngineCrashed: The paced engine process ended (x).", EngineCrashed),
        ("Prompt length (600) exceeds maximum input length (512)", PromptTooLong),
        ("Prompt length (" + "9" * 5000 + ") exceeds maximum input length (8)", TritonUnknownError),
        ("the first token of the stop sequence IDs was not '!', which suggests ...", TritonTokenizerError),
        ("unexpected shape for input 'input_ids'", TritonUnknownError),
        ("unexpected inference input 'guided_decoding_guide' for model 'tensorrt_llm'", UnsupportedArgument),
        ("[" * 100_000, TritonUnknownError),
    ],
)
def test_an_error_that_triton_tells_keeps_its_code_and_its_text(text: str, kind: type[CodedError]) -> None:
    with pytest.raises(CodedError) as raised:
        _read(pb.ModelStreamInferResponse(error_message=text).SerializeToString())
    assert type(raised.value) is kind
    if kind is not PromptTooLong:
        assert text.partition(": ")[2] in raised.value.sentence
    elif "excess_tokens" in raised.value.facts:
        assert raised.value.facts["excess_tokens"] == 88


def test_an_answer_that_is_malformed_is_a_coded_error_that_quotes_little_of_it() -> None:
    odd = pb.ModelStreamInferResponse()
    odd.infer_response.outputs.add(name="output_ids", datatype="INT32", shape=[1])
    odd.infer_response.raw_output_contents.append(b"123")
    for message, kind in (
        (b"\xff" * 100_000, TritonMalformedJSON),
        (odd.SerializeToString(), TritonMalformedEvent),
        (b"", TritonMalformedEvent),
    ):
        with pytest.raises(kind) as raised:
            _read(message)
        assert len(str(raised.value)) < 1000
    odd.infer_response.raw_output_contents[0] = np.array([5, -1], np.int32).tobytes()
    assert _read(odd.SerializeToString()).tokens == [5]


async def test_our_own_triton_is_unavailable_with_e2105_and_a_triton_makes_no_embeddings() -> None:
    (port,) = free_ports(1)
    address = TritonAddress(host=HOST, port=port, model=MODEL, is_external=False)
    async with NvidiaClient(address, 60) as client:
        assert not await client.is_answering()
        assert isinstance(await error_of(read(client, Submit(0, IDS, 5))), TritonUnavailable)
        assert (await error_of(read(client, Submit(0, IDS, 0, embeds=True)))).code == "E1011"


async def test_a_client_that_ends_all_ends_what_waits(nvidia: NvidiaTriton) -> None:
    async with connected(nvidia.port) as client:
        waiting = asyncio.ensure_future(read(client, Submit(0, IDS, 5, sampling=SLOW)))
        await until(lambda: nvidia.counts()[0] == 1)
        client.end_all()
        assert isinstance(await error_of(waiting), ExternalTritonUnavailable)
        await until(lambda: nvidia.counts()[0] == 0)


async def test_a_triton_that_is_silent_is_e2101_and_its_sequence_is_freed(nvidia: NvidiaTriton) -> None:
    async with connected(nvidia.port, timeout_s=0.3) as client:
        error = await error_of(read(client, Submit(0, IDS, 5, sampling=SLOW)))
        assert isinstance(error, TritonTimeout)
    wait_until(lambda: nvidia.counts()[0] == 0)


async def find(port: int, model: str = MODEL, host: str = HOST) -> CodedError:
    """Return the error with which the start ends."""
    place = TritonAddress(host=host, port=port, model=model)
    return await error_of(wait_for_triton(place, 0, lambda reason: None))


async def test_what_waiting_can_not_mend_is_told_at_once(
    nvidia: NvidiaTriton, triton: TritonUnderTest
) -> None:
    error = await find(nvidia.port, "other")
    assert isinstance(error, UnknownTritonModel)
    assert f"as --triton-model, among: {MODEL}, whole." in error.sentence
    assert isinstance(await find(triton.grpc_port, "other"), UnknownTritonModel)
    error = await find(triton.grpc_port, "ensemble")
    assert error.code == "E1113"
    assert "no input input_ids" in error.sentence
    for port in (nvidia.http_port, triton.http_port):
        error = await find(port)
        assert isinstance(error, InvalidSetting)
        assert "its HTTP port is another" in error.sentence


async def test_a_port_that_is_no_tritons_is_told_by_what_listens_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("runner.triton_server.nvidia_client._ANSWER_TIMEOUT_S", 0.3)
    (port,) = free_ports(1)
    error = await find(port)
    assert isinstance(error, ExternalTritonUnavailable)
    assert "refused" in error.sentence
    assert isinstance(await find(8001, host="no-such-host.invalid"), InvalidSetting)
    with socket.create_server((HOST, 0)) as silent:
        error = await find(silent.getsockname()[1])
        assert isinstance(error, ExternalTritonUnavailable)
        assert "does not answer" in error.sentence
    for words in (b"SSH-2.0-OpenSSH_9.6\r\n", b"\x15\x03\x03\x00\x02\x02\x46", b"", b"HTTP/1.1 400 Bad"):
        assert isinstance(await _find_at(words), InvalidSetting)


async def test_a_server_of_http2_that_is_no_triton_is_told(caplog: pytest.LogCaptureFixture) -> None:
    settings = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
    headers = bytes([0, 0, 1, 1, 4, 0, 0, 0, 1, 0x8D])  # :status 404
    html = b"<html>not found</html>"
    data = bytes([0, 0, len(html), 0, 1, 0, 0, 0, 1]) + html
    for rest in (headers + data, headers[:4] + b"\x05" + headers[5:]):
        assert isinstance(await _find_at(settings + rest), InvalidSetting)
    assert not caplog.records


async def _find_at(words: bytes) -> CodedError:
    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if words[:9].count(0) == 8:  # HTTP/2: it answers after its settings.
            writer.write(words[:9])
            while b"grpc" not in await reader.read(4096) and not reader.at_eof():
                pass
            writer.write(words[9:])
        else:
            await reader.read(64)
            writer.write(words)
        writer.close()

    async with await asyncio.start_server(speak, HOST, 0) as server:
        return await find(server.sockets[0].getsockname()[1])


class Command:
    """``cog-triton api`` as a process."""

    def __init__(self, triton_port: int, metrics_port: int, model: PacedModel, folder: Path) -> None:
        (self.port,) = free_ports(1)
        options = ["--tokenizer", str(model.directory), "--port", str(self.port), "--model-name", "mine"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "cli", "api", "--triton", f"{HOST}:{triton_port}", *options],
            env={
                **os.environ,
                "PYTHONPATH": str(SOURCE_ROOT),
                "COG_TRITON_CACHE": str(folder / "cache"),
                "TMPDIR": str(folder),
                "TRITON_METRICS_PORT": str(metrics_port),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.client = httpx.Client(base_url=f"http://{HOST}:{self.port}", timeout=60)

    def is_ready(self) -> bool:
        try:
            return self.client.get("/ready").status_code == 200
        except httpx.HTTPError:
            return False

    def complete(self, count: int) -> httpx.Response:
        body = {"prompt": "What is machine learning?", "max_tokens": count}
        return self.client.post("/v1/completions", json=body)


def test_the_command_serves_our_own_triton(tmp_path: Path, triton: TritonUnderTest) -> None:
    command = Command(
        triton.grpc_port, int(triton.environment["TRITON_METRICS_PORT"]), triton.model, tmp_path
    )
    prompt = "What is machine learning?"
    expected = triton.model.expected_text(prompt, 12)
    try:
        wait_until(command.is_ready)
        assert command.complete(12).json()["choices"][0]["text"] == expected
        body = {"prompt": prompt, "max_tokens": 12, "stream": True}
        with command.client.stream("POST", "/v1/completions", json=body) as response:
            events = [line.removeprefix("data: ") for line in response.iter_lines() if line]
        texts = [json.loads(event)["choices"][0]["text"] for event in events if event != "[DONE]"]
        assert "".join(texts) == expected
    finally:
        command.client.close()
        command.process.kill()


def test_the_command_outlives_its_triton(tmp_path: Path, paced: PacedModel, nvidia: NvidiaTriton) -> None:
    nvidia.kill()
    command = Command(nvidia.port, nvidia.metrics_port, paced, tmp_path)
    try:
        assert command.process.poll() is None  # It waits.
        nvidia.start()
        wait_until(command.is_ready)
        answer = command.complete(12).json()
        assert answer["choices"][0]["text"] == paced.expected_text("What is machine learning?", 12)
        assert answer["model"] == "mine"
        assert "nv_inference_request_success" in command.client.get("/metrics").text
        body = {"prompt": "hi", "max_tokens": 4000, "stream": True}
        with command.client.stream("POST", "/v1/completions", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            nvidia.kill()
            rest = [line for line in lines if line.startswith("data: ")]
        assert json.loads(rest[-1].removeprefix("data: "))["error"]["code"] == "E2113"
        wait_until(lambda: not command.is_ready())
        nvidia.start()
        answer = wait_until(lambda: _ok(command.complete(3)))
        assert answer["usage"]["completion_tokens"] == 3
        command.process.send_signal(signal.SIGTERM)
        output, errors = command.process.communicate(timeout=60)
        assert command.process.returncode == 130
        assert "Ctrl-C stops it." in output
        assert "Traceback" not in errors
    finally:
        command.client.close()
        command.process.kill()


def _ok(response: httpx.Response) -> dict[str, Any]:
    document: dict[str, Any] = response.json()
    if response.status_code != 200:
        assert (response.status_code, document["error"]["code"]) == (503, "E2113")
        return {}
    return document

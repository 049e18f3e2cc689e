"""What fuzzing found, each as the smallest input that broke a promise: tracebacks, hangs, lost requests."""

from __future__ import annotations

import asyncio
import gc
import json
import struct
from pathlib import Path

import httpx
import numpy as np
import pytest
from hpack import Encoder
from msgspec import msgpack
from tritonclient.grpc import service_pb2 as pb

from builder.config.file import parse_config
from engine.directory import load
from engine.end_ids import read_json, tokenizer_end_id
from engine.tar.manifestless import describe
from engine.tensorrt_llm_config import read_compiled_config
from errors.coded_error import CodedError
from errors.requests import InvalidInput
from runner.chat.template import ChatTemplate
from runner.engines.protocol.client import EngineClient
from runner.engines.protocol.messages import Failed, Finished, Ready, Submit, Tokens
from runner.engines.protocol.wire import frame
from runner.generation.model import load_model_facts
from runner.settings.api_keys import APIKeys
from runner.settings.prompt_template import format_prompt
from runner.settings.settings import load_settings
from runner.slot.request import parse_row
from runner.triton_server.client import TritonClient
from runner.triton_server.front.budget import Budget
from runner.triton_server.front.connections import Connections
from runner.triton_server.front.grpc.server import GRPCServer
from runner.triton_server.front.http.connection import HTTPConnection
from runner.triton_server.front.http.server import HTTPServer
from runner.triton_server.front.inference import Inference, Inferences
from runner.triton_server.front.tensors import adapt
from runner.triton_server.grpc_client.connection import TritonConnection
from runner.triton_server.grpc_wire import INTERNAL, check_wire
from runner.triton_server.tensors import TensorEvent
from tests.fuzz import bodies
from tests.fuzz import front_connections as front
from tests.fuzz.bounds import bounded
from tests.fuzz.engine_documents import _tokenizer
from tests.fuzz.engine_socket import GOOD, READY, UNSTARTABLE
from tests.fuzz.engine_socket import server as engine_server
from tests.fuzz.triton_standin import models, stand_in
from tests.runner.engines.engine_server import EngineServerClient
from tests.runner.misbehaving_server import served, stream
from tests.runner.paced_engine import make_tokenizer

DEEP = b"[" * 100_000


@pytest.mark.parametrize("text", [b"a: !!bool x", b"a: !!timestamp x", b"a: !!int ''", b"!!float ."])
def test_yaml_whose_tagged_values_are_none_is_e1201(text: bytes) -> None:
    with pytest.raises(CodedError, match="E1201"):
        parse_config(text, shown="config.yaml", folder=None)


def test_a_message_is_one_line_and_no_book_whatever_it_quotes() -> None:
    with pytest.raises(CodedError, match="E1202") as unknown:
        parse_config(b'{"engine": "paced", "a\\nFATAL: forged": 1}', shown="config.yaml", folder=None)
    assert "\n" not in str(unknown.value)
    with pytest.raises(CodedError, match="E1004") as half:
        format_prompt("{\udcf5}", prompt="", system_prompt="")
    str(half.value).encode()
    long = InvalidInput(name="prompt", expected="shorter", value="x" * 100_000)
    assert len(str(long)) < 5000


def test_an_old_engines_documents_may_hold_half_characters_and_odd_tags() -> None:
    documents = {
        "config.json": b'{"model_type": "llama", "dtype": "\\ud800"}',
        "cog-trt-llm-config.yaml": b"a: !!bool x",
    }
    found = describe({"model.bin": 1, "tokenizer.json": 1}, documents.get, "engine")
    assert found[0].dtype is None


@pytest.mark.parametrize(
    ("mapping", "length"),
    [('{"tp_size": [1], "pp_size": 1000000000000}', "8"), ("{}", "Infinity"), ("{}", "[" * 100_000)],
    ids=["a list times a number", "infinity", "nested"],
)
def test_a_compiled_config_that_is_none_is_refused(tmp_path: Path, mapping: str, length: str) -> None:
    pretrained = f'{{"mapping": {mapping}, "vocab_size": 5}}'
    build = f'{{"max_seq_len": {length}, "max_batch_size": 1}}'
    text = f'{{"pretrained_config": {pretrained}, "build_config": {build}}}'
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CodedError, match="E13"):
        read_compiled_config(tmp_path)


def test_an_engines_json_that_is_nested_without_end_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(DEEP)
    with pytest.raises(CodedError, match="E13"):
        read_json(tmp_path / "config.json")


def test_an_engine_whose_config_has_a_number_in_place_of_an_object_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(_tokenizer)
    (tmp_path / "rank0.engine").write_bytes(b"x")
    (tmp_path / "config.json").write_text('{"model_type": "llama", "pretrained_config": 1}')
    settings = load_settings({"ENGINE_DIR": str(tmp_path)})
    with pytest.raises(CodedError, match="MAX_SEQUENCE_LENGTH"):
        load_model_facts(load(tmp_path), settings)


def test_an_end_token_that_is_half_a_character_is_none(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "\\udcfa"}')
    assert tokenizer_end_id(tmp_path, make_tokenizer().token_to_id) is None


def test_arguments_of_a_tool_that_are_nested_without_end_are_e1005() -> None:
    call = {"function": {"name": "f", "arguments": DEEP.decode()}}
    messages = json.dumps([{"role": "assistant", "tool_calls": [call]}])
    with pytest.raises(CodedError, match="E1005"):
        ChatTemplate({"default": ""}, {}).render(messages)


@pytest.mark.parametrize(
    "data",
    [
        b'data: {"output_ids":[-1]}\n\n',
        b'data: {"output_ids":4294967296}\n\n',
        b'data: {"output_ids":' + DEEP + b"\n\n",
        b'data: {"error":"' + DEEP + b'"}\n\n',
        b'data: {"error":"Prompt length (' + b"9" * 5000 + b') exceeds maximum input length (8)"}\n\n',
    ],
    ids=["a negative token", "a large token", "nested", "a nested error", "a long number"],
)
def test_such_an_event_of_triton_is_a_coded_error(data: bytes) -> None:
    async def ask() -> None:
        async with served(stream(data)) as client:
            await _read_all(client)

    with pytest.raises(CodedError, match=r"E2100|E2103|E2104"):
        asyncio.run(ask())


def test_log_probabilities_of_other_tokens_are_e2104() -> None:
    with pytest.raises(CodedError, match="E2104"):
        TensorEvent(5, None, -1.0, top_log_prob_ids=[1, 2], top_log_probs=[-1.0]).log_probs(2)


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-7\r\n\r\n\r\n", "E2105"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1_0\r\n", "E2105"),
        # A chunk is read as it arrives: nothing is allocated for its length, and then there is silence.
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffff\r\n", "E2101"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", "E2105"),
        (b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20_000, "E2105"),
    ],
    ids=[
        "a length below 0",
        "an underscore",
        "a length of a terabyte",
        "a long number",
        "a head without end",
    ],
)
def test_an_answer_of_triton_that_is_not_http_is_a_coded_error(answer: bytes, code: str) -> None:
    from tests.fuzz.triton import with_server

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)
        await reader.read()
        writer.close()

    timeout_s = 0.2 if code == "E2101" else 60.0

    async def ask(url: str) -> None:
        async with TritonClient(url, timeout_s) as client:
            with pytest.raises(CodedError, match=code):
                await _read_all(client)

    asyncio.run(asyncio.wait_for(with_server(serve, ask), 300))


@pytest.mark.parametrize(
    "hostile",
    [
        struct.pack("<I", 3) + b"\xc1\xc1\xc1",
        struct.pack("<I", (1 << 32) - 1),
        struct.pack("<I", 1) + b"\x07",
        struct.pack("<I", len(DEEP)) + DEEP.replace(b"[", b"\x91"),
        frame(msgpack.Encoder(), [{"type": "Tokens", "new": [[1, [-1]]]}]),
        frame(msgpack.Encoder(), [{"type": "Tokens", "new": [[1, [1 << 32]]]}]),
    ],
    ids=["no msgpack", "four gigabytes", "no messages", "nested", "a negative token", "a large token"],
)
def test_garbage_from_the_engine_server_is_e2107_at_once_and_the_next_request_connects_anew(
    tmp_path: Path, hostile: bytes
) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(frame(msgpack.Encoder(), [READY]))
        await reader.readexactly(4)
        writer.write(hostile)
        await reader.read()
        writer.close()

    async def ask() -> None:
        server = await asyncio.start_unix_server(serve, str(tmp_path / "engine"))
        async with server, EngineClient(tmp_path / "engine", 200.0, "paced") as client:
            for _ in range(2):
                while not client.is_ready:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                with pytest.raises(CodedError, match="E2107"):
                    await _read_all(client)

    asyncio.run(asyncio.wait_for(ask(), 100))


def test_an_id_used_again_leaves_nothing_when_the_client_leaves() -> None:
    """The end of the first request must not take the second out of the client's list."""
    server = engine_server()
    for _ in range(20):
        client = EngineServerClient(server.path)
        client.send(*[Submit(1, [5], max_tokens=1)] * 2)
        while not isinstance(client.receive(), Finished):
            pass
        client.close()
        server.check()


def test_an_engine_that_can_not_start_a_request_fails_it_alone() -> None:
    server = engine_server()
    client = EngineServerClient(server.path)
    client.send(Submit(1, [5], max_tokens=1), Submit(2, [5], max_tokens=1, lora_task_id=UNSTARTABLE))
    while not isinstance(answer := client.receive(), Failed):
        assert isinstance(answer, Tokens)
    assert (answer.request_id, answer.error.code) == (2, "E2109")
    client.close()
    server.check()


async def _read_all(client: EngineClient | TritonClient) -> None:
    async for _ in client.generate(GOOD):
        pass


@pytest.mark.parametrize(
    ("content", "headers"),
    [
        (b'{"prompt": 5, "user": "\\ud800"}', {}),
        (b'{"prompt": 5, ', {}),
        (b'{"prompt": "hi"}', {"content-length": "9" * 5000}),
    ],
    ids=["half a character behind a wrong field", "no end behind a wrong field", "a long content-length"],
)
def test_such_a_body_is_refused(content: bytes, headers: dict[str, str]) -> None:
    async def post() -> httpx.Response:
        async with httpx.AsyncClient(transport=bodies.transport(), base_url="http://api") as client:
            return await client.post("/v1/completions", content=content, headers={**bodies.JSON, **headers})

    response = asyncio.run(post())
    assert response.status_code in (400, 413)
    assert response.json()["error"]["code"] in ("E1005", "E1600", "E1606")


def test_a_tensor_of_many_values_is_refused_before_all_are_counted() -> None:
    tensor = b"\x2a\x00" * 4_000_000
    message = b"\x2a" + _varint(len(tensor)) + tensor
    with bounded(0), pytest.raises(CodedError, match="E1107"):
        check_wire(message)


def test_a_packed_shape_of_many_dimensions_is_refused() -> None:
    """Their product would be a number of millions of digits."""
    request = pb.ModelInferRequest()
    request.inputs.add(datatype="BYTES", shape=[1 << 62] * 20_000)
    with bounded(0), pytest.raises(CodedError, match="E1107"):
        check_wire(request.SerializeToString())
    del request.inputs[0].shape[400:]
    with pytest.raises(CodedError, match="E1103"):
        adapt(request, models()["ensemble"])


def test_integers_that_no_type_holds_together_are_refused() -> None:
    request = pb.ModelInferRequest()
    tensor = request.inputs.add(name="input_ids", datatype="UINT64", shape=[1, 2])
    tensor.contents.int64_contents.append(-1)
    tensor.contents.uint64_contents.append((1 << 64) - 1)
    with pytest.raises(CodedError, match="E1103"):
        adapt(request, models()["tensorrt_llm"])


def test_a_text_of_a_client_is_no_end_of_an_answer() -> None:
    """It is as the wire has the parameter by which Triton marks the last response."""
    triton, inferences = stand_in()
    inference = Inference(inferences, "1", [], lambda message: None, lambda status, text: None)
    request = pb.ModelInferRequest(model_name="tensorrt_llm", id="triton_final_response\x12\x02\x08\x01")
    inference.send(request)
    answer = pb.ModelStreamInferResponse()
    answer.infer_response.id = request.id
    answer.infer_response.parameters["triton_final_response"].bool_param = False
    triton.calls[0].on_message(answer.SerializeToString())
    assert inferences.running == 1
    answer.infer_response.parameters["triton_final_response"].bool_param = True
    triton.calls[0].on_message(answer.SerializeToString())
    assert inferences.running == 0


@pytest.mark.parametrize("is_ready", [True, False])
@pytest.mark.parametrize(
    "last",
    [front.frame(front.GOAWAY, 0, 0, bytes(8)), front.frame(front.RESET, 0, 1, bytes(4))],
    ids=["the connection", "the call"],
)
@pytest.mark.parametrize("path", front.METHOD_PATHS[:3])
def test_a_client_of_grpc_that_ends_what_is_answered_disturbs_nobody(
    path: bytes, last: bytes, is_ready: bool
) -> None:
    """Triton's answer must raise no error: it would end the connection to Triton, which all clients share."""

    async def talk() -> None:
        triton, inferences = stand_in()
        server = GRPCServer(
            inferences,
            front.UnreachableTriton(),
            APIKeys(()),
            Budget(1 << 20),
            lambda: is_ready,
            max_body_bytes=99,
            is_managed=False,
        )
        connection, transport = server.connection(), front.Transport(is_read=True)
        connection.connection_made(transport)
        fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":authority", b"x"), (b":path", path)]
        connection.receive(
            front.PREFACE
            + front.frame(front.SETTINGS, 0, 0, b"")
            + front.frame(front.HEADERS, front.END_HEADERS, 1, Encoder().encode(fields))
            + front.frame(front.DATA, 0, 1, bytes(5))
            + last
        )
        for call in list(triton.calls):
            call.on_message(b"")
            call.on_end(0, "")
        connection.connection_lost(None)
        assert inferences.running == 0

    asyncio.run(talk())


def test_a_diversity_of_beams_that_is_no_number_is_refused() -> None:
    ready = Ready("tensorrt_llm", vocab_size=1000, max_sequence_length=64, max_batch_size=8)
    tensors = {"input_ids": np.ones((1, 3), np.int32), "request_output_len": np.ones(1, np.int32)}
    tensors["beam_width"] = np.full(1, 2, np.int32)
    tensors["beam_search_diversity_rate"] = np.full(1, np.nan, np.float32)
    with pytest.raises(CodedError, match=r"E1103.*beam_search_diversity_rate"):
        parse_row(tensors, 0, ready, includes_input=False)


def received(inferences: Inferences, request: bytes) -> tuple[HTTPConnection, front.Transport]:
    """A connection of the front that has just got the request."""
    server = HTTPServer(inferences, front.UnreachableTriton(), APIKeys(()), lambda: True, is_managed=False)
    connections: Connections[HTTPConnection] = Connections()
    connection = HTTPConnection(server.handle, server.check, connections, Budget(1 << 20), 1 << 16)
    transport = front.Transport(is_read=True)
    connection.connection_made(transport)
    connection.get_buffer(-1)[: len(request)] = request
    connection.buffer_updated(len(request))
    return connection, transport


def test_many_responses_at_once_are_one_answer_of_generate() -> None:
    async def talk() -> None:
        triton, inferences = stand_in()
        request = b"POST /v2/models/tensorrt_llm/generate HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}"
        _, transport = received(inferences, request)
        (call,) = triton.calls
        for _ in range(4):
            call.on_message(b"")
        assert transport.written.count(b"HTTP/1.1") == 1

    asyncio.run(talk())


def test_work_for_a_client_that_leaves_at_once_is_never_begun(recwarn: pytest.WarningsRecorder) -> None:
    async def talk() -> None:
        _, inferences = stand_in()
        connection, transport = received(inferences, b"GET /v2 HTTP/1.1\r\n\r\n")
        connection.connection_lost(None)
        assert not transport.written

    asyncio.run(talk())
    gc.collect()
    assert [*recwarn] == []


def test_an_answer_that_can_not_be_passed_on_ends_its_call_alone() -> None:
    ends: list[object] = []

    def fail(message: bytes) -> None:
        raise ValueError("a client that can't be answered")

    async def receive() -> None:
        connection = TritonConnection("triton")
        connection.connection_made(front.Transport(is_read=True))
        calls = [
            connection.begin("/x", [], on_message, lambda status, text: ends.append(status))
            for on_message in (fail, ends.append)
        ]
        for call in calls:
            call.receive(bytes(5))

    asyncio.run(receive())
    assert ends == [INTERNAL, b""]


def _varint(value: int) -> bytes:
    parts = []
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])

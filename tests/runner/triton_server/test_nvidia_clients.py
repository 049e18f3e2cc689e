"""The requests of NVIDIA's clients (tensorrtllm_backend v0.16.0): same tensors, options and outputs."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import yaml
from tritonclient.utils import InferenceServerException

from tests.runner.grpc_stream import Array, GrpcStream, Unary
from tests.runner.paced_engine import PacedModel
from tests.runner.servers import TritonUnderTest

pytestmark = pytest.mark.servers

QUESTION = "What is machine learning?"
PROMPTS = [QUESTION, "Cow + Fire"]
ENSEMBLES = ("ensemble", "tensorrt_llm_bls")


def column(value: Any, dtype: Any, rows: int = 1) -> Array:
    return np.full((rows, 1), value, dtype)


def texts(prompts: Sequence[str], count: int) -> dict[str, Array]:
    """Return inputs that the ensemble's clients always send."""
    rows = len(prompts)
    return {
        "text_input": np.array([[each] for each in prompts], object),
        "max_tokens": column(count, np.int32, rows),
        "beam_width": column(1, np.int32, rows),
        "temperature": column(1.0, np.float32, rows),
    }


@pytest.fixture(scope="module", params=[False, True], ids=["undecoupled", "default"])
def undecoupled(
    request: pytest.FixtureRequest,
    triton: TritonUnderTest,
    paced: PacedModel,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[TritonUnderTest]:
    """Unary requests have the same answers on a default server."""
    if request.param:
        yield triton
        return
    folder = tmp_path_factory.mktemp("undecoupled")
    config = folder / "server.yaml"
    config.write_text(yaml.safe_dump({"tensorrt_llm": {"args": {"decoupled_mode": False}}}))
    server = TritonUnderTest(paced, folder, COG_TRITON_CONFIG=str(config))
    yield server
    server.close()


@pytest.fixture
def grpc_stream(triton: TritonUnderTest) -> Iterator[GrpcStream]:
    stream = GrpcStream(triton.grpc_port)
    yield stream
    stream.close()


@pytest.mark.parametrize("is_streaming", [False, True])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("prompts", [PROMPTS[:1], PROMPTS], ids=["one", "batch"])
@pytest.mark.parametrize("model", ENSEMBLES)
def test_each_sequence_of_each_row_is_answered_with_its_indexes(
    triton: TritonUnderTest,
    grpc_stream: GrpcStream,
    model: str,
    prompts: list[str],
    count: int,
    is_streaming: bool,
) -> None:
    rows = len(prompts)
    grpc_stream.send(
        model,
        outputs=["text_output", "cum_log_probs", "output_log_probs", "sequence_index", "batch_index"],
        **texts(prompts, 24),
        stream=column(is_streaming, bool, rows),
        exclude_input_in_output=column(False, bool, rows),
        num_return_sequences=column(count, np.int32, rows),
        return_log_probs=column(True, bool, rows),
    )
    found = [[""] * count for _ in prompts]
    num_tokens = np.zeros((rows, count), int)
    for outputs in grpc_stream.receive_all():
        assert outputs["text_output"].shape == (1,)
        assert ("batch_index" in outputs, "sequence_index" in outputs) == (rows > 1, count > 1)
        row = int(outputs["batch_index"][0][0]) if rows > 1 else 0
        number = int(outputs["sequence_index"][0][0]) if count > 1 else 0
        found[row][number] += outputs["text_output"][0].decode()
        num_tokens[row, number] += outputs["output_log_probs"].shape[2]
        assert outputs["output_log_probs"].shape[:2] == outputs["cum_log_probs"].shape == (1, 1)
    expected = [triton.model.expected_text(prompt, 24) for prompt in prompts]
    if not is_streaming:
        expected = [prompt + answer for prompt, answer in zip(prompts, expected, strict=True)]
    assert found == [[text] * count for text in expected]
    assert (num_tokens == 24).all()


def test_outputs_that_are_named_and_not_computed_are_left_out(grpc_stream: GrpcStream) -> None:
    names = ["context_logits", "generation_logits", "cum_log_probs", "batch_index", "kv_cache_reused_blocks"]
    grpc_stream.send("ensemble", outputs=["text_output", *names], **texts([QUESTION], 3))
    assert [set(outputs) for outputs in grpc_stream.receive_all()] == [{"text_output"}]


@pytest.mark.parametrize(
    ("named", "given"),
    [
        ("return_context_logits", {"return_context_logits": column(True, bool)}),
        ("return_generation_logits", {"return_generation_logits": column(True, bool)}),
        ("return_kv_cache_reuse_stats", {"return_kv_cache_reuse_stats": column(True, bool)}),
        ("beam_width", {"beam_width": column(2, np.int32)}),
        ("lora_task_id", {"lora_task_id": column(1, np.uint64)}),
        ("prompt_embedding_table", {"prompt_embedding_table": np.ones((1, 2, 4), np.float16)}),
        ("decoder_text_input", {"decoder_text_input": np.array([["a"]], object)}),
        (
            "embedding_bias",
            {
                "embedding_bias_words": np.array([["Fire"]], object),
                "embedding_bias_weights": column(2, np.float32),
            },
        ),
    ],
)
@pytest.mark.parametrize("model", ENSEMBLES)
def test_what_the_engine_lacks_is_e1104_with_the_inputs_name(
    grpc_stream: GrpcStream, model: str, named: str, given: dict[str, Array]
) -> None:
    grpc_stream.send(model, **{**texts([QUESTION], 3), **given})
    with pytest.raises(InferenceServerException, match=f"E1104 UnsupportedArgument: {named}"):
        grpc_stream.receive_all()


@pytest.mark.parametrize("is_streaming", [False, True])
def test_the_stop_request_ends_the_request_with_its_id(grpc_stream: GrpcStream, is_streaming: bool) -> None:
    prompt = {"input_ids": np.array([[5, 6, 7]], np.int32), "input_lengths": column(3, np.int32)}
    grpc_stream.send(
        "tensorrt_llm",
        request_id="7",
        **prompt,
        request_output_len=column(4000, np.int32),
        streaming=column(is_streaming, bool),
    )
    if is_streaming:
        grpc_stream.receive()
    stop = {"stop": column(True, bool), "request_output_len": column(0, np.int32)}
    grpc_stream.send("tensorrt_llm", request_id="7", **prompt, **stop)
    ends = 0
    while ends < 2:
        outputs, is_last = grpc_stream.receive()
        ends += is_last
        if "output_ids" in outputs:
            assert outputs["output_ids"].shape[2] < 4000


@pytest.fixture(params=["http", "grpc"])
def ask(request: pytest.FixtureRequest, undecoupled: TritonUnderTest) -> Iterator[Unary]:
    port = undecoupled.http_port if request.param == "http" else undecoupled.grpc_port
    unary = Unary(port, request.param)
    yield unary
    unary.close()


@pytest.mark.parametrize("returns_log_probs", [False, True])
def test_the_models_can_be_asked_one_after_another(ask: Unary, returns_log_probs: bool) -> None:
    """Ask as the end-to-end test does, and with the ensembles' results."""
    blank = np.array([[""]], object)
    flag = {"return_log_probs": column(True, bool)} if returns_log_probs else {}
    first = ask(
        "preprocessing",
        QUERY=np.array([[QUESTION]], object),
        BAD_WORDS_DICT=blank,
        STOP_WORDS_DICT=blank,
        REQUEST_OUTPUT_LEN=column(9, np.int32),
    )
    second = ask(
        "tensorrt_llm",
        input_ids=first.as_numpy("INPUT_ID"),
        decoder_input_ids=first.as_numpy("DECODER_INPUT_ID"),
        input_lengths=first.as_numpy("REQUEST_INPUT_LEN"),
        request_output_len=first.as_numpy("REQUEST_OUTPUT_LEN"),
        end_id=first.as_numpy("OUT_END_ID"),
        pad_id=first.as_numpy("OUT_PAD_ID"),
        **flag,
    )
    tokens, lengths = second.as_numpy("output_ids"), second.as_numpy("sequence_length")
    third = ask("postprocessing", TOKENS_BATCH=tokens, SEQUENCE_LENGTH=lengths)
    names = ["text_output", *(("cum_log_probs", "output_log_probs") if returns_log_probs else ())]
    for model in ENSEMBLES:
        whole = ask(
            *(model, names),
            text_input=np.array([[QUESTION]], object),
            max_tokens=column(9, np.int32),
            bad_words=blank,
            stop_words=blank,
            **flag,
        )
        assert third.as_numpy("OUTPUT") == whole.as_numpy("text_output")
        for name in names[1:]:
            assert (second.as_numpy(name) == whole.as_numpy(name)).all()


@pytest.mark.parametrize("count", [1, 3])
def test_a_batch_is_one_response_without_decoupled_mode(
    ask: Unary, undecoupled: TritonUnderTest, count: int
) -> None:
    answer = ask(
        "ensemble",
        **texts(PROMPTS, 9),
        num_return_sequences=column(count, np.int32, 2),
        return_log_probs=column(True, bool, 2),
    )
    expected = [undecoupled.model.expected_text(prompt, 9) for prompt in PROMPTS for _ in range(count)]
    assert [text.decode() for text in answer.as_numpy("text_output")] == expected
    assert answer.as_numpy("cum_log_probs").shape == (2, count)
    assert answer.as_numpy("output_log_probs").shape == (2, count, 9)


def test_rows_of_different_lengths_are_padded(ask: Unary) -> None:
    answer = ask(
        "tensorrt_llm",
        input_ids=np.array([[5, 6], [7, 8]], np.int32),
        request_output_len=np.array([[2], [4]], np.int32),
    )
    assert answer.as_numpy("output_ids").tolist() == [[[5, 6, -1, -1]], [[7, 8, 7, 8]]]
    assert answer.as_numpy("sequence_length").tolist() == [[2], [4]]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"stream": column(True, bool, 2)}, "E1104 UnsupportedArgument: streaming"),
        ({"num_return_sequences": np.array([[1], [2]], np.int32)}, "E1103 .*num_return_sequences"),
        ({"temperature": np.array([[1], [-1]], np.float32)}, "E1103 InvalidTensor: temperature"),
    ],
)
def test_what_does_not_fit_into_one_response_is_refused(
    ask: Unary, given: dict[str, Array], error: str
) -> None:
    with pytest.raises(InferenceServerException, match=error):
        ask("ensemble", **{**texts(PROMPTS, 5), **given})

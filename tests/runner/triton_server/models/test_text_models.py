"""The models before and behind the engine slot, asked alone: text to token ids and back."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from tests.runner.grpc_stream import Array, Unary
from tests.runner.servers import TritonUnderTest

pytestmark = pytest.mark.servers


Asker = Callable[..., Array]


@pytest.fixture
def ask(triton: TritonUnderTest) -> Iterator[Asker]:
    """Provide a function that asks a model for one output. It sends what preprocessing needs at least."""
    with closing(Unary(triton.grpc_port)) as infer:

        def ask(model: str, output: str, **tensors: Array) -> Array:
            if model == "preprocessing":
                rows = len(next(iter(tensors.values()), texts(["a"])))
                tensors.setdefault("QUERY", texts(*[["a"]] * rows))
                tensors.setdefault("REQUEST_OUTPUT_LEN", lengths(*[1] * rows))
            return infer(model, [output], **tensors).as_numpy(output)

        yield ask


def texts(*rows: list[str | bytes]) -> Array:
    return np.array(rows, dtype=object)


def lengths(*values: int) -> Array:
    return np.array([[value] for value in values], np.uint32)


def test_texts_become_rows_padded_to_the_longest(ask: Asker, triton: TritonUnderTest) -> None:
    ids = ask("preprocessing", "INPUT_ID", QUERY=texts(["What is"], ["日本"]))
    expected = [triton.model.ids("What is"), triton.model.ids("日本")]
    width = max(map(len, expected))
    pad = triton.service.model.pad_id
    assert ids.tolist() == [row + [pad] * (width - len(row)) for row in expected]


def test_an_unsigned_length_beyond_the_signed_ones_stays_huge(ask: Asker) -> None:
    cut = ask("preprocessing", "REQUEST_OUTPUT_LEN", REQUEST_OUTPUT_LEN=lengths(2**32 - 1))
    assert cut.tolist() == [[2**31 - 1]]


def test_words_become_flattened_ids_and_cumulative_ends(ask: Asker, triton: TritonUnderTest) -> None:
    words = ["Fire", "日", ""]
    table = ask(
        *("preprocessing", "STOP_WORDS_IDS"),
        STOP_WORDS_DICT=texts([*words]),
    )
    spellings = [triton.model.ids(text) for text in ("Fire", " Fire", "日", " 日")]
    flat = [token for ids in spellings for token in ids]
    ends = np.cumsum([len(ids) for ids in spellings]).tolist()
    assert table.shape == (1, 2, len(flat))
    assert table[0, 0].tolist() == flat
    assert table[0, 1].tolist() == ends + [-1] * (len(flat) - len(ends))


def test_no_words_are_an_empty_table(ask: Asker) -> None:
    table = ask("preprocessing", "BAD_WORDS_IDS")
    assert table.shape == (1, 2, 0)


@pytest.mark.parametrize("is_given", [True, False])
def test_biased_words_become_a_number_for_each_token(
    ask: Asker, triton: TritonUnderTest, is_given: bool
) -> None:
    given = {"EMBEDDING_BIAS_WORDS": texts(["Fire", "日"])} if is_given else {}
    weights = {"EMBEDDING_BIAS_WEIGHTS": np.array([[1.5, -2]], np.float32)} if is_given else {}
    bias = ask(
        *("preprocessing", "EMBEDDING_BIAS"),
        **(given | weights),
    )
    expected = [0.0] * (triton.model.tokenizer.get_vocab_size() if is_given else 0)
    for word, weight in (("Fire", 1.5), ("日", -2.0)) if is_given else ():
        for token in triton.model.ids(word):
            expected[token] += weight
    assert bias.tolist() == [expected]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DECODER_QUERY", texts(["a"])),
        ("IMAGE_URL", texts(["http://localhost"])),
        ("IMAGE_BYTES", np.ones((1, 1, 2, 2, 3), np.uint8)),
        ("NUM_DRAFT_TOKENS", np.array([[3]], np.int32)),
        ("USE_DRAFT_LOGITS", np.array([[True]])),
    ],
)
def test_an_input_that_no_engine_takes_is_e1104_unless_it_says_nothing(
    ask: Asker, name: str, value: Array
) -> None:
    with pytest.raises(InferenceServerException, match=rf"E1104 .* \({name}\)='<.*paced"):
        ask("preprocessing", "INPUT_ID", **{name: value})
    nothing = np.zeros_like(value) if value.dtype != object else texts([""])
    assert ask("preprocessing", "INPUT_ID", **{name: nothing}).size


def test_biased_words_without_weights_are_e1103(ask: Asker) -> None:
    with pytest.raises(InferenceServerException, match="E1103 InvalidTensor: embedding_bias_words"):
        ask("preprocessing", "INPUT_ID", EMBEDDING_BIAS_WORDS=texts(["Fire"]))


def test_a_text_of_too_many_bytes_is_e1002_and_a_long_one_has_the_tokens_of_the_whole(
    ask: Asker, triton: TritonUnderTest
) -> None:
    most = triton.service.model.max_prompt_bytes
    text = "Earth and water. " * 300
    ids = ask("preprocessing", "INPUT_ID", QUERY=texts([text]))
    assert ids[0].tolist() == triton.service.model.tokenizer.encode(text).ids
    with pytest.raises(InferenceServerException, match=rf"E1002 .*\({most + 1} bytes\).*MAX_PROMPT_BYTES"):
        ask("preprocessing", "INPUT_ID", QUERY=texts(["a" * (most + 1)]))


def test_short_texts_do_not_wait_for_long_ones(ask: Asker, triton: TritonUnderTest) -> None:
    """One after the other is answered while many long ones, which were sent before, are tokenized."""
    long = texts(["Earth " * (triton.service.model.max_prompt_bytes // 6)])
    errors: list[str] = []

    def send() -> None:
        try:
            ask("preprocessing", "INPUT_ID", QUERY=long)
        except InferenceServerException as exc:
            errors.append(str(exc))

    num_short = 0
    with ThreadPoolExecutor(32) as pool:
        sent = [pool.submit(send) for _ in range(32)]
        while not all(each.done() for each in sent):
            ask("preprocessing", "INPUT_ID", QUERY=texts(["short"]))
            num_short += 1
    assert num_short >= 5
    assert all("E1002" in each for each in errors)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (texts(["a"] * 129), "at most 128 words"),
        (texts(["a" * (1 << 18), "b"]), "at most 262144 bytes"),
        (texts(*[["a" * (1 << 17)]] * 3), "at most 262144 bytes"),
    ],
    ids=["many", "long", "in rows"],
)
@pytest.mark.parametrize("name", ["stop_words", "bad_words", "embedding_bias_words"])
def test_words_beyond_their_limits_are_e1103(ask: Asker, words: Array, expected: str, name: str) -> None:
    given = {f"{name.upper()}_DICT": words}
    if name == "embedding_bias_words":
        given = {"EMBEDDING_BIAS_WORDS": words, "EMBEDDING_BIAS_WEIGHTS": np.ones(words.shape, np.float32)}
    with pytest.raises(InferenceServerException, match=f"E1103 InvalidTensor: {name} must be {expected}"):
        ask("preprocessing", "INPUT_ID", **given)


def test_what_nvidias_preprocessing_gives_to_an_encoders_decoder_is_one_token_of_padding(
    ask: Asker, triton: TritonUnderTest
) -> None:
    ids = ask("preprocessing", "DECODER_INPUT_ID", QUERY=texts(["a"], ["b"]))
    counts = ask("preprocessing", "REQUEST_DECODER_INPUT_LEN", QUERY=texts(["a"], ["b"]))
    assert ids.tolist() == [[triton.service.model.pad_id]] * 2
    assert counts.tolist() == [[1]] * 2


def test_a_text_that_is_not_utf_8_is_e1103(ask: Asker) -> None:
    with pytest.raises(InferenceServerException, match="E1103 InvalidTensor: text_input"):
        ask("preprocessing", "INPUT_ID", QUERY=texts([b"\xff\xfe"]))


def test_token_ids_become_texts_row_by_row(ask: Asker, triton: TritonUnderTest) -> None:
    rows = [triton.model.ids("What is"), triton.model.ids("日本")]
    width = max(map(len, rows))
    tokens = np.array([[row + [-1] * (width - len(row))] for row in rows], np.int32)
    counts = np.array([[len(row)] for row in rows], np.int32)
    decoded = ask("postprocessing", "OUTPUT", TOKENS_BATCH=tokens, SEQUENCE_LENGTH=counts)
    assert decoded.tolist() == [b"What is", "日本".encode()]


def test_all_beams_of_a_row_become_texts(ask: Asker, triton: TritonUnderTest) -> None:
    ids = triton.model.ids("What is")
    tokens = np.array([[ids, [*ids[:2], *[-1] * (len(ids) - 2)]]], np.int32)
    counts = np.array([[len(ids), 2]], np.int32)
    decoded = ask("postprocessing", "OUTPUT", TOKENS_BATCH=tokens, SEQUENCE_LENGTH=counts)
    assert [text.decode() for text in decoded] == ["What is", triton.model.tokenizer.decode(ids[:2])]


def test_a_row_without_tokens_is_a_blank_text(ask: Asker) -> None:
    empty = np.empty((1, 2, 0), np.int32)
    decoded = ask("postprocessing", "OUTPUT", TOKENS_BATCH=empty, SEQUENCE_LENGTH=np.zeros((1, 2), np.int32))
    assert decoded.tolist() == [b"", b""]


@pytest.mark.parametrize("counts", [[[1, 1]], [[]]])
def test_lengths_of_another_number_of_sequences_are_e1103(ask: Asker, counts: list[list[int]]) -> None:
    with pytest.raises(InferenceServerException, match="E1103 InvalidTensor: SEQUENCE_LENGTH"):
        ask(
            *("postprocessing", "OUTPUT"),
            TOKENS_BATCH=np.array([[[5]]], np.int32),
            SEQUENCE_LENGTH=np.array(counts, np.int32),
        )


def test_what_one_response_of_a_stream_leaves_undecided_is_decided_by_the_next(
    ask: Asker, triton: TritonUnderTest
) -> None:
    def decode(token: int, reason: bytes) -> str:
        decoded = ask(
            *("postprocessing", "OUTPUT"),
            TOKENS_BATCH=np.array([[[token]]], np.int32),
            SEQUENCE_LENGTH=np.array([[1]], np.int32),
            STREAM_ID=np.array([[4711]], np.int64),
            FINISH_REASON=np.array([[reason]], dtype=object),
        )
        return bytes(decoded[0]).decode()

    first, second, third = triton.model.ids("日")
    assert [decode(first, b""), decode(second, b""), decode(third, b"")] == ["", "", "日"]
    assert [decode(first, b""), decode(second, b"length")] == [
        "",
        triton.model.tokenizer.decode([first, second]),
    ]
    assert decode(first, b"end") == triton.model.tokenizer.decode([first]), "the stream before has ended"


@pytest.mark.parametrize("token", [-1, -(2**31)])
def test_a_token_id_that_is_none_is_e1103(ask: Asker, token: int) -> None:
    with pytest.raises(InferenceServerException, match="E1103 InvalidTensor: TOKENS_BATCH"):
        ask(
            *("postprocessing", "OUTPUT"),
            TOKENS_BATCH=np.array([[[token]]], np.int32),
            SEQUENCE_LENGTH=np.array([[1]], np.int32),
        )

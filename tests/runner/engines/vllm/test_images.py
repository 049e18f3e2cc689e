"""Images by vLLM's own processor and engine core, over the stand-in for a GPU."""

import base64
import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from perf.peers.engine import standin_engine
from runner.engines.protocol.messages import Cached, Cancel, Guide, Sampling, Submit
from runner.engines.vllm.arguments import ENGINE_KIND
from tests.runner.api.alone import APIAlone
from tests.runner.api.image_bodies import CHAT, MESSAGES, RESPONSES, image_body, png
from tests.runner.engines.engine_server import EngineServerUnderTest
from tests.runner.engines.listening import Listening
from tests.runner.engines.vllm.image_model import IMAGE, IMAGE_TOKENS, TEMPLATE, make_image_model
from tests.runner.engines.vllm.test_real_core import PYTHON
from tests.runner.paced_engine import PacedModel

pytestmark = [
    pytest.mark.servers,
    pytest.mark.skipif(not PYTHON.exists(), reason="vLLM's environment is not here"),
]
GREEDY = Sampling(top_k=1)
LENGTH = 1024


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("images")


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[Listening]:
    engine = standin_engine(str(PYTHON), folder, make_image_model(folder / "model"))
    server = EngineServerUnderTest(
        ENGINE_KIND,
        engine.folder,
        {"engine_cache_dir": str(engine.cache)},
        folder,
        python=engine.python,
        environment=engine.variables,
        log_path=folder / "log",
    )
    try:
        with Listening(server) as listening:
            yield listening
    finally:
        server.stop()


def ask(client: Listening, number: int, prompt: list[int], *images: bytes, max_tokens: int = 2) -> str:
    """Return the finish reason or the error."""
    return client.answer(Submit(number, prompt, max_tokens, GREEDY, images=list(images)))[1]


def counts(client: Listening, number: int) -> list[list[int]]:
    batches = [message.new for message in client.messages if isinstance(message, Cached)]
    return [counts for batch in batches for its_id, *counts in batch if its_id == number]


def test_an_image_is_part_of_the_prompt_and_of_the_key_of_its_prefix(client: Listening) -> None:
    assert client.ready.max_images == 32
    prompt = [*range(40), IMAGE, *range(40)]
    one, other = png(50, 40, 10), png(50, 40, 200)
    for number, image, cached in ((1, one, 0), (2, one, 80), (3, other, 32), (4, one, 80)):
        answer = client.answer(Submit(number, prompt, 2, GREEDY, images=[image]))
        assert answer == ([40, 41], "length")
        assert counts(client, number) == [[cached, 80 + IMAGE_TOKENS]], number
    two = Submit(5, [IMAGE, 1, IMAGE, 5], 1, GREEDY, images=[one, other])
    assert client.answer(two) == ([6], "length")
    assert counts(client, 5) == [[0, 2 + 2 * IMAGE_TOKENS]]
    assert client.answer(Submit(6, [7], 1, GREEDY)) == ([8], "length")
    assert counts(client, 6) == [[0]]


def test_images_and_a_guide_in_one_request(client: Listening) -> None:
    guide = Guide("regex", "[ -~]+")  # The stand-in goes on with the next characters.
    submit = Submit(10, [IMAGE, 1], 2, GREEDY, images=[png(5, 5, 1)], guide=guide)
    assert client.answer(submit) == ([2, 3], "length")
    assert client.answer(Submit(11, [IMAGE, 1], 2, GREEDY, images=[b"?"], guide=guide))[1][:5] == "E1017"


def jpeg(part: bytes, count: int) -> bytes:
    """Return a file with many equal parts, of which each has its cost, whatever size the image has."""
    return b"\xff\xd8" + (b"\xff" + part) * count


def png_of_chunks(count: int) -> bytes:
    whole = png(5, 5, 1)
    return whole[:33] + (bytes(4) + b"teSt" + struct.pack(">I", zlib.crc32(b"teSt"))) * count + whole[33:]


def two_images() -> bytes:
    """Return a file that is a small WebP, and a large image of another format to other readers."""
    other = b": x\nImage type: L 1 image\nImage size (x*y): 200000*1\n\x1a".ljust(4000, b"\0")
    frame = struct.pack("<I", (len(other) << 5) | 16)[:3] + b"\x9d\x01\x2a" + struct.pack("<HH", 8, 8) + other
    part = b"VP8 " + struct.pack("<I", len(frame)) + frame
    return b"RIFF" + struct.pack("<I", 4 + len(part)) + b"WEBP" + part


@pytest.mark.parametrize(
    ("number", "image", "says"),
    [
        (20, b"", "known format"),
        (21, b"<svg xmlns='http://www.w3.org/2000/svg'/>", "known format"),
        (22, b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "known format"),
        (23, png(50, 40, 1)[:60], "can't be decoded"),
        (24, png(50_000, 50_000, 1, is_whole=False), "pixels"),
        (25, png(20_000, 8_000, 1, is_whole=False), "pixels"),
        (26, png(1, 51, 1), "more than 50 times"),
        (27, two_images(), "known format"),
        (28, jpeg(b"\xda\0\x08\1\1\1\x01\x3f\x02\x7f\xfe\xff\0", 300), "300 scans"),
        (29, jpeg(b"\xe1\0\x09Exif\0\0a", 300), "300 scans and parts of Exif data"),
        (51, png_of_chunks(40_000), "too many parts"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_hostile_image_is_refused_alone(client: Listening, number: int, image: bytes, says: str) -> None:
    answer = ask(client, number, [IMAGE, 1], image)
    assert answer.startswith("E1017 ImageRefused: the image")
    assert says in answer
    answer = ask(client, number + 100, [IMAGE, IMAGE, 1], png(5, 5, 1), image)
    assert answer.startswith("E1017 ImageRefused: image 2 of 2")


def test_an_image_of_many_parts_is_decoded(client: Listening) -> None:
    assert ask(client, 52, [IMAGE, 1], png_of_chunks(20_000)) == "length"


def test_warnings_of_an_image_are_not_logged(client: Listening, folder: Path) -> None:
    tags = b"".join(struct.pack("<HHII", tag, 1, 1 << 30, 8) for tag in range(9))
    exif = b"eXIfII*\0\x08\0\0\0" + struct.pack("<H", 9) + tags + bytes(4)
    chunk = struct.pack(">I", len(exif) - 4) + exif + struct.pack(">I", zlib.crc32(exif))
    whole = png(5, 5, 1)
    assert ask(client, 50, [IMAGE, 1], whole[:33] + chunk + whole[33:]) == "length"
    assert "Tag" not in (folder / "log").read_text()


def test_a_prompt_that_does_not_fit_its_images_is_refused(client: Listening) -> None:
    image = png(5, 5, 1)
    assert "E1017" in ask(client, 30, [1, 2], image)
    assert "E1017" in ask(client, 31, [IMAGE, 1], image, image)
    assert "E1017" in ask(client, 32, [IMAGE] * 33, *[image] * 33)
    assert "E1002" in ask(client, 33, [1] * (LENGTH - IMAGE_TOKENS) + [IMAGE], image)
    # The output is cut to the room that the image leaves.
    assert ask(client, 34, [IMAGE, *[1] * (LENGTH - 10)], image, max_tokens=9) == "length"
    assert len(client.tokens(34)) == 10 - IMAGE_TOKENS


def test_a_cancelled_request_with_images_ends(client: Listening) -> None:
    many = [png(900, 900, color) for color in range(8)]
    client.send(Submit(40, [IMAGE] * 8 + [1], 900, GREEDY, images=many), Cancel(40))
    assert client.wait_for_end(40) == "cancelled"
    assert ask(client, 41, [7]) == "length"


def test_each_api_answers_a_message_with_an_image(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = standin_engine(str(PYTHON), tmp_path, make_image_model(tmp_path / "model"))
    tokenizer = Tokenizer.from_file(str(engine.folder / "tokenizer.json"))
    for name, value in engine.variables.items():
        monkeypatch.setenv(name, value)
    template = tmp_path / "images.jinja"
    template.write_text(TEMPLATE)
    api = APIAlone(
        PacedModel(engine.folder, tmp_path / "engine.tar", tokenizer),
        tmp_path_factory.mktemp("api"),
        CHAT_TEMPLATE=str(template),
        COG_TRITON_ENGINE_PYTHON=engine.python,
    )
    url = "data:image/png;base64," + base64.b64encode(png(50, 40, 10)).decode()
    # The stand-in goes on with the characters after the prompt's last one.
    text, num_tokens = "Where?", len("user: See:Where?") + IMAGE_TOKENS
    try:
        bodies = {path: image_body(path, url, text) for path in (CHAT, RESPONSES, MESSAGES)}
        chat = api.ask(CHAT, **bodies[CHAT], max_tokens=2)
        assert chat["choices"][0]["message"]["content"] == "@A"
        assert chat["usage"]["prompt_tokens"] == num_tokens
        response = api.ask(RESPONSES, **bodies[RESPONSES], max_output_tokens=2)
        assert response["output"][0]["content"][0]["text"] == "@A"
        assert response["usage"]["input_tokens"] == num_tokens
        message = api.ask(MESSAGES, **{**bodies[MESSAGES], "max_tokens": 2})
        assert message["content"][0]["text"] == "@A"
        error = api.refused(CHAT, 400, **image_body(CHAT, "data:image/png;base64,AAAA"))
        assert error["code"] == "E1017"
    finally:
        api.close()


def test_the_builder_keeps_what_the_processor_is_made_of(tmp_path: Path) -> None:
    engine = standin_engine(str(PYTHON), tmp_path, make_image_model(tmp_path / "model"))
    for name in ("preprocessor_config.json", "processor_config.json"):
        assert json.loads((engine.folder / name).read_text())

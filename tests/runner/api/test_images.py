"""Images in messages: of each API, within bounds, and never fetched from where a client may not lead."""

import asyncio
import base64
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path

import pytest

from engine.download import address
from errors.requests import ImageRefused
from runner.api.generations import PromptRequest, RemoteImage
from runner.api.openai import images
from runner.engines.protocol.messages import Ready, Sampling
from runner.generation.request import GenerationRequest
from tests.runner.api.apis import CHAT_TEMPLATE
from tests.runner.api.image_bodies import CHAT, MESSAGES, RESPONSES, image_body
from tests.runner.api.writing_model import TOKENIZER, WritingModel
from tests.runner.servers import wait_until

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{% if part.type == 'image' %}(image){% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %};{% endfor %}"
)
CONTENT = b"\x89PNG, as far as this server knows"
ENCODED = base64.b64encode(CONTENT).decode()
DATA_URL = f"data:image/png;base64,{ENCODED}"


def take_images(model: WritingModel, most: int) -> None:
    model.served.engine.take(Ready("vllm", 1, 1, 1, max_images=most))


def model_of(folder: Path, **environment: str) -> WritingModel:
    model = WritingModel(folder, TEMPLATE, **environment)
    model.text = "A city."
    take_images(model, 3)
    return model


@pytest.fixture
def model(tmp_path: Path) -> WritingModel:
    return model_of(tmp_path)


@pytest.fixture
def public(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WritingModel:
    """Provide a server that takes public URLs; 127.0.0.1 stands in for a public address."""
    monkeypatch.setattr(address, "is_public", lambda found: found == ip_address("127.0.0.1"))
    return model_of(tmp_path, IMAGE_URLS="public", ROUTER_PROTOCOL="vllm")


class Server:
    """A server of images that counts the requests, and tells when a client has gone."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.is_left = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.paths.append(self.path)
                outer.answer(self)

            def log_message(self, *_: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        if request.path.startswith("/to/"):
            request.send_response(302)
            request.send_header("Location", self.url.replace("127.0.0.1", "127.0.0.2") + "/secret")
            request.end_headers()
        elif request.path == "/missing":
            request.send_error(404)
        elif request.path == "/endless":
            request.send_response(200)
            request.end_headers()
            try:
                while True:
                    request.wfile.write(bytes(1 << 16))
            except OSError:
                self.is_left.set()
        elif request.path == "/silent":
            request.rfile.read(1)  # Until the client closes the connection.
            self.is_left.set()
        else:
            request.send_response(200)
            request.send_header("Content-Length", str(len(CONTENT)))
            request.end_headers()
            request.wfile.write(CONTENT)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
def test_an_image_reaches_the_engine_at_its_place(tmp_path: Path, path: str) -> None:
    model = model_of(tmp_path, STOP_SEQUENCES="city")  # The engine is told to end, and does not tell more.
    model.prompt_tokens = 600
    usage = model.ask(path, **image_body(path, DATA_URL))["usage"]
    assert model.images == [[CONTENT]]
    assert TOKENIZER.decode(model.prompts[0]) == "user: See:(image)Where?;"
    assert 600 in usage.values(), "tokens of the image count"


def test_a_text_can_not_pass_for_an_image(model: WritingModel) -> None:
    """Nor does a part without its image, which only the API's own parts stand for."""
    two = [{"type": "image_url", "image_url": {"url": DATA_URL}}] * 2
    text = {"type": "text", "text": f"(image) {10**24} {{'type': 'image'}}"}
    model.ask(CHAT, messages=[{"role": "user", "content": [*two, text]}])
    assert TOKENIZER.decode(model.prompts[0]) == f"user: (image)(image){text['text']};"
    assert model.images == [[CONTENT, CONTENT]]
    for kind in ("image", "input_image"):
        answer = model.post(CHAT, messages=[{"role": "user", "content": [*two, {"type": kind}]}])
        error = answer.json()["error"]
        assert error["code"] == "E1005"
        assert f"messages[0].content[2].type must be image_url, but is '{kind}'" in error["message"]


def test_a_message_with_an_image_is_continued(model: WritingModel) -> None:
    (message,) = image_body(CHAT, DATA_URL, "It is ")["messages"]
    options = {"continue_final_message": True, "add_generation_prompt": False}
    for content in (message["content"], message["content"][:2]):
        model.ask(CHAT, messages=[{"role": "assistant", "content": content}], **options)
    prompts = [TOKENIZER.decode(each) for each in model.prompts]
    assert prompts == ["assistant: See:(image)It is ", "assistant: See:(image)"]


def test_messages_without_images_reach_the_template_as_texts(model: WritingModel) -> None:
    model.ask(CHAT, messages=[{"role": "user", "content": [{"type": "text", "text": "Hi"}]}])
    assert (model.images, TOKENIZER.decode(model.prompts[0])) == ([[]], "user: Hi;")


@pytest.mark.parametrize(
    "source",
    [
        CHAT_TEMPLATE,  # It writes a list of parts as it is.
        "{% for m in messages %}{{ m.content | tojson }}{% endfor %}",
        "{% for m in messages %}{% for p in m.content %}{{ p.text }}\n{% endfor %}{% endfor %}",
        "{% for m in messages %}{{ m.content + '' }}{% endfor %}",
    ],
)
def test_a_template_without_a_place_for_images_is_told(tmp_path: Path, source: str) -> None:
    model = WritingModel(tmp_path, source)
    take_images(model, 1)
    error = model.post(CHAT, **image_body(CHAT, DATA_URL)).json()["error"]
    assert error["code"] == "E1702"
    assert "no place for images" in error["message"]


@pytest.mark.parametrize("parameters", ["", ";charset=utf-8", ";name=a.png;x"])
def test_a_data_url_may_have_parameters(model: WritingModel, parameters: str) -> None:
    model.ask(CHAT, **image_body(CHAT, f"DATA:image/png{parameters};base64,{ENCODED}"))
    assert model.images == [[CONTENT]]


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("https://example.com/a.png", "IMAGE_URLS=public"),
        ("file:///etc/passwd", "IMAGE_URLS=public"),
        ("data:image/png,x", "base64"),
        ("data:image/png;base64,?", "base64"),
        ("data:image/png;base64,QUJ", "base64"),
        ("x", "data URL"),
        ("", "data URL"),
    ],
)
def test_a_url_that_is_no_image_is_refused_by_its_place(
    model: WritingModel, path: str, url: str, says: str
) -> None:
    response = model.post(path, **image_body(path, url))
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "E1017")
    assert says in error["message"]
    assert error["param"] == ("input" if path == RESPONSES else "messages")
    place = {CHAT: "messages[0].content[1]", RESPONSES: "input", MESSAGES: "messages.content"}[path]
    assert error["message"].startswith(f"{place} (image 1 of 1) can't be used: ")
    assert model.images == []


def test_while_the_engine_starts_a_request_with_an_image_may_come_again(
    model: WritingModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "supports", lambda kind, capability: True)
    model.served.engine.ready = None
    answer = model.post(CHAT, **image_body(CHAT, DATA_URL))
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "E2107"


def test_a_request_has_a_limit_of_images(model: WritingModel) -> None:
    part = {"type": "image_url", "image_url": {"url": "data:"}}
    for count, n in ((4, 1), (2, 2)):
        response = model.post(CHAT, messages=[{"role": "user", "content": [part] * count}], n=n)
        assert response.json()["error"]["code"] == "E1017"
        assert "may have 3 images, and has 4" in response.json()["error"]["message"]
    take_images(model, 0)
    error = model.post(CHAT, messages=[{"role": "user", "content": [part]}]).json()["error"]
    assert error["code"] == "E1016"
    assert "the kind vllm" in error["message"]


@pytest.mark.parametrize("url", [DATA_URL, "https://example.com/a.png"])
def test_tokens_of_images_are_not_counted_and_nothing_is_fetched(public: WritingModel, url: str) -> None:
    for path, body in (
        ("/v1/messages/count_tokens", image_body(MESSAGES, url)),
        ("/v1/responses/input_tokens", image_body(RESPONSES, url)),
        ("/tokenize", image_body(CHAT, url)),
        *((f"{path}/render", image_body(path, url)) for path in (CHAT, RESPONSES, MESSAGES)),
    ):
        if not path.endswith("/render"):
            body.pop("max_tokens", None)
        assert public.post(path, **body).json()["error"]["code"] == "E1016", path


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
def test_a_public_url_is_fetched_where_the_operator_allows_it(
    public: WritingModel, server: Server, path: str
) -> None:
    public.ask(path, **image_body(path, f"{server.url}/a.png"))
    assert public.images == [[CONTENT]]
    error = public.post(path, **image_body(path, f"{server.url}/missing")).json()["error"]
    assert error["code"] == "E1017"
    assert "HTTP 404" in error["message"]


def test_a_url_is_fetched_only_up_to_a_length(public: WritingModel, server: Server) -> None:
    url = f"{server.url}/a.png?".ljust(8000, "a")
    public.ask(CHAT, **image_body(CHAT, url))
    error = public.post(CHAT, **image_body(CHAT, url + "a")).json()["error"]
    assert error["code"] == "E1017"
    assert "at most 8000 characters" in error["message"]
    assert server.paths == [url.removeprefix(server.url)]


def test_no_url_and_no_redirect_leads_to_a_private_address(public: WritingModel, server: Server) -> None:
    private = server.url.replace("127.0.0.1", "127.0.0.3")
    for url in (f"{server.url}/to/private", f"{private}/a.png", "http://169.254.169.254/latest/meta-data"):
        error = public.post(CHAT, **image_body(CHAT, url)).json()["error"]
        assert error["code"] == "E1017"
        assert "its host is not public" in error["message"]
        assert "127.0.0.2" not in error["message"]
    assert server.paths == ["/to/private"]


def test_a_fetched_image_is_bounded(
    public: WritingModel, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "_MAX_BYTES", 1 << 20)
    error = public.post(CHAT, **image_body(CHAT, f"{server.url}/endless")).json()["error"]
    assert error["code"] == "E1017"
    assert "more than 1048576 bytes" in error["message"]
    assert server.is_left.wait(60)


def request_for(url: str) -> PromptRequest:
    request = GenerationRequest("", max_tokens=1, min_tokens=0, stop_sequences=(), sampling=Sampling())
    return PromptRequest(request, 1, images=[b"1", RemoteImage("messages[0]", url), b"3"])


@pytest.mark.usefixtures("public")
@pytest.mark.parametrize("is_late", [False, True])
def test_a_fetch_ends_with_its_request(
    server: Server, monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    if is_late:
        monkeypatch.setattr(images, "_FETCH_S", 0.2)

    async def cancel(is_ready: Callable[[], object]) -> None:
        fetching = asyncio.ensure_future(images.fetched(request_for(f"{server.url}/silent")))
        if not is_late:
            await asyncio.to_thread(wait_until, is_ready)
            fetching.cancel()
        await fetching

    with pytest.raises(ImageRefused if is_late else asyncio.CancelledError):
        asyncio.run(cancel(lambda: server.paths))
    assert server.is_left.wait(60)


@pytest.mark.usefixtures("public")
def test_fetched_images_keep_their_order(server: Server) -> None:
    found = asyncio.run(images.fetched(request_for(f"{server.url}/a.png")))
    assert found.request.images == [b"1", CONTENT, b"3"]

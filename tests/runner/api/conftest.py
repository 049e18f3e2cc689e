"""The API in front of the paced engine, and of the tiny model that ships with the project."""

from collections.abc import Iterator

import pytest

from builder.build import build
from engine.machine.python import engine_python
from engine.machine.root import SOURCE_ROOT
from engine.tar.unpack import unpack
from tests.runner.api.apis import API, CHAT_TEMPLATE
from tests.runner.api.browser import Browser, Page
from tests.runner.api.page_steps import IS_READY
from tests.runner.paced_engine import PacedModel, make_paced_model, make_tokenizer


@pytest.fixture(scope="session")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[API]:
    """On the paced engine. It must stay as it is: who kills something starts another."""
    folder = tmp_path_factory.mktemp("openai")
    template = folder / "template.jinja"
    template.write_text(CHAT_TEMPLATE)
    model = make_paced_model(folder / "model", 200)
    api = API(model, folder, CHAT_TEMPLATE=str(template), OPENAI_MODELS="small,other")
    yield api
    api.close()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[API]:
    """On the transformers engine with a real, if tiny, model: it samples, ends and penalizes."""
    folder = tmp_path_factory.mktemp("tiny")
    tar = folder / "engine.tar"
    config = SOURCE_ROOT / "builder" / "examples" / "tiny" / "config.yaml"
    build(config, tar, report=lambda _: None)
    with tar.open("rb", buffering=0) as stream:
        unpack(stream, folder / "engine")
    model = PacedModel(folder / "engine", tar, make_tokenizer())
    api = API(model, folder, COG_TRITON_ENGINE_PYTHON=engine_python({}))
    yield api
    api.close()


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    browser = Browser(tmp_path_factory.mktemp("chromium"))
    yield browser
    browser.close()


@pytest.fixture
def page(browser: Browser, api: API) -> Iterator[Page]:
    page = browser.open(api.url + "/")
    # The names of the models come last, and what is below them moves.
    page.wait(f"{IS_READY} && $('model').textContent && document.activeElement.id === 'prompt'")
    yield page
    page.close()

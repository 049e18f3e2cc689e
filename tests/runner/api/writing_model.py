"""The real application, over a model that writes given text."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx

from runner.api.application import API
from runner.api.asgi import make_application
from runner.api.call import Call
from runner.api.limits import TextLimit
from runner.api.middleware.call_observer import CallObserver
from runner.api.routers.protocol import RouterProtocol
from runner.api.served import Served
from runner.chat.families.json_families import HERMES
from runner.chat.template import ChatTemplate
from runner.engines.protocol.messages import FinishReason, Output, Submit
from runner.engines.protocol.outlet import Outlet
from runner.generation.generation import Generation
from runner.generation.model import ModelFacts
from runner.generation.request import GenerationRequest
from runner.generation.tokenizing import Tokenizing
from runner.observability.meter import Meter
from runner.observability.tracing import Tracing
from runner.settings.settings import load_settings
from tests.runner.api.apis import CHAT_TEMPLATE
from tests.runner.paced_engine import END_ID, make_tokenizer

CALLS = (
    "<think>\nTwo cities.\n</think>\n\nLet me see.\n"
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Łódź"}}\n</tool_call>'
)
TOKENIZER = make_tokenizer()


class WritingModel:
    """A model that writes ``text``, ``step_tokens`` at once."""

    def __init__(
        self,
        folder: Path,
        template_source: str = CHAT_TEMPLATE,
        *,
        tracing: Tracing | None = None,
        **environment: str,
    ) -> None:
        self.text, self.step_tokens = CALLS, 1
        self.reason: FinishReason = "end"
        self.drafted: tuple[int, int] | None = None
        self.before_first: Callable[[], Awaitable[None]] | None = None
        """Awaited before the first token."""
        self.images: list[list[bytes]] = []
        self.prompts: list[list[int]] = []
        """Images and prompts of the requests until now."""
        self.prompt_tokens: int | None = None
        self.keys: list[str] = []
        """Keys of the calls that generated until now."""
        tokenizing = Tokenizing(TOKENIZER, max_bytes=1 << 16, max_tokens=4095)
        template = ChatTemplate({"default": template_source}, {})
        self.facts = ModelFacts(tokenizing, (END_ID,), END_ID, 4096, 4095, template, HERMES)
        self.served = served = Served(
            self.facts, load_settings({"ENGINE_DIR": ".", **environment}), "transformers", ("model",)
        )
        text_limit = TextLimit(served.settings.openai_max_requests)
        router = RouterProtocol(served, lambda: None) if served.settings.router_protocol else None
        api = API(served, self._is_ready, self._generation, folder, text_limit, None, router)
        application = make_application(api, served)
        is_log_json = served.settings.log_format == "json"
        watched = CallObserver(application, Meter("openai", folder), is_log_json=is_log_json, tracing=tracing)
        self.application = watched
        self._transport = httpx.ASGITransport(watched)

    async def generate(
        self, submit: Submit, outlet: Outlet[Output] | None = None
    ) -> AsyncGenerator[Output, None]:
        if self.before_first is not None:
            await self.before_first()
        self.images.append(submit.images)
        self.prompts.append(submit.input_ids)
        ids = TOKENIZER.encode(self.text, add_special_tokens=False).ids[: submit.max_tokens]
        for at in range(0, len(ids), self.step_tokens):
            yield Output(ids[at : at + self.step_tokens], prompt_tokens=self.prompt_tokens)
        reason: FinishReason = "length" if len(ids) == submit.max_tokens else self.reason
        yield Output([], finish_reason=reason, drafted=self.drafted)

    def _generation(self, request: GenerationRequest, call: Call) -> Generation:
        self.keys.append(call.api_key)
        return Generation(request, self.facts, self)

    async def _is_ready(self) -> bool:
        return True

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.request("POST", path, json=body)

    def request(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        async def send() -> httpx.Response:
            async with httpx.AsyncClient(transport=self._transport, base_url="http://api") as client:
                return await client.request(method, path, **arguments)

        return asyncio.run(send())

    def ask(self, path: str, **body: Any) -> dict[str, Any]:
        response = self.post(path, **body)
        assert response.status_code == 200, response.text
        return response.json()

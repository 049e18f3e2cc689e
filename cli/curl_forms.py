"""The documented requests as curl commands: ``demo`` runs them, ``serve`` prints them, tests type them."""

import json
from dataclasses import dataclass
from typing import Any

PROMPT = "What is machine learning?"
_MAX_TOKENS = 24
WITH_KEY = "OpenAI's API takes one of API_KEYS: add -H 'Authorization: Bearer KEY'"


@dataclass(frozen=True)
class CurlForm:
    """One request: its name, and the parts of its curl command."""

    name: str
    url: str
    body: dict[str, Any]
    headers: tuple[str, ...] = ()

    @property
    def arguments(self) -> list[str]:
        headers = [argument for header in self.headers for argument in ("-H", header)]
        return ["curl", "-s", "-N", "-X", "POST", *headers, "-d", json.dumps(self.body), self.url]

    @property
    def command(self) -> str:
        headers = "".join(f" \\\n  -H '{header}'" for header in self.headers)
        return f"curl -s -N -X POST{headers} \\\n  -d '{json.dumps(self.body)}' \\\n  {self.url}"


def embedding_form(openai_port: int) -> CurlForm:
    """Of an embedding model, which answers nowhere else."""
    return CurlForm(
        "OpenAI's API, an embedding",
        f"http://localhost:{openai_port}/v1/embeddings",
        {"input": PROMPT},
        ("Content-Type: application/json",),
    )


def curl_forms(cog_port: int, triton_port: int, openai_port: int = 0) -> list[CurlForm]:
    """Cog as JSON and as events, Triton's ensemble, the slot, and a chat if the OpenAI port is on."""
    cog = f"http://localhost:{cog_port}/predictions"
    models = f"http://localhost:{triton_port}/v2/models"
    prediction = {"input": {"prompt": PROMPT, "max_tokens": _MAX_TOKENS, "seed": 0}}
    json_header = "Content-Type: application/json"
    chat = CurlForm(
        "OpenAI's API, a chat",
        f"http://localhost:{openai_port}/v1/chat/completions",
        {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": _MAX_TOKENS, "seed": 0},
        (json_header,),
    )
    return [
        CurlForm("Cog, JSON", cog, prediction, (json_header,)),
        CurlForm("Cog, server-sent events", cog, prediction, (json_header, "Accept: text/event-stream")),
        CurlForm(
            "Triton, ensemble (text in, text out)",
            f"{models}/ensemble/generate",
            {"text_input": PROMPT, "max_tokens": _MAX_TOKENS, "bad_words": "", "stop_words": ""},
        ),
        CurlForm(
            "Triton, engine slot (token ids in, token ids out)",
            f"{models}/tensorrt_llm/generate_stream",
            {"input_ids": [300, 301, 302], "input_lengths": 3, "request_output_len": 4, "streaming": True},
        ),
        *([chat] if openai_port else []),
    ]

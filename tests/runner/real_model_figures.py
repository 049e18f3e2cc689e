"""SmolLM2-135M-Instruct by each engine kind for CPUs, and by llama.cpp's own server: a table of figures.

    .venv/bin/python -m tests.runner.real_model_figures [--rounds 5] [--streams 16]

The servers take turns, and one runs at a time: start, memory, one stream at a time, many together, an answer
with a schema, and a stream after four long ones were cancelled: without cancellation it would be slower. All
have the OpenAI-compatible API and answer greedily.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import httpx

from engine.machine.description import machine
from engine.machine.processes import session_members
from engine.machine.python import engine_python
from perf.engines import built
from perf.servers import whole_stack
from perf.table import table
from tests.runner.test_real_model import GGUF

QUESTION = "Write a story about a whale that finds an old ship."
TOKENS = 64
KINDS = ("llama_cpp", "transformers")
SERVERS = {"llama.cpp's server": {}, "llama.cpp's server, PASSIVE": {"OMP_WAIT_POLICY": "PASSIVE"}}
"""Variables of llama.cpp's own server, by its name in the table."""
_SERVE = """
import sys, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.n_parallel, params.n_ctx, params.port = sys.argv[1], 16, 16384, 0
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
sys.stdin.read()
"""
_HEAD = (
    *("", "start, s", "memory, MB", "first token, ms", "tokens/s", "tokens/s, together"),
    *("tokens/s after cancelled ones", "guided"),
)
_SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "old": {"type": "boolean"}},
    "required": ["name", "old"],
    "additionalProperties": False,
}


@dataclass
class Figures:
    starts_s: list[float] = field(default_factory=list)
    memory_mb: list[float] = field(default_factory=list)
    first_ms: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)
    together: list[float] = field(default_factory=list)
    texts: set[str] = field(default_factory=set)
    after_cancelled: list[float] = field(default_factory=list)
    """Rate of a stream after others were cancelled, as a share of that without."""
    guided: list[bool] = field(default_factory=list)
    """True for each answer that follows its schema."""

    def cells(self) -> list[str]:
        return [
            f"{median(self.starts_s):.1f}",
            f"{median(self.memory_mb):.0f}",
            f"{median(self.first_ms):.0f}",
            f"{median(self.rates):.1f}",
            f"{median(self.together):.1f}",
            f"x {median(self.after_cancelled):.2f}",
            f"{sum(self.guided)} of {len(self.guided)}",
        ]


@contextmanager
def own_server(environment: Mapping[str, str]) -> Iterator[tuple[str, list[int]]]:
    """Start llama.cpp's server; yield its address and its processes."""
    command = [engine_python(), "-c", _SERVE, str(GGUF)]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command,
        stdin=pipe,
        stdout=pipe,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **environment},
    ) as process:
        try:
            yield process.stdout.readline().strip(), [process.pid]
        finally:
            process.kill()


@contextmanager
def stack(folder: Path, engine: Path) -> Iterator[tuple[str, list[int]]]:
    """Start the whole stack on ``engine``; yield the API's address and the engine's processes."""
    with whole_stack(folder, {"ENGINE_DIR": str(engine)}, engine_python=engine_python()) as found:
        yield found.openai_url, [pid for pid in session_members(found.session) if is_engine(pid)]


def is_engine(pid: int) -> bool:
    try:
        return "engine_child" in Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False


def memory_mb(pids: list[int]) -> float:
    rollups = [Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines() for pid in pids]
    kib = [int(line.split()[1]) for lines in rollups for line in lines if line.startswith("Pss:")]
    return sum(kib) / 1024


def answer(url: str, question: str) -> tuple[str, list[float]]:
    """Return a text and the times of its parts, from the request on."""
    body = {
        "messages": [{"role": "user", "content": question}],
        "max_tokens": TOKENS,
        "temperature": 0,
        "stream": True,
    }
    text, times, start_s = "", [], time.perf_counter()
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=600) as response:
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            choices = json.loads(line.removeprefix("data: ")).get("choices")
            if choices and (new := choices[0]["delta"].get("content")):
                text += new
                times.append(time.perf_counter() - start_s)
    return text, times


def cancel(url: str) -> None:
    """Begin a long answer and disconnect at its first text."""
    body = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 1500, "stream": True}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=600) as response:
        next(line for line in response.iter_lines() if '"content":"' in line)


def follows_schema(url: str) -> bool:
    """Ask for an object of a schema. Return True if the answer is one."""
    form = {"type": "json_schema", "json_schema": {"name": "whale", "schema": _SCHEMA}}
    question = {"role": "user", "content": "Invent a whale: its name, and whether it is old."}
    body = {"messages": [question], "max_tokens": 200, "response_format": form}
    answered = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=600).json()
    try:
        found = json.loads(answered["choices"][0]["message"]["content"])
        return sorted(found) == ["name", "old"] and isinstance(found["old"], bool)
    except (ValueError, KeyError, TypeError):
        return False


def measure(url: str, pids: list[int], figures: Figures, streams: int) -> None:
    answer(url, "Say hello.")
    for _ in range(2):
        text, times = answer(url, QUESTION)
        figures.texts.add(text)
        figures.first_ms.append(1000 * times[0])
        figures.rates.append((TOKENS - 1) / (times[-1] - times[0]))
    questions = [f"{QUESTION} Its number is {number}." for number in range(streams)]
    start_s = time.perf_counter()
    with ThreadPoolExecutor(streams) as pool:
        list(pool.map(lambda question: answer(url, question), questions))
    figures.together.append(streams * TOKENS / (time.perf_counter() - start_s))
    figures.memory_mb.append(memory_mb(pids))
    figures.guided.append(follows_schema(url))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(cancel, [url] * 4))
    _, times = answer(url, QUESTION)
    figures.after_cancelled.append((TOKENS - 1) / (times[-1] - times[0]) / median(figures.rates[-2:]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", type=int, default=16)
    options = parser.parse_args()
    figures = {name: Figures() for name in (*KINDS, *SERVERS)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "model").mkdir()
        (folder / "model" / GGUF.name).symlink_to(GGUF)
        keys = {"model_path": "model", "gguf_file": GGUF.name}
        engines = {kind: built(folder, kind, {"engine": kind, **keys}) for kind in KINDS}
        for _ in range(options.rounds):
            for server, found in figures.items():
                is_own = server in SERVERS
                opened = own_server(SERVERS[server]) if is_own else stack(folder, engines[server])
                start_s = time.perf_counter()
                with opened as (url, pids):
                    found.starts_s.append(time.perf_counter() - start_s)
                    measure(url, pids, found, options.streams)
                print(server, found.cells(), file=sys.stderr, flush=True)
    print(f"{machine()}; medians of {options.rounds} rounds, {TOKENS} tokens, {options.streams} together\n")
    print(table(_HEAD, [[name, *found.cells()] for name, found in figures.items()]))
    texts = {text for name in ("llama_cpp", *SERVERS) for text in figures[name].texts}
    print(f"\nllama_cpp's text {'is' if len(texts) == 1 else 'is not'} that of llama.cpp's server.")


if __name__ == "__main__":
    main()

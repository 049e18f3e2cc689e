"""Commands and their options. Nothing large is imported here, so that help and usage errors come at once."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from engine.kinds import KINDS
from runner.triton_server.model_names import SLOT

Add = Callable[..., object]
"""A parser's ``add_argument``."""
NUMBERS: tuple[tuple[str, type, float, float, float, str], ...] = (
    ("max_tokens", int, 128, 1, math.inf, "maximum number of tokens to generate"),
    ("min_tokens", int, 0, 0, math.inf, "minimum number of tokens to generate"),
    ("temperature", float, 0.7, 0, 5, "sampling temperature, 0 for greedy"),
    ("top_p", float, 0.95, 0, 1, "probability mass to sample from"),
    ("top_k", int, 0, 0, math.inf, "number of most likely tokens to sample from, 0 for no limit"),
)
"""Options of ``generate``: name, type, default, minimum, maximum, meaning. The limits are Cog's."""

_MODEL = (
    "a Hugging Face model (owner/name, owner/name@revision, owner/name:FILE.gguf or the URL of its page), a "
    "model's folder, a .gguf file, a build config, an engine.tar (path or URL) or an engine folder"
)
_CONFIG = "build config (a YAML file or its URL), or a model as in `serve`"


@dataclass(frozen=True)
class Command:
    """A command: its line in the list of commands, its description, and what adds its options."""

    help: str
    description: str
    add_options: Callable[[Add], None] = lambda add: None


def _plan(add: Add) -> None:
    add("config", help=_CONFIG)
    _add_kind(add)
    add(
        "--model-config",
        type=Path,
        metavar="FILE",
        help="file to read the model's config.json from; then nothing is downloaded",
    )


def _build(add: Add) -> None:
    add("config", help=_CONFIG)
    _add_kind(add)
    add("-o", "--output", default="engine.tar", help="default: %(default)s")
    add("--dry-run", action="store_true", help="check the config, print the plan, build nothing")


def _migrate(add: Add) -> None:
    add("config", help="build config: a YAML file or its URL")
    add("-o", "--output", type=Path, help="the file to write (default: stdout)")
    add(
        "--backend",
        choices=["tensorrt", "pytorch"],
        default="tensorrt",
        help="pytorch: write it for TensorRT-LLM 1.x, with a comment for each setting that it lacks "
        "(default: %(default)s)",
    )


def _inspect(add: Add) -> None:
    add("engine", help="engine.tar (path or URL) or engine folder")
    add("--json", action="store_true", help="print the manifest as JSON")
    add("--gpu", action="store_true", help="check whether this machine can run it")
    add("--verify", action="store_true", help="read everything and check the hash of every file")


def _serve(add: Add) -> None:
    add(
        "model",
        nargs="?",
        metavar="MODEL",
        help=f"{_MODEL}; default: COG_WEIGHTS, ENGINE_DIR or MODEL_ID, else the tiny example",
    )
    _add_kind(add)
    add(
        "--host",
        help="address to listen on; default: 127.0.0.1, but TRITON_HOST and OPENAI_HOST where they are set",
    )
    add("--port", help="Cog's port (default: PORT or 5000)")
    add("--nodes", help="number of machines that hold the engine together (default: NODES or 1)")
    add("--node-rank", metavar="RANK", help="rank of this machine; rank 0 serves (default: NODE_RANK or 0)")
    add(
        "--head",
        metavar="HOST[:PORT]",
        help="address at which rank 0 listens for the other machines (default: HEAD_ADDRESS)",
    )


def _api(add: Add) -> None:
    add(
        "--triton",
        required=True,
        metavar="HOST:PORT",
        help="where Triton's gRPC API is; without a port: 8001",
    )
    add(
        "--tokenizer",
        required=True,
        metavar="MODEL",
        help="the model that Triton serves, of which no weights are needed: a model's folder, a Hugging Face "
        "model (owner/name, owner/name@revision) or an engine's folder",
    )
    add(
        "--triton-model",
        default=SLOT,
        metavar="NAME",
        help="Triton's model that takes and returns token ids (default: %(default)s)",
    )
    add("--host", help="address to listen on (default: OPENAI_HOST or 127.0.0.1)")
    add("--port", help="port to listen on (default: OPENAI_PORT or 9000)")
    add(
        "--model-name",
        metavar="NAME",
        help="name of the model in this API (default: OPENAI_MODELS or the tokenizer's model)",
    )
    add(
        "--max-model-len",
        metavar="TOKENS",
        help="maximum number of tokens of prompt and output together; give it if Triton's engine takes fewer "
        "than the model, or if config.json names no length (default: MAX_SEQUENCE_LENGTH or the model's)",
    )


def _generate(add: Add) -> None:
    add("engine", metavar="MODEL", help=_MODEL)
    add("prompt", help="the prompt, or - to read it from stdin")
    _add_kind(add)
    add(
        "--chat",
        action="store_true",
        help="put the prompt into the model's chat template, as a user's message",
    )
    add("--system-prompt", default=None, help="system prompt, for the prompt template or the chat")
    add("--prompt-template", default=None, help="template with {prompt} and {system_prompt}")
    for name, kind, default, *_, meaning in NUMBERS:
        option = f"--{name.replace('_', '-')}"
        add(option, type=kind, default=default, help=f"{meaning} (default %(default)s)")
    add("--seed", type=int, default=None, help="random seed (default: random)")
    add("--stop", action="append", default=[], metavar="TEXT", help="stop sequence; may be repeated")
    add("-v", "--verbose", action="store_true", help="show Triton's log and statistics")


def _doctor(add: Add) -> None:
    add(
        "engine",
        nargs="?",
        metavar="ENGINE",
        help="engine.tar (path or URL) or engine folder to check; default: COG_WEIGHTS or ENGINE_DIR",
    )
    add("--perf", action="store_true", help="also measure every layer with a paced engine (40 s)")


def _instantiate(add: Add) -> None:
    add("config", help="YAML file with a section `instantiate`")
    add("--base", help="the runner image; default: `base_model` of the section")
    add("--dest", help="name of the new image; default: `staging_dest` of the section")


def _add_kind(add: Add) -> None:
    add(
        "--engine",
        dest="kind",
        choices=[kind.name for kind in KINDS.values() if kind.serves_models],
        help="kind of engine for a model; default: vllm where there is a GPU and vLLM's environment, "
        "llama_cpp for a GGUF file where there is no GPU, else transformers",
    )


COMMANDS = {
    "plan": Command(
        "show on which GPUs a model fits, and the steps, downloads and sizes of a build",
        "Show how many GPUs a model needs, for common sizes of GPU memory, and how many tokens of KV cache "
        "fit beside it. For a build, also show its commands, its downloads and its sizes (weights, engine, "
        "KV cache, memory, disk space). Only the model's config.json is downloaded.",
        _plan,
    ),
    "build": Command(
        "build an engine.tar from a build config or a model",
        "Build an engine.tar from a build config or a model. The token for the Hugging Face Hub comes from "
        "the config, else from HF_TOKEN.",
        _build,
    ),
    "migrate": Command(
        "migrate a build config of an earlier TensorRT-LLM",
        "Migrate a build config of TensorRT-LLM 0.5 to 0.15, with a comment for each change. A build does "
        "the same automatically.",
        _migrate,
    ),
    "inspect": Command(
        "show what an engine is, for which GPU, from which model",
        "Show what an engine.tar (path or URL; only its beginning is read) or engine folder is.",
        _inspect,
    ),
    "serve": Command(
        "serve a model or engine: Cog on 5000, Triton on 8000 to 8002, OpenAI-compatible API on 9000",
        "Serve a model or an engine until Ctrl-C. A model that fits this machine is downloaded once, into "
        "COG_TRITON_CACHE. Settings are the runner's environment variables (SYSTEM_PROMPT, PROMPT_TEMPLATE, "
        "TRITON_HTTP_PORT, OPENAI_PORT, COG_MAX_CONCURRENCY, ...); see docs/settings.md.",
        _serve,
    ),
    "api": Command(
        "serve the OpenAI-compatible API in front of a Triton that runs elsewhere",
        "Serve the OpenAI-compatible API until Ctrl-C, in front of an external Triton with NVIDIA's "
        "tensorrt_llm backend. Triton sees token ids only: this command applies chat templates and stop "
        "sequences, and makes the text. "
        "Example: `cog-triton api --triton localhost:8001 --tokenizer Qwen/Qwen2.5-0.5B-Instruct`. Other "
        "settings are the runner's environment variables (API_KEYS, OPENAI_MAX_REQUESTS, TRITON_TIMEOUT, "
        "TRITON_METRICS_PORT, ...); see docs/settings.md.",
        _api,
    ),
    "generate": Command(
        "generate text once, with its own Triton",
        "Start Triton with an engine on free ports of 127.0.0.1, stream one prediction to stdout and stop.",
        _generate,
    ),
    "demo": Command(
        "build a tiny engine, serve it, stream a prediction, stop",
        "Build and serve the tiny example model on this machine: builder, engine.tar, Triton, Cog. PORT "
        "(5000) is Cog's; TRITON_HTTP_PORT (8000), TRITON_GRPC_PORT (8001) and TRITON_METRICS_PORT (8002) "
        "are Triton's, OPENAI_PORT (9000) the OpenAI-compatible API's.",
    ),
    "doctor": Command(
        "check this machine and installation; --perf also measures each layer",
        "Check what a runner needs: processor, driver, GPUs, libraries, Triton, ports, shared memory, disk, "
        "an engine. A failed check says what to do. Exit code 2 if a check failed. --perf then runs a short "
        "load on every layer.",
        _doctor,
    ),
    "metrics": Command(
        "print the metrics of a runner on this machine",
        "Print all metrics of the runner on this machine whose Triton listens on TRITON_HTTP_PORT, in "
        "Prometheus's text format: the same as GET /metrics on OPENAI_PORT, also if that port is off.",
    ),
    "instantiate": Command(
        "create an image with a model's settings from a runner image, in the registry",
        "Create an image from a runner image and the settings of CONFIG's section `instantiate`: weights, "
        "system_prompt, prompt_template, server. Both images must be in one registry; only kilobytes are "
        "uploaded. Credentials are those of `docker login`.",
        _instantiate,
    ),
}
"""All commands by name; ``run(options)`` of the module of that name in ``cli`` runs one."""

"""Start Triton with an engine on free ports of 127.0.0.1, stream one prediction to stdout and stop."""

import argparse
import asyncio
import math
import os
import secrets
import sys
from dataclasses import replace

from cli.progress import told_progress
from cli.serve import SOURCE_HELP, add_kind_argument, engine_environment, make_engine, python_environment
from engine.inspect import read_manifest
from errors.requests import InvalidInput
from runner.engines.protocol.messages import Sampling
from runner.generation.request import GenerationRequest
from runner.observability.logs import log_text
from runner.service import Service
from runner.settings.ports import free_ports
from runner.settings.prompt_template import format_prompt
from runner.settings.settings import Settings, load_settings

HELP = "generate text once, with its own Triton"

_NUMBERS: tuple[tuple[str, type, float, float, float, str], ...] = (
    ("max_tokens", int, 128, 1, math.inf, "maximum number of tokens to generate"),
    ("min_tokens", int, 0, 0, math.inf, "minimum number of tokens to generate"),
    ("temperature", float, 0.7, 0, 5, "sampling temperature, 0 for greedy"),
    ("top_p", float, 0.95, 0, 1, "probability mass to sample from"),
    ("top_k", int, 0, 0, math.inf, "number of most likely tokens to sample from, 0 for no limit"),
)
"""Option, type, default, minimum, maximum and meaning. The limits are those of the prediction API."""
_PORTS = ("TRITON_HTTP_PORT", "TRITON_GRPC_PORT", "TRITON_METRICS_PORT")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("engine", metavar="MODEL", help=SOURCE_HELP)
    parser.add_argument("prompt", help="the prompt, or - to read it from stdin")
    add_kind_argument(parser)
    parser.add_argument(
        "--chat",
        action="store_true",
        help="put the prompt into the model's chat template, as a user's message",
    )
    parser.add_argument(
        "--system-prompt", default=None, help="system prompt, for the prompt template or the chat"
    )
    parser.add_argument("--prompt-template", default=None, help="template with {prompt} and {system_prompt}")
    for name, kind, default, *_, meaning in _NUMBERS:
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=kind, default=default, help=f"{meaning} (default %(default)s)")
    parser.add_argument("--seed", type=int, default=None, help="random seed (default: random)")
    parser.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="stop sequence; may be repeated"
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="show Triton's log and statistics")


def run(options: argparse.Namespace) -> int:
    _check(options)
    engine = make_engine(options.engine, options.kind)
    environment = {**os.environ, **engine_environment(engine), "TRITON_HOST": "127.0.0.1"}
    environment |= python_environment(read_manifest(engine).engine_kind)
    environment["OPENAI_PORT"] = "0"
    environment |= {name: str(port) for name, port in zip(_PORTS, free_ports(len(_PORTS)), strict=True)}
    settings = load_settings(environment)
    request = _request(options, settings)
    system_prompt = _system_prompt(options, settings) if options.chat else None
    asyncio.run(_generate(settings, request, system_prompt=system_prompt, is_verbose=options.verbose))
    return 0


def _check(options: argparse.Namespace) -> None:
    if options.chat and options.prompt_template is not None:
        raise InvalidInput(
            name="--prompt-template", expected="left out with --chat", value=options.prompt_template
        )
    for name, _, _, least, most, _ in _NUMBERS:
        value = getattr(options, name)
        if not least <= value <= most:
            expected = f"from {least} to {most}" if math.isfinite(most) else f"at least {least}"
            raise InvalidInput(name=f"--{name.replace('_', '-')}", expected=expected, value=value)


def _request(options: argparse.Namespace, settings: Settings) -> GenerationRequest:
    prompt = sys.stdin.read() if options.prompt == "-" else options.prompt
    template = settings.prompt_template if options.prompt_template is None else options.prompt_template
    seed = secrets.randbits(64) if options.seed is None else options.seed % (1 << 64)
    return GenerationRequest(
        prompt=prompt
        if options.chat
        else format_prompt(template, prompt=prompt, system_prompt=_system_prompt(options, settings)),
        max_tokens=options.max_tokens,
        min_tokens=options.min_tokens,
        stop_sequences=tuple(options.stop),
        sampling=Sampling(
            temperature=options.temperature, top_p=options.top_p, top_k=options.top_k, seed=seed
        ),
    )


def _system_prompt(options: argparse.Namespace, settings: Settings) -> str:
    return settings.system_prompt if options.system_prompt is None else str(options.system_prompt)


async def _generate(
    settings: Settings, request: GenerationRequest, *, system_prompt: str | None, is_verbose: bool
) -> None:
    """``system_prompt``: of a chat; None: the prompt is taken as it is."""
    with told_progress() as (_, progress):
        progress(0, None, "starting")
        service = Service(settings, log_text if is_verbose else lambda line: None, progress)
        await service.open()
    try:
        if system_prompt is not None:
            messages = [{"role": "user", "content": request.prompt}]
            prompt = service.model.chat.render(messages, system_prompt=system_prompt)
            request = replace(request, prompt=prompt, adds_special_tokens=False)
        generation = service.generate(request)
        async for text in generation.text():
            print(text, end="", flush=True)
        print()
        if is_verbose:
            print(
                f"{generation.output_token_count} tokens, {generation.tokens_per_second:.1f} tokens/s, "
                f"finish reason: {generation.finish_reason}, seed {request.sampling.seed}",
                file=sys.stderr,
            )
    finally:
        await service.close()

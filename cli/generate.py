"""Generate one text, with a Triton of its own."""

import argparse
import asyncio
import math
import os
import secrets
import sys
from dataclasses import replace

from cli.arguments import NUMBERS
from cli.progress import told_progress
from cli.serve import engine_environment, make_engine, python_environment
from engine.inspect import read_manifest
from errors.requests import InvalidInput
from runner.engines.protocol.messages import Sampling
from runner.generation.request import GenerationRequest
from runner.observability.logs import log_text
from runner.service import Service
from runner.settings.paths import remove_runtime_dir
from runner.settings.ports import free_ports
from runner.settings.prompt_template import begins_turn_after, format_prompt
from runner.settings.settings import Settings, load_settings

_PORTS = ("TRITON_HTTP_PORT", "TRITON_GRPC_PORT", "TRITON_METRICS_PORT")


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
    try:
        asyncio.run(_generate(settings, request, system_prompt=system_prompt, is_verbose=options.verbose))
    finally:
        remove_runtime_dir(settings.triton_http_port)
    return 0


def _check(options: argparse.Namespace) -> None:
    if options.chat and options.prompt_template is not None:
        raise InvalidInput(
            name="--prompt-template", expected="left out with --chat", value=options.prompt_template
        )
    for name, _, _, least, most, _ in NUMBERS:
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
        begins_turn=not options.chat and begins_turn_after(template),
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
    """Generate the text. ``system_prompt`` makes it a chat; None: the prompt is taken as it is."""
    with told_progress() as (_, progress):
        progress(0, None, "starting")
        service = Service(settings, log_text if is_verbose else lambda line: None, progress)
        await service.open()
    try:
        if system_prompt is not None:
            messages = [{"role": "user", "content": request.prompt}]
            prompt = service.model.chat.render(messages, system_prompt=system_prompt)
            request = replace(request, prompt=prompt, adds_special_tokens=False, begins_turn=True)
        if request.max_tokens >= (limit := service.model.max_sequence_length):
            note = f"note: the model takes at most {limit} tokens of prompt and output together"
            print(f"{note}; the output ends there", file=sys.stderr)
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

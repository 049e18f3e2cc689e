"""Serve the OpenAI-compatible API in front of an external Triton."""

import argparse
import asyncio
import os
from functools import partial
from pathlib import Path

from builder.tokenizer_here import tokenizer_here
from cli.curl_forms import ready_lines
from cli.progress import told_progress
from cli.serve import named_by_option
from engine.directory import Engine, load
from engine.end_ids import read_json
from engine.live_line import LiveLine
from errors.settings import InvalidSetting
from runner.api.standalone import serve_alone, wait_for_triton
from runner.api.supervisor import openai_listener
from runner.observability.logs import log_in
from runner.settings.ports import LOOPBACK, check_ports_free
from runner.settings.settings import Settings, load_settings
from runner.settings.triton_address import TritonAddress, parse_external_triton

_PORT, _HIGHEST_PORT = 9000, 65535


def run(options: argparse.Namespace) -> int:
    place = parse_external_triton(options.triton, options.triton_model)
    with named_by_option(options, OPENAI_PORT="port", MAX_SEQUENCE_LENGTH="max_model_len"):
        settings = _settings(options)
    check_ports_free(openai_listener(settings))
    with told_progress() as (report, progress):
        engine = load(tokenizer_here(options.tokenizer, report=report, progress=progress))
    _check_length(engine, settings)
    asyncio.run(_serve(settings, engine, place))
    raise KeyboardInterrupt


async def _serve(settings: Settings, engine: Engine, place: TritonAddress) -> None:
    limit_s = settings.triton_start_timeout_s
    with LiveLine() as line:

        def show(reason: str) -> None:
            limit = f"for at most {limit_s:g} s (TRITON_START_TIMEOUT)"
            line.show(f"waiting {limit} for Triton at {place.address}: {reason}", is_new=False)

        model = await wait_for_triton(place, limit_s, show)
    print(f"Triton   {place.address}, model {place.model}")
    if not model.is_decoupled:
        print(
            "warning: the model is not decoupled, so each text comes as a whole; set decoupled_mode to true "
            "where Triton's model is configured"
        )
    print("The tokenizer can't be compared with Triton's model: a wrong one gives wrong text.", flush=True)
    tell_ready = partial(print, *ready_lines(settings, cog_host=None), sep="\n", flush=True)
    await serve_alone(settings, engine, place, log_in(settings.log_format), tell_ready)


def _settings(options: argparse.Namespace) -> Settings:
    """Read the settings from the environment and the options that stand for variables. Raises E1006."""
    given = {
        "OPENAI_HOST": options.host or os.environ.get("OPENAI_HOST") or LOOPBACK,
        "OPENAI_MODELS": options.model_name,
        "MAX_SEQUENCE_LENGTH": options.max_model_len,
    }
    environment = {**os.environ, **{name: value for name, value in given.items() if value is not None}}
    # NOTE: parsed here, as it may be a port that a runner has for its own Triton.
    port = options.port or environment.pop("OPENAI_PORT", "") or str(_PORT)
    environment["OPENAI_PORT"] = str(_PORT)
    if not port.isdecimal() or not 1 <= int(port) <= _HIGHEST_PORT:
        raise InvalidSetting(name="OPENAI_PORT", expected=f"a port, 1 to {_HIGHEST_PORT}", value=port)
    return load_settings(environment).model_copy(update={"openai_port": int(port)})


def _check_length(engine: Engine, settings: Settings) -> None:
    """Raise E1006 for a model whose length is not known."""
    config = read_json(engine.path / "config.json")
    known = engine.manifest.max_seq_len or config.get("max_position_embeddings")
    if settings.max_sequence_length is None and not known:
        problem = f"is required, because the config.json of {Path(engine.path).name} tells no length."
        raise InvalidSetting.restore(f"--max-model-len {problem}", {})

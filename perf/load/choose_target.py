"""Making of a target from the options: its kind, its place, and a prompt of the right length."""

import argparse
import json
import math
import os
from contextlib import closing
from dataclasses import replace
from typing import Any

from errors.load_test import LoadTargetRefused, LoadTargetUnreachable
from errors.requests import InvalidInput
from errors.settings import InvalidSetting
from perf.load.http import HttpClient, Request, RequestFailed
from perf.load.options import COG, MOCK, OPENAI, TRITON
from perf.load.prompt import exact_prompt, guessed_prompt
from perf.load.targets.cog import CogTarget, runner_inputs
from perf.load.targets.openai import OpenAITarget
from perf.load.targets.replicate import API_URL, ReplicateTarget
from perf.load.targets.target import Target, Workload
from perf.load.targets.triton import TritonTarget
from runner.triton_server.model_names import SLOT

_PROBE_TIMEOUT_S = 300.0
_COG_PORT = ("PORT", 5000)
_PORTS = {COG: _COG_PORT, MOCK: _COG_PORT, TRITON: ("TRITON_HTTP_PORT", 8000), OPENAI: ("OPENAI_PORT", 9000)}


async def choose_target(options: argparse.Namespace) -> tuple[Target, Workload]:
    """Send a first request, to learn the prompt's length and that it is served. Raises E15xx."""
    http = HttpClient(_PROBE_TIMEOUT_S)
    url = (options.url or _default_url(options.target)).rstrip("/")
    if not url.startswith(("http://", "https://")):
        raise InvalidInput(name="url", expected="a URL that begins with http:// or https://", value=url)
    count, is_fixed = options.n_input_tokens, not options.no_fixed_length
    workload = Workload(guessed_prompt(count), count, options.n_output_tokens, is_fixed, options.extra)

    async def tokens_of(prompt: str) -> int:
        probe = _make(options, url, replace(workload, prompt=prompt, output_tokens=1))
        try:
            answer = probe.read(await probe.exchange(http))
        except RequestFailed as exc:
            raise LoadTargetUnreachable(url=url, reason=exc) from exc
        except (ValueError, TypeError, KeyError, AttributeError) as exc:
            raise LoadTargetRefused(url=url, reason=f"its answer can't be read: {exc}") from exc
        if answer.outcome != "completed":
            raise LoadTargetRefused(url=url, reason=answer.error)
        return answer.input_tokens or 0

    context = math.inf
    with closing(http):
        if options.target == OPENAI and not options.model:
            listed = await only_model(url)
            options.model, told = str(listed["id"]), listed.get("max_model_len")
            context = told if isinstance(told, int) and told > 0 else math.inf
        if await tokens_of(workload.prompt):
            prompt, tokens = await exact_prompt(count, tokens_of)
            workload = replace(workload, prompt=prompt, input_tokens=tokens)
        if is_fixed and workload.input_tokens + workload.output_tokens > context:
            expected = f"at most {context - workload.input_tokens}, the room of {options.model}'s context"
            raise InvalidInput(name="n_output_tokens", expected=expected, value=options.n_output_tokens)
        return _make(options, url, workload), workload


def _make(options: argparse.Namespace, url: str, workload: Workload) -> Target:
    is_streaming = options.protocol == "sse"
    if options.target == COG:
        return CogTarget(url, runner_inputs(workload), is_streaming=is_streaming)
    if options.target == MOCK:
        inputs = {"tps": options.tps or 100.0, "n_output_tokens": workload.output_tokens}
        chosen = {name: getattr(options, name) for name in ("output_method", "buffer_size")}
        inputs |= {name: value for name, value in chosen.items() if value is not None}
        return CogTarget(url, {**inputs, **workload.extra}, is_streaming=is_streaming)
    if options.target == TRITON:
        return TritonTarget(url, options.model or SLOT, workload)
    if options.target == OPENAI:
        return OpenAITarget(url, options.api, options.model, workload, os.environ.get("OPENAI_API_KEY"))
    return ReplicateTarget(url, options.target, runner_inputs(workload), _replicate_token())


def _default_url(target: str) -> str:
    if target in _PORTS:
        name, port = _PORTS[target]
        return f"http://localhost:{os.environ.get(name) or port}"
    if not all(target.partition("/")):
        raise InvalidInput(
            name="target", expected="cog-triton, mock, triton, openai or a model as OWNER/NAME", value=target
        )
    _replicate_token()
    return API_URL


def _replicate_token() -> str:
    token = os.environ.get("REPLICATE_API_TOKEN", "").strip()
    if not token:
        raise InvalidSetting(
            name="REPLICATE_API_TOKEN", expected="set to the token of a Replicate account", value=token
        )
    return token


async def only_model(url: str) -> dict[str, Any]:
    """Return what an OpenAI server lists of its first model. Raises E15xx."""
    request = Request("GET", f"{url}/v1/models", {})
    try:
        with closing(HttpClient(_PROBE_TIMEOUT_S)) as http:
            response = await http.send(request)
        listed = json.loads(response.body)["data"][0]
        return {**listed, "id": listed["id"]}
    except RequestFailed as exc:
        raise LoadTargetUnreachable(url=url, reason=exc) from exc
    except (ValueError, KeyError, IndexError, TypeError) as exc:
        raise LoadTargetRefused(url=request.url, reason="it lists no model; name one with --model") from exc

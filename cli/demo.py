"""Build and serve the tiny example model on this machine: builder, engine.tar, Triton, Cog."""

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import urllib3

from cli.curl_forms import KEY, CurlForm, curl_forms
from cli.inspect import describe
from cli.progress import told_end, wait_ready
from cli.serve import DEMO_DIR, check_all_ports_free, engine_environment, on_loopback
from engine.inspect import read_manifest
from engine.live_line import BOLD, LiveLine, painted
from engine.machine.root import IS_CHECKOUT
from engine.tar.unpack import unpack
from errors import find_in_text
from errors.triton import TritonUnknownError
from runner.cog_server.launch import CogServer
from runner.http.event_stream import EventParser
from runner.settings.ports import LOOPBACK
from runner.settings.settings import load_settings

_READY_TIMEOUT_S = 300.0
_BUILD_TIMEOUT_S = 600.0
_STREAM_PROMPT = "Once upon a time"
_STREAM_TOKENS = 120
_STREAM_TIMEOUT_S = 120.0
_SHOWN_LINES = 6
_SHOWN_WIDTH = 300


def run(options: argparse.Namespace) -> int:
    started_s = time.monotonic()
    settings = load_settings({**os.environ, **on_loopback(os.environ)})
    check_all_ports_free(settings, LOOPBACK)
    port = settings.cog.port
    folder = DEMO_DIR / f"demo-{port}"
    folder.mkdir(parents=True, exist_ok=True)
    tar = _build(port, folder)
    engine_dir = _unpack(tar, folder)
    _serve(port, engine_dir, folder)
    seconds, serve = time.monotonic() - started_s, "make serve" if IS_CHECKOUT else "cog-triton serve"
    print(f"\nDone in {seconds:.0f} s; all is stopped. `{serve}` leaves it running", end="")
    page = f", with a page to try it at http://localhost:{settings.openai_port}/"
    print(page if settings.openai_port else ".")
    return 0


def _build(port: int, folder: Path) -> Path:
    _step(1, "Build: the builder's Cog server makes an engine.tar from a build config")
    tar = folder / "engine.tar"
    extra = {"ENGINE_TAR": str(tar)}
    log_path = folder / "builder.log"
    with CogServer("builder", host=LOOPBACK, port=port, log_path=log_path, extra=extra) as builder:
        with LiveLine() as line:
            line.show("starting Cog")
            builder.wait_ready(_READY_TIMEOUT_S)
            body = {"input": {"config": "./examples/tiny/config.yaml"}}
            url = f"{builder.url}/predictions"
            line.say(f"POST {url} {json.dumps(body)}")
            line.show("building")
            answer = urllib3.request("POST", url, json=body, timeout=_BUILD_TIMEOUT_S, retries=False)
        prediction = answer.json()
    print(textwrap.indent(str(prediction.get("logs", "")), "  "), end="", flush=True)
    _check_succeeded(prediction)
    print(f"  -> {tar.relative_to(Path.cwd()) if tar.is_relative_to(Path.cwd()) else tar}")
    return tar


def _unpack(tar: Path, folder: Path) -> Path:
    _step(2, "Inspect and unpack")
    target = folder / "engine"
    shutil.rmtree(target, ignore_errors=True)
    with tar.open("rb") as stream:
        unpack(stream, target)
    print(describe(read_manifest(str(target))))
    return target


def _serve(port: int, engine_dir: Path, folder: Path) -> None:
    _step(3, "Serve: the runner's Cog server, with a real Triton behind it")
    extra = {**engine_environment(str(engine_dir)), **on_loopback(os.environ)}
    settings = load_settings({**os.environ, **extra})
    triton_port = settings.triton_http_port
    started_s = time.monotonic()
    runner = CogServer("runner", host=LOOPBACK, port=port, log_path=folder / "runner.log", extra=extra)
    with told_end(runner):
        wait_ready(runner, _READY_TIMEOUT_S)
        seconds = time.monotonic() - started_s
        print(f"ready after {seconds:.1f} s: Cog at {runner.url}, Triton's HTTP at port {triton_port}")
        _step(4, f"Stream a prediction: {_STREAM_PROMPT!r}")
        _stream(f"{runner.url}/predictions")
        _step(5, "The same by curl")
        keys = settings.api_keys
        for form in curl_forms(port, triton_port, settings.openai_port, has_keys=bool(keys)):
            _show(form, *keys[:1])


def _stream(url: str) -> None:
    prediction: dict[str, Any] = {}
    inputs = {"prompt": _STREAM_PROMPT, "max_tokens": _STREAM_TOKENS, "seed": 1}
    body = {"input": {**inputs, "log_performance_metrics": True}}
    print(_STREAM_PROMPT, end="", flush=True)
    headers = {"Accept": "text/event-stream"}
    options: dict[str, Any] = {"timeout": _STREAM_TIMEOUT_S, "retries": False, "preload_content": False}
    response = urllib3.request("POST", url, json=body, headers=headers, **options)
    parser = EventParser()
    for event in itertools.chain.from_iterable(map(parser.feed, response.stream())):
        if event.name == "output":
            print(json.loads(event.data)["chunk"], end="", flush=True)
        elif event.name == "completed":
            prediction = json.loads(event.data)
    _check_succeeded(prediction)
    metrics = prediction["metrics"]
    print(
        f"\n\n{metrics['output_token_count']} tokens, {metrics['tokens_per_second']:.0f} tokens/s, first "
        f"token after {1000 * metrics['time_to_first_token']:.0f} ms, "
        f"finish reason: {metrics['finish_reason']}"
    )


def _show(form: CurlForm, key: str = "") -> None:
    """Run one documented request with curl, if it is installed, and show the answer. ``key``: an API key."""
    print(f"\n# {form.name}\n{form.command}")
    if not shutil.which("curl"):
        print("  (curl is not installed)")
        return
    command = [argument.replace(KEY, key) for argument in form.arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_STREAM_TIMEOUT_S, check=True)
    answer = json.loads(done.stdout) if done.stdout.startswith("{") else {}
    if "output" in answer:
        output = repr("".join(answer["output"]))
        lines = [f"status: {answer['status']}", f"output: {output}", f"metrics: {answer['metrics']}"]
    else:
        lines = [line for line in done.stdout.splitlines() if line.startswith(("{", "data: "))]
    if len(lines) > _SHOWN_LINES:
        lines[4:-1] = [f"... {len(lines) - 5} more ..."]
    for line in lines:
        print(f"  {line if len(line) <= _SHOWN_WIDTH else line[:_SHOWN_WIDTH] + ' ...'}")


def _check_succeeded(prediction: dict[str, Any]) -> None:
    if prediction.get("status") != "succeeded":
        text = str(prediction.get("error"))
        raise find_in_text(text) or TritonUnknownError(reason=text)


def _step(number: int, title: str) -> None:
    print(painted(f"\n=== {number}. {title}", BOLD, sys.stdout), flush=True)

"""Proves on a GPU that every stream is exact, and measures what the stack takes of the engine's speed.

    .venv/bin/python scripts/prove_gpu/prove.py --engine-python VLLM_PYTHON --work FOLDER

A model of a real shape with random weights is made, whose every token is known in advance (known_model.py),
built into a vLLM engine.tar by our builder and measured in one run: called in its own process, through our
engine slot by Triton, through the whole stack by Cog (JSON and server-sent events), and by vLLM's own OpenAI
server with the same client. Beside that: start times with and without the engine's cache, cancellation by the
engine's counters, an engine for another GPU that must be refused, the transformers engine on the same model.
Exit status 0 if every stream was exact and everything ended as it should.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(ROOT), str(HERE)]

import servers
from client import measure
from known_load import write_workload

from builder.build import build
from engine.gpu import detected_sm
from engine.store import open_engine
from errors.base import CodedError

TOKENIZER = ROOT / "builder" / "examples" / "tiny" / "model"
PHASES = ("model", "in-process", "stack", "openai", "cancel", "preflight", "transformers")


class Proof:
    """The work folder and what has been found."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.work: Path = options.work.resolve()
        self.model = self.work / f"model-{options.shape}"
        self.workload = self.work / f"workload-{options.shape}.json"
        self.rows: list[dict[str, Any]] = []
        self.findings: list[str] = []
        self.facts: dict[str, Any] = {"shape": options.shape, "gpus": options.tensor_parallel}
        self.began_s = time.time()

    @property
    def tar(self) -> Path:
        return self.work / f"engine-{self.options.shape}.tar"

    @property
    def arguments(self) -> dict[str, Any]:
        options = self.options
        return {
            "dtype": "bfloat16",
            "max_model_len": 2048,
            "max_num_seqs": max(options.streams),
            "max_num_batched_tokens": 8192,
            "gpu_memory_utilization": options.gpu_memory_utilization,
            "enable_prefix_caching": False,
            **({"attention_backend": options.attention_backend} if options.attention_backend else {}),
            **{name: json.loads(value) for name, value in (each.split("=", 1) for each in options.argument)},
            **({"tensor_parallel_size": options.tensor_parallel} if options.tensor_parallel > 1 else {}),
        }

    @property
    def engine_cache(self) -> Path:
        return self.work / "cache" / "engine_cache"

    def say(self, *words: object) -> None:
        print(f"[{time.time() - self.began_s:6.1f}s]", *words, flush=True)

    def expect(self, name: str, holds: bool) -> None:
        self.say("ok" if holds else "FAILED", name)
        if not holds:
            self.findings.append(name)

    def row(self, result: dict[str, Any]) -> None:
        self.rows.append(result)
        self.say(json.dumps(result))
        if result["exact"] != result["streams"] and result["target"] != "openai":
            self.findings.append(
                f"{result['target']}: {result['exact']} of {result['streams']} streams are exact"
            )

    def save(self) -> None:
        result = {"facts": self.facts, "rows": self.rows, "findings": self.findings}
        self.options.result.write_text(json.dumps(result, indent=1))


def make_model(proof: Proof) -> None:
    options = proof.options
    if not (proof.model / "following.json").exists():
        program = [options.engine_python, str(HERE / "known_model.py"), str(proof.model)]
        program += ["--shape", options.shape, "--tokenizer", str(options.tokenizer)]
        subprocess.run(program, check=True)
    longest = max(options.streams)
    loads = [{"streams": count, "tokens": options.tokens} for count in options.streams]
    loads = [
        {"streams": longest, "tokens": 64},
        *loads,
        *(2 * [each for each in loads if each["streams"] == 256]),
    ]
    write_workload(proof.workload, proof.model, streams=longest, lengths=(64, options.tokens), loads=loads)
    config = proof.work / "config.yaml"
    lines = ["engine: vllm", f"model_path: {proof.model.name}", "vllm:"]
    lines += [f"  {name}: {json.dumps(value)}" for name, value in proof.arguments.items()]
    config.write_text("\n".join(lines) + "\n")
    started_s = time.monotonic()
    build(config, proof.tar, report=lambda line: None)
    proof.facts["build_s"] = time.monotonic() - started_s
    proof.say(f"engine.tar: {proof.tar.stat().st_size / 1e9:.2f} GB, built in {proof.facts['build_s']:.1f} s")


def engine_dir(proof: Proof) -> Path:
    return open_engine(proof.tar, proof.work / "cache").path


def run_in_process(proof: Proof) -> None:
    engine = engine_dir(proof)
    for mode in ("llm", "async"):
        result = proof.work / f"in-process-{mode}.json"
        program = [proof.options.engine_python, str(HERE / "in_process.py"), str(engine), str(proof.workload)]
        program += [str(result), "--mode", mode, "--cache", str(proof.engine_cache)]
        with (proof.work / f"in-process-{mode}.log").open("wb") as log:
            subprocess.run(program, stdout=log, stderr=subprocess.STDOUT, check=True, timeout=400)
        for run in json.loads(result.read_text())["runs"]:
            proof.row({"target": f"in process, {mode}", **run})


def run_stack(proof: Proof) -> None:
    settings = {"COG_WEIGHTS": str(proof.tar), "COG_TRITON_ENGINE_PYTHON": proof.options.engine_python}
    if proof.options.cold:
        shutil.rmtree(proof.engine_cache, ignore_errors=True)
        with servers.stack(proof.work, "stack-cold", settings) as (_, seconds):
            proof.facts["first_start_s"] = seconds
            proof.say(f"first start, no cache: READY after {seconds:.1f} s")
    with servers.stack(proof.work, "stack", settings) as (url, seconds):
        proof.facts["later_start_s"] = seconds
        proof.say(f"later start: READY after {seconds:.1f} s")
        triton = f"http://{servers.HOST}:{servers.TRITON_PORT}"
        load(proof, [("slot", triton), ("sse", url), ("json", url)])
        if "cancel" in proof.options.phases:
            cancel(proof, triton)


def run_openai(proof: Proof) -> None:
    environment = {
        "VLLM_CACHE_ROOT": str(proof.engine_cache / "vllm"),
        "TRITON_CACHE_DIR": str(proof.engine_cache / "triton"),
        "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    engine = engine_dir(proof)
    started = servers.openai(proof.work, proof.options.engine_python, engine, proof.arguments, environment)
    with started as (url, seconds):
        proof.facts["openai_start_s"] = seconds
        proof.say(f"vLLM's OpenAI server: up after {seconds:.1f} s")
        load(proof, [("openai", url)])


def run_transformers(proof: Proof) -> None:
    """The transformers engine on the same model: its continuous batching beside its static batch."""
    options = proof.options
    python = options.transformers_python or options.engine_python
    config, tar = proof.work / "transformers.yaml", proof.work / "transformers.tar"
    config.write_text(f"engine: transformers\nmodel_path: {proof.model.name}\ndtype: bfloat16\n")
    build(config, tar, report=lambda line: None)
    streams = min(256, max(options.streams))
    program = [python, str(HERE / "static_batch.py"), str(proof.model), str(proof.workload)]
    program += ["--streams", str(streams), "--tokens", str(options.tokens)]
    answer = subprocess.run(program, capture_output=True, text=True, timeout=400)
    if answer.returncode:
        raise RuntimeError(answer.stderr[-1500:])
    proof.row(json.loads(answer.stdout.splitlines()[-1]))
    settings = {"COG_WEIGHTS": str(tar), "COG_TRITON_ENGINE_PYTHON": python}
    with servers.stack(proof.work, "transformers", settings) as (_, seconds):
        proof.facts["transformers_start_s"] = seconds
        proof.say(f"transformers engine: READY after {seconds:.1f} s")
        triton = f"http://{servers.HOST}:{servers.TRITON_PORT}"
        measure("slot", triton, proof.workload, streams, 64)
        for count in (1, streams, streams):
            result = measure("slot", triton, proof.workload, count, options.tokens)
            proof.row({**result, "target": "transformers, slot"})


def load(proof: Proof, targets: list[tuple[str, str]]) -> None:
    """Each load on each target in turn; at 256 streams three times."""
    options = proof.options
    for target, url in targets:
        measure(target, url, proof.workload, max(options.streams), 64)  # what is compiled at first use
    for streams in options.streams:
        for _ in range(3 if streams == 256 else 1):
            for target, url in targets:
                proof.row(measure(target, url, proof.workload, streams, options.tokens))


def cancel(proof: Proof, triton: str) -> None:
    """Long streams whose clients go away: the engine's own counters must fall to nothing."""
    count = min(64, max(proof.options.streams))
    before = servers.slot_metrics()
    work = json.loads(proof.workload.read_text())
    held = asyncio.run(_vanish(work["prompts"][:count]))
    gone_s = time.monotonic()
    while (after := servers.slot_metrics()).get("cog_triton_engine_cache_used_ratio", 1.0) > 0:
        if time.monotonic() - gone_s > 20:
            break
        time.sleep(0.2)
    name = 'cog_triton_slot_ended_requests_total{reason="cancelled"}'
    cancelled = after.get(name, 0.0) - before.get(name, 0.0)
    proof.facts["cancel"] = {"held": held, "after_s": time.monotonic() - gone_s, "cancelled": cancelled}
    proof.say(f"{count} clients gone; cache used {held:.4f} before, nothing after; {cancelled:g} cancelled")
    proof.expect("cancellation frees every KV block", after["cog_triton_engine_cache_used_ratio"] == 0)
    proof.expect("cancelled requests are counted", cancelled == count and held > 0)


async def _vanish(prompts: list[list[int]]) -> float:
    """Open streams, wait until they run, close the connections. Returns the share of the cache they held."""
    connections = []
    for ids in prompts:
        reader, writer = await asyncio.open_connection(servers.HOST, servers.TRITON_PORT)
        body = {"input_ids": ids, "request_output_len": 1900, "runtime_top_k": 1, "streaming": True}
        data = json.dumps(body).encode()
        head = "POST /v2/models/tensorrt_llm/generate_stream HTTP/1.1\r\nHost: h\r\n"
        writer.write(
            f"{head}Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data
        )
        connections.append((reader, writer))
    for reader, _ in connections:
        await reader.readuntil(b"output_ids")
    await asyncio.sleep(1.5)  # The worker tells its statistics once a second.
    held = servers.slot_metrics()["cog_triton_engine_cache_used_ratio"]
    for _, writer in connections:
        writer.transport.abort()
    return held


def check_preflight(proof: Proof) -> None:
    """This GPU is known, and an engine for another is refused before anything is loaded."""
    sm = detected_sm()
    proof.facts["sm"] = sm
    proof.say(f"this GPU is SM {sm}")
    other = 86 if sm != 86 else 80
    folder = proof.work / "foreign"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "builder" / "examples" / "tiny" / "model", folder)
    from engine.directory import file_sizes
    from engine.manifest import EngineFacts, FileEntry, make_manifest, manifest_bytes

    files = {name: FileEntry(size_bytes=size, sha256="0" * 64) for name, size in file_sizes(folder)}
    facts = EngineFacts(engine_kind="tensorrt_llm", sm=other)
    (folder / "engine_manifest.json").write_bytes(manifest_bytes(make_manifest(facts, files, "foreign")))
    try:
        with servers.stack(proof.work, "foreign", {"ENGINE_DIR": str(folder)}):
            sentence = "it was served"
    except CodedError as exc:
        sentence = str(exc)
    proof.say(sentence)
    proof.facts["refusal"] = sentence
    proof.expect("an engine for another GPU is refused", "E1322" in sentence and f"SM {other}" in sentence)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine-python", required=True, help="the Python of an environment with vLLM")
    parser.add_argument("--transformers-python", help="the Python of a transformers environment")
    parser.add_argument("--tokenizer", type=Path, default=TOKENIZER, help="a folder with tokenizer.json")
    parser.add_argument("--work", type=Path, required=True, help="a folder for models, engines and logs")
    parser.add_argument("--shape", default="1b", help="1b, 8b or tiny")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 32, 256, 512])
    parser.add_argument("--tokens", type=int, default=512, help="output tokens a stream")
    parser.add_argument("--tensor-parallel", type=int, default=1, help="GPUs")
    parser.add_argument("--gpu-memory-utilization", type=float, default=0.4)
    parser.add_argument("--attention-backend", help="vLLM's name of one; else its own choice")
    parser.add_argument(
        "--argument", action="append", default=[], metavar="NAME=JSON", help="another of vLLM's engine"
    )
    parser.add_argument(
        "--cold", action="store_true", help="measure starts without and with the engine's cache"
    )
    parser.add_argument("--phases", nargs="+", choices=PHASES, default=list(PHASES))
    parser.add_argument("--result", type=Path, default=Path("prove_gpu.json"), help="where the figures go")
    proof = Proof(parser.parse_args())
    proof.work.mkdir(parents=True, exist_ok=True)
    steps: dict[str, Callable[[Proof], None]] = {
        "model": make_model,
        "preflight": check_preflight,
        "stack": run_stack,
        "in-process": run_in_process,
        "openai": run_openai,
        "transformers": run_transformers,
    }
    for name, step in steps.items():
        if name in proof.options.phases:
            proof.say(f"== {name}")
            try:
                step(proof)
            # A phase that fails is a finding; the others still tell something.
            except Exception as exc:  # noqa: BLE001
                proof.findings.append(f"{name}: {type(exc).__name__}: {exc}")
                proof.say(f"FAILED {name}: {type(exc).__name__}: {exc}")
            proof.save()
    for finding in proof.findings:
        print(f"FAILED: {finding}")
    print("proof: failed" if proof.findings else "proof: complete", flush=True)
    return bool(proof.findings)


if __name__ == "__main__":
    sys.exit(main())

"""Requests whose clients disconnect, and an engine for another GPU."""

from __future__ import annotations

import asyncio
import json
import shutil
import time

from engine.directory import file_sizes
from engine.machine.gpu import detected_sm
from engine.machine.root import SOURCE_ROOT
from engine.tar.manifest import EngineFacts, FileEntry, make_manifest, manifest_bytes
from errors.coded_error import CodedError
from perf.prove_gpu.proof import Proof
from perf.prove_gpu.servers import stack
from perf.resources import metrics
from perf.servers import HOST, Stack

_CLIENTS = 32
_OUTPUT_TOKENS = 1900


def run_cancel(proof: Proof) -> None:
    """Long streams whose clients disconnect: the engine's own counters must fall to 0."""
    with stack(proof, "cancel", {"COG_WEIGHTS": str(proof.tar)}) as started:
        before = metrics(started.metrics_url)
        work = json.loads(proof.workload.read_text())
        count = min(_CLIENTS, len(work["prompts"]))
        held = asyncio.run(_vanish(started, work["prompts"][:count]))
        gone_s = time.monotonic()
        while (after := metrics(started.metrics_url)).get("cog_triton_engine_cache_used_ratio", 1.0) > 0:
            if time.monotonic() - gone_s > 20:
                break
            time.sleep(0.2)
        after_s = time.monotonic() - gone_s
    name = "cog_triton_slot_ended_requests_total reason=cancelled"
    cancelled = after.get(name, 0.0) - before.get(name, 0.0)
    proof.facts["cancel"] = {"clients": count, "held": held, "after_s": after_s, "cancelled": cancelled}
    proof.say(f"{count} clients gone: {100 * held:.1f} % of the cache, nothing {after_s:.1f} s later")
    proof.expect("cancellation frees every KV block", after["cog_triton_engine_cache_used_ratio"] == 0)
    proof.expect("cancelled requests are counted", cancelled == count and held > 0)


async def _vanish(stack: Stack, prompts: list[list[int]]) -> float:
    """Open streams, wait until they run, close the connections. Returns the share of the cache they held."""
    connections = []
    for ids in prompts:
        reader, writer = await asyncio.open_connection(HOST, stack.triton_port)
        body = {"input_ids": ids, "request_output_len": _OUTPUT_TOKENS, "runtime_top_k": 1, "streaming": True}
        data = json.dumps(body).encode()
        head = "POST /v2/models/tensorrt_llm/generate_stream HTTP/1.1\r\nHost: h\r\n"
        writer.write(
            f"{head}Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data
        )
        connections.append((reader, writer))
    for reader, _ in connections:
        await reader.readuntil(b"output_ids")
    await asyncio.sleep(1.2)  # The worker sends its statistics once a second.
    held = metrics(stack.metrics_url)["cog_triton_engine_cache_used_ratio"]
    for _, writer in connections:
        writer.transport.abort()
    return held


def run_preflight(proof: Proof) -> None:
    """This GPU is known, and an engine for another is refused before anything is loaded."""
    sm = detected_sm()
    proof.facts["sm"] = sm
    proof.say(f"this GPU is SM {sm}")
    other = 86 if sm != 86 else 80
    folder = proof.work / "foreign"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(SOURCE_ROOT / "builder" / "examples" / "tiny" / "model", folder)
    files = {name: FileEntry(size_bytes=size, sha256="0" * 64) for name, size in file_sizes(folder)}
    facts = EngineFacts(engine_kind="tensorrt_llm", sm=other)
    (folder / "engine_manifest.json").write_bytes(manifest_bytes(make_manifest(facts, files, "foreign")))
    try:
        with stack(proof, "foreign", {"ENGINE_DIR": str(folder)}):
            sentence = "it was served"
    except CodedError as exc:
        sentence = str(exc)
    proof.say(sentence)
    proof.facts["refusal"] = sentence
    proof.expect("an engine for another GPU is refused", "E1322" in sentence and f"SM {other}" in sentence)

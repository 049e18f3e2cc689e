"""A load of streams on one server, from several processes; each stream is compared with the known answer.

Targets: ``slot`` (Triton's generate_stream), ``json`` and ``sse`` (Cog), ``openai`` (completions, streamed).
What arrives is read after the last stream has ended, so that reading takes no time from the server.
"""

from __future__ import annotations

import asyncio
import functools
import json
import multiprocessing
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perf.load.events import events
from perf.load.http import HttpClient, Request, RequestFailed
from perf.load.response import Response
from perf.prove_gpu.known_load import answer
from perf.servers import MODEL

_PROCESSES = 8
_PREPARATION_S = 0.4
"""What a process takes to make its requests; one that is later says so (``late_ms``)."""
_TIMEOUT_S = 600.0

Work = dict[str, Any]
"""A workload as known_load.py writes it."""


@dataclass
class Stream:
    """What a stream brought: tokens or text, and the seconds until its first piece, where it has pieces."""

    tokens: list[int] = field(default_factory=list)
    text: str = ""
    count: int = 0
    first_s: float | None = None
    error: str = ""
    is_exact: bool = False


@dataclass(frozen=True)
class Share:
    """One client process's part of a load."""

    target: str
    url: str
    workload: str
    indices: range
    tokens: int
    start_s: float
    gap_s: float


@functools.cache
def _work(workload: str) -> Work:
    work: Work = json.loads(Path(workload).read_text())
    return work


def _request(share: Share, work: Work, index: int) -> Request:
    ids, tokens, accept = work["prompts"][index], share.tokens, "application/json"
    body: dict[str, Any]
    if share.target == "slot":
        path = "/v2/models/tensorrt_llm/generate_stream"
        body = {"input_ids": ids, "input_lengths": len(ids), "request_output_len": tokens}
        body |= {"runtime_top_k": 1, "streaming": True}
    elif share.target == "openai":
        path = "/v1/completions"
        body = {"model": MODEL, "prompt": ids, "max_tokens": tokens, "temperature": 0}
        body |= {"stream": True, "ignore_eos": True, "stream_options": {"include_usage": True}}
    else:
        path = "/predictions"
        body = {"input": {"prompt": work["texts"][index], "max_tokens": tokens, "temperature": 0}}
        accept = "text/event-stream" if share.target == "sse" else accept
    headers = {"Content-Type": "application/json", "Accept": accept}
    return Request("POST", share.url + path, headers, json.dumps(body).encode())


def _read(target: str, response: Response | RequestFailed, sent_s: float) -> Stream:
    if isinstance(response, RequestFailed):
        return Stream(error=str(response))
    if response.status != 200:
        return Stream(error=f"{response.status} {response.body[:200]!r}")
    stream = Stream()
    if target == "json":
        prediction = json.loads(response.body)
        stream.text = "".join(prediction.get("output") or [])
        return _prediction(stream, prediction)
    document: dict[str, Any] = {}
    for event in events(response):
        if not event.data.startswith(b"{"):
            continue
        document = json.loads(event.data)
        if target == "slot":
            ids = document.get("output_ids", [])
            stream.tokens += ids if isinstance(ids, list) else [ids]
            stream.count = len(stream.tokens)
            stream.error = document.get("error", stream.error)
        elif target == "openai":
            stream.text += "".join(each["text"] for each in document.get("choices", []))
            stream.count = (document.get("usage") or {}).get("completion_tokens", stream.count)
        else:
            stream.text += document.get("chunk", "")
        if stream.first_s is None and (stream.tokens or stream.text):
            stream.first_s = event.at_s - sent_s
    return _prediction(stream, document) if target == "sse" else stream


def _prediction(stream: Stream, prediction: dict[str, Any]) -> Stream:
    if prediction.get("status") == "succeeded":
        stream.count = prediction["metrics"]["output_token_count"]
    else:
        stream.error = str(prediction.get("error") or prediction)[:200]
    return stream


def _run(share: Share) -> tuple[float, float, list[Stream]]:
    """One client process: when its first stream began, when its last one ended, and its streams."""
    work = _work(share.workload)
    requests = {index: _request(share, work, index) for index in share.indices}
    for request in requests.values():
        assert request.encoded
    http = HttpClient(_TIMEOUT_S)

    async def one(index: int) -> tuple[float, Response | RequestFailed]:
        await asyncio.sleep(max(0.0, share.start_s + share.gap_s * index - time.time()))
        sent_s = time.perf_counter()
        try:
            return sent_s, await http.send(requests[index])
        except RequestFailed as exc:
            return sent_s, exc

    async def together() -> list[tuple[float, Response | RequestFailed]]:
        try:
            return await asyncio.gather(*map(one, share.indices))
        finally:
            http.close()

    began_s = max(share.start_s, time.time())
    responses = asyncio.run(together())
    ended_s = time.time()
    streams = [_read(share.target, response, sent_s) for sent_s, response in responses]
    for index, stream in zip(share.indices, streams, strict=True):
        if share.target == "slot":
            known = answer(work["prompts"][index], work["following"], share.tokens)
            stream.is_exact = stream.tokens == known
        else:
            stream.is_exact = stream.text == work["answers"][str(share.tokens)][index]
    return began_s, ended_s, streams


class Clients:
    """Client processes that wait between loads, so that a load begins at once."""

    def __init__(self) -> None:
        self._pool = multiprocessing.get_context("spawn").Pool(_PROCESSES)

    def __enter__(self) -> Clients:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.terminate()

    def measure(
        self, target: str, url: str, workload: Path, streams: int, tokens: int, gap_s: float = 0.0
    ) -> dict[str, Any]:
        """Run the load once; tokens per second over all streams from the first's start to the last byte.

        All streams begin together, or one every ``gap_s`` seconds.
        """
        processes = min(_PROCESSES, streams)
        start_s = time.time() + _PREPARATION_S
        shares = [
            Share(target, url, str(workload), range(first, streams, processes), tokens, start_s, gap_s)
            for first in range(processes)
        ]
        began_s, ended_s, parts = zip(*self._pool.map(_run, shares, chunksize=1), strict=True)
        results = [stream for part in parts for stream in part]
        firsts_ms = [1000 * each.first_s for each in results if each.first_s is not None]
        return {
            "target": target,
            "streams": streams,
            "tokens": tokens,
            "tokens_per_second": sum(each.count for each in results) / (max(ended_s) - min(began_s)),
            "first_token_ms": statistics.median(firsts_ms) if firsts_ms else None,
            "first_token_max_ms": max(firsts_ms, default=None),
            "late_ms": 1000 * (max(began_s) - start_s),
            "exact": sum(each.is_exact for each in results),
            "errors": [each.error for each in results if each.error][:3],
        }

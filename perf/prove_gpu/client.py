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
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perf.load.events import Event, events
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
class Output:
    """What a stream brought: tokens or text, and when its first piece arrived."""

    tokens: list[int] | None = None
    text: str | None = None
    count: int = 0
    first_s: float | None = None
    error: str = ""


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


def _request(share: Share, work: Work, index: int) -> Request:
    target, tokens = share.target, share.tokens
    path, accept = "/predictions", "application/json"
    if target == "slot":
        path = "/v2/models/tensorrt_llm/generate_stream"
        body = {"input_ids": work["prompts"][index], "request_output_len": tokens}
        body |= {"input_lengths": len(work["prompts"][index]), "runtime_top_k": 1, "streaming": True}
    elif target == "openai":
        path = "/v1/completions"
        body = {"model": MODEL, "prompt": work["prompts"][index], "max_tokens": tokens, "temperature": 0}
        body |= {"stream": True, "ignore_eos": True, "stream_options": {"include_usage": True}}
    else:
        body = {"input": {"prompt": work["texts"][index], "max_tokens": tokens, "temperature": 0}}
        accept = "text/event-stream" if target == "sse" else accept
    headers = {"Content-Type": "application/json", "Accept": accept}
    return Request("POST", share.url + path, headers, json.dumps(body).encode())


def _read(target: str, response: Response, sent_s: float) -> Output:
    if response.status != 200:
        return Output(error=f"{response.status} {response.body[:200]!r}")
    if target == "json":
        return _prediction(json.loads(response.body), "".join(json.loads(response.body).get("output") or []))
    output = Output(tokens=[] if target == "slot" else None, text="")
    last: dict[str, Any] = {}
    for event, last in _documents(events(response)):
        before = (output.count, output.text)
        if target == "slot":
            if "error" in last:
                return Output(error=str(last["error"]))
            ids = last.get("output_ids", [])
            output.tokens = [*(output.tokens or []), *(ids if isinstance(ids, list) else [ids])]
            output.count = len(output.tokens)
        elif target == "openai":
            output.text = (output.text or "") + "".join(each["text"] for each in last.get("choices", []))
            output.count = (last.get("usage") or {}).get("completion_tokens", output.count)
        else:
            output.text = (output.text or "") + last.get("chunk", "")
        if output.first_s is None and before != (output.count, output.text):
            output.first_s = event.at_s - sent_s
    if target == "sse":
        done = _prediction(last, output.text or "")
        done.first_s = output.first_s
        return done
    return output


def _documents(found: Iterator[Event]) -> Iterator[tuple[Event, dict[str, Any]]]:
    return ((event, json.loads(event.data)) for event in found if event.data.startswith(b"{"))


def _prediction(prediction: dict[str, Any], text: str) -> Output:
    if prediction.get("status") != "succeeded":
        return Output(error=str(prediction.get("error") or prediction)[:200])
    return Output(text=text, count=prediction["metrics"]["output_token_count"])


@functools.cache
def _work(workload: str) -> Work:
    work: Work = json.loads(Path(workload).read_text())
    return work


def _run(share: Share) -> list[dict[str, Any]]:
    """The streams of one client process."""
    work = _work(share.workload)
    requests = {index: _request(share, work, index) for index in share.indices}
    for request in requests.values():
        assert request.encoded
    http = HttpClient(_TIMEOUT_S)

    async def one(index: int) -> tuple[int, float, float, Response | RequestFailed]:
        await asyncio.sleep(max(0.0, share.start_s + share.gap_s * index - time.time()))
        sent_s = time.perf_counter()
        try:
            response: Response | RequestFailed = await http.send(requests[index])
        except RequestFailed as exc:
            response = exc
        return index, sent_s, time.perf_counter() - sent_s, response

    async def together() -> list[tuple[int, float, float, Response | RequestFailed]]:
        await asyncio.sleep(max(0.0, share.start_s - time.time()))
        try:
            return await asyncio.gather(*map(one, share.indices))
        finally:
            http.close()

    began_s = max(share.start_s, time.time())
    results = asyncio.run(together())
    ended_s = time.time()
    return [
        {
            "began_s": began_s,
            "ended_s": ended_s,
            "seconds": seconds,
            **_judged(_output(share.target, response, sent_s), work, index, share.tokens),
        }
        for index, sent_s, seconds, response in results
    ]


def _output(target: str, response: Response | RequestFailed, sent_s: float) -> Output:
    if isinstance(response, RequestFailed):
        return Output(error=str(response))
    return _read(target, response, sent_s)


def _judged(output: Output, work: Work, index: int, tokens: int) -> dict[str, Any]:
    if output.tokens is not None:
        exact = output.tokens == answer(work["prompts"][index], work["following"], tokens)
    else:
        known = work.get("answers", {}).get(str(tokens))
        exact = known is not None and output.text == known[index]
    return {"count": output.count, "first_s": output.first_s, "error": output.error, "exact": exact}


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
        results = [each for part in self._pool.map(_run, shares, chunksize=1) for each in part]
        seconds = max(each["ended_s"] for each in results) - min(each["began_s"] for each in results)
        firsts = sorted(1000 * each["first_s"] for each in results if each["first_s"] is not None)
        rates = [each["count"] / each["seconds"] for each in results if each["seconds"]]
        return {
            "target": target,
            "streams": streams,
            "tokens": tokens,
            "tokens_per_second": sum(each["count"] for each in results) / seconds,
            "per_stream": statistics.mean(rates) if rates else 0.0,
            "first_token_ms": statistics.median(firsts) if firsts else None,
            "first_token_max_ms": firsts[-1] if firsts else None,
            "late_ms": max(0.0, 1000 * (max(each["began_s"] for each in results) - start_s)),
            "exact": sum(each["exact"] for each in results),
            "errors": [each["error"] for each in results if each["error"]][:3],
        }

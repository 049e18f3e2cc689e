"""A load of streams on one server, from several processes: the same bytes are read, whatever the server.

    python client.py TARGET URL WORKLOAD.json --streams 256 --tokens 512

Targets: ``slot`` (Triton's generate_stream), ``json`` and ``sse`` (Cog), ``openai`` (completions, streamed).
All that comes is kept with its time and read after the last stream has ended, so that the reading costs the
server nothing. Standard library only. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

_PROCESSES = 8
_PREPARATION_S = 0.4
"""What a process takes to make its requests; who is later says so (``late_ms``)."""


@dataclass
class Stream:
    """One request: what came, and when (seconds after it was sent)."""

    index: int
    chunks: list[bytes] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)
    status: str = ""
    error: str = ""


@dataclass
class Answer:
    """What a stream said: tokens or text, and the time of its first piece."""

    tokens: list[int] | None = None
    text: str | None = None
    count: int = 0
    first_s: float | None = None
    error: str = ""


def _body(target: str, work: dict[str, Any], index: int, tokens: int) -> tuple[str, dict[str, Any], str]:
    """Path, body and Accept of request ``index``."""
    if target == "slot":
        body: dict[str, Any] = {
            "input_ids": work["prompts"][index],
            "input_lengths": len(work["prompts"][index]),
            "request_output_len": tokens,
            "runtime_top_k": 1,
            "streaming": True,
        }
        return "/v2/models/tensorrt_llm/generate_stream", body, "*/*"
    if target == "openai":
        body = {"model": "m", "prompt": work["prompts"][index], "max_tokens": tokens, "temperature": 0}
        body |= {"stream": True, "ignore_eos": True, "stream_options": {"include_usage": True}}
        return "/v1/completions", body, "*/*"
    accept = "text/event-stream" if target == "sse" else "application/json"
    body = {"input": {"prompt": work["texts"][index], "max_tokens": tokens, "temperature": 0}}
    return "/predictions", body, accept


async def _send(
    stream: Stream, due_s: float, host: str, port: int, path: str, accept: str, data: bytes
) -> None:
    await asyncio.sleep(max(0.0, due_s - time.time()))
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nAccept: {accept}\r\n"
        f"Connection: close\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    sent_s = time.perf_counter()
    try:
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(head.encode() + data)
        while chunk := await reader.read(1 << 16):
            stream.chunks.append(chunk)
            stream.times_s.append(time.perf_counter() - sent_s)
            # NOTE: not every server closes after an event stream; its last words tell.
            if chunk.endswith(b"0\r\n\r\n"):
                break
        writer.close()
    except OSError as exc:
        stream.error = str(exc)


def _answer(target: str, stream: Stream) -> Answer:
    raw = b"".join(stream.chunks)
    head, _, rest = raw.partition(b"\r\n\r\n")
    status = head.split(b"\r\n", 1)[0].decode()
    if stream.error or b" 200 " not in head.split(b"\r\n", 1)[0] + b" ":
        return Answer(error=stream.error or f"{status} {rest[:200]!r}")
    body = _dechunked(rest) if b"chunked" in head.lower() else rest
    answer = _READERS[target](body)
    answer.first_s = _first_event_s(stream) if target != "json" else None
    return answer


def _first_event_s(stream: Stream) -> float | None:
    """When the first piece of output had come: bytes of the head are none."""
    seen = b""
    for chunk, time_s in zip(stream.chunks, stream.times_s, strict=True):
        seen += chunk
        if b"output_ids" in seen or b'"text":"' in seen.replace(b": ", b":") or b"event: output" in seen:
            return time_s
    return None


def _dechunked(rest: bytes) -> bytes:
    parts, position = [], 0
    while (end := rest.find(b"\r\n", position)) >= 0:
        size = int(rest[position:end].split(b";")[0] or b"0", 16)
        if size == 0:
            break
        parts.append(rest[end + 2 : end + 2 + size])
        position = end + 4 + size
    return b"".join(parts)


def _events(body: bytes) -> list[dict[str, Any]]:
    lines = (line[5:].strip() for line in body.split(b"\n") if line.startswith(b"data:"))
    return [json.loads(line) for line in lines if line.startswith(b"{")]


def _read_slot(body: bytes) -> Answer:
    answer = Answer(tokens=[])
    for event in _events(body):
        if "error" in event:
            return Answer(error=str(event["error"]))
        ids = event.get("output_ids", [])
        answer.tokens += ids if isinstance(ids, list) else [ids]  # type: ignore[operator]
    answer.count = len(answer.tokens or [])
    return answer


def _read_openai(body: bytes) -> Answer:
    answer = Answer(text="")
    for event in _events(body):
        if event.get("usage"):
            answer.count = event["usage"]["completion_tokens"]
        for choice in event.get("choices", []):
            answer.text += choice["text"]
    return answer


def _read_sse(body: bytes) -> Answer:
    events = _events(body)
    last = events[-1] if events else {}
    text = "".join(event["chunk"] for event in events if "chunk" in event)
    return _read_prediction(last, text)


def _read_json(body: bytes) -> Answer:
    prediction = json.loads(body)
    return _read_prediction(prediction, "".join(prediction.get("output") or []))


def _read_prediction(prediction: dict[str, Any], text: str) -> Answer:
    if prediction.get("status") != "succeeded":
        return Answer(error=str(prediction.get("error") or prediction)[:200])
    return Answer(text=text, count=prediction["metrics"]["output_token_count"])


_READERS: dict[str, Callable[[bytes], Answer]] = {
    "slot": _read_slot,
    "openai": _read_openai,
    "sse": _read_sse,
    "json": _read_json,
}


@functools.cache
def _read(workload: str) -> dict[str, Any]:
    work: dict[str, Any] = json.loads(Path(workload).read_text())
    return work


def _process(arguments: tuple[str, str, str, list[int], int, float, float]) -> list[dict[str, Any]]:
    """The streams of one client process."""
    target, url, workload, indices, tokens, start_s, gap_s = arguments
    work = _read(workload)
    parts = urlsplit(url)
    streams = [Stream(index) for index in indices]
    requests = [_body(target, work, stream.index, tokens) for stream in streams]
    encoded = [json.dumps(body).encode() for _, body, _ in requests]

    async def run() -> None:
        await asyncio.sleep(max(0.0, start_s - time.time()))
        host, port = parts.hostname or "", parts.port or 80
        await asyncio.gather(
            *(
                _send(stream, start_s + gap_s * stream.index, host, port, path, accept, data)
                for stream, (path, _, accept), data in zip(streams, requests, encoded, strict=True)
            )
        )

    began_s = max(start_s, time.time())
    asyncio.run(run())
    ended_s = time.time()
    return [
        {
            "began_s": began_s,
            "ended_s": ended_s,
            "seconds": stream.times_s[-1] if stream.times_s else 0.0,
            **_judged(_answer(target, stream), work, stream.index, tokens),
        }
        for stream in streams
    ]


def _judged(answer: Answer, work: dict[str, Any], index: int, tokens: int) -> dict[str, Any]:
    if answer.tokens is not None:
        expected, token = [], work["prompts"][index][-1]
        for _ in range(tokens):
            token = work["following"][token]
            expected.append(token)
        exact = answer.tokens == expected
    else:
        known = work.get("answers", {}).get(str(tokens))
        exact = known is not None and answer.text == known[index]
    return {"count": answer.count, "first_s": answer.first_s, "error": answer.error, "exact": exact}


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
        parts = [
            (target, url, str(workload), list(range(first, streams, processes)), tokens, start_s, gap_s)
            for first in range(processes)
        ]
        results = [each for part in self._pool.map(_process, parts, chunksize=1) for each in part]
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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("target", choices=_READERS)
    parser.add_argument("url")
    parser.add_argument("workload", type=Path)
    parser.add_argument("--streams", type=int, required=True)
    parser.add_argument("--tokens", type=int, required=True)
    options = parser.parse_args()
    with Clients() as clients:
        result = clients.measure(
            options.target, options.url, options.workload, options.streams, options.tokens
        )
    print(json.dumps(result))


if __name__ == "__main__":
    main()

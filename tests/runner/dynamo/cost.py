"""CPU time of a token behind a front end: ``python -m tests.runner.dynamo.cost URL NAME=PID ...``.

The paced engine repeats the prompt, so that each stream has all its tokens.
"""

import argparse
import json
import os
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

STREAMS = 64
TOKENS = 400


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def stream(url: str, model: str, number: int) -> tuple[int, float]:
    """Stream one completion. Return the number of its events, and the seconds to the first."""
    body = {
        "model": model,
        "prompt": f"{number} What is machine learning?",
        "max_tokens": TOKENS,
        "stream": True,
    }
    request = urllib.request.Request(
        f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    begun_s, first_s, events = time.monotonic(), 0.0, 0
    with urllib.request.urlopen(request, timeout=300) as answer:
        for line in answer:
            if line.startswith(b"data: {"):
                first_s = first_s or time.monotonic() - begun_s
                events += 1
    return events, first_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("process", nargs="+", help="NAME=PID")
    parser.add_argument("--model", default="paced")
    arguments = parser.parse_args()
    pids = {name: int(pid) for name, _, pid in (each.partition("=") for each in arguments.process)}
    before = {name: cpu_s(pid) for name, pid in pids.items()}
    with ThreadPoolExecutor(STREAMS) as pool:
        ended = list(pool.map(lambda number: stream(arguments.url, arguments.model, number), range(STREAMS)))
    tokens = STREAMS * TOKENS
    figures = {name: round(1e6 * (cpu_s(pid) - before[name]) / tokens, 1) for name, pid in pids.items()}
    events, first_s = sum(each[0] for each in ended), max(each[1] for each in ended)
    print(
        json.dumps(
            {
                "us_per_token": figures,
                "tokens_per_event": round(tokens / events, 1),
                "first_s": round(first_s, 2),
            }
        )
    )


if __name__ == "__main__":
    main()

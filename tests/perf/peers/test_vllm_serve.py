"""``vllm serve`` as a child: started with the engine's arguments, ended with all that it started."""

import json
import sys
from pathlib import Path

import pytest
import urllib3

from errors.triton import StartFailed
from perf.peers.engine import Engine
from perf.peers.vllm_serve import vllm_serve
from tests.runner.servers import is_running, wait_until

SERVER = """
import http.server, json, subprocess, sys
arguments = sys.argv[1:]
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = json.dumps(arguments + [child.pid]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
if "--no-start" in arguments:
    sys.exit("no such GPU")
child = subprocess.Popen(["sleep", "600"])
port = int(arguments[arguments.index("--port") + 1])
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    (tmp_path / "server.py").write_text(SERVER)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {tmp_path}/server.py "$@"\n')
    python.chmod(0o755)
    (tmp_path / "engine_args.json").write_text('{"max_model_len": 1024, "enable_prefix_caching": false}')
    return Engine(tmp_path, "vllm", str(python), tmp_path)


def test_it_gets_the_engines_arguments_and_leaves_nothing(engine: Engine, tmp_path: Path) -> None:
    with vllm_serve(engine, tmp_path / "log", 4, {}) as (url, session):
        *arguments, child = json.loads(urllib3.request("GET", f"{url}/").data)
        assert arguments[:4] == ["-m", "vllm.entrypoints.cli.main", "serve", str(tmp_path)]
        assert {"--max-model-len", "1024", "--no-enable-prefix-caching", "4"} <= {*arguments}
        assert is_running(child)
    wait_until(lambda: not is_running(child))
    assert not is_running(session)


def test_one_that_does_not_start_tells_why(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "engine_args.json").write_text('{"start": false}')
    with pytest.raises(StartFailed, match="no such GPU"), vllm_serve(engine, tmp_path / "log", 1, {}):
        pass

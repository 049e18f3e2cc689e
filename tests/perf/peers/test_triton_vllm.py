"""NVIDIA's vLLM backend among the peers. tritonserver is real; a model that repeats the prompt stands in for
that of the backend, which needs vLLM.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from engine.machine.root import SOURCE_ROOT
from errors.requests import InvalidInput
from perf.load.response import Response
from perf.peers.engine import Engine
from perf.peers.measure import closed_loop, measure, texts
from perf.peers.servers import Endpoint
from perf.peers.triton_vllm import GENERATE, GenerateTarget, check_backend, stub_environment, triton_vllm
from perf.peers.workloads import Prompt

TOKENIZER = SOURCE_ROOT / "builder" / "examples" / "tiny" / "model" / "tokenizer.json"
BACKEND = """
import json, pathlib
import numpy as np
import triton_python_backend_utils as pb_utils

FLAGS = ["stream", "exclude_input_in_output", "return_num_output_tokens"]


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "text_input", "data_type": "TYPE_STRING", "dims": [1]})
        for name in FLAGS:
            config.add_input({"name": name, "data_type": "TYPE_BOOL", "dims": [1], "optional": True})
        config.add_output({"name": "text_output", "data_type": "TYPE_STRING", "dims": [-1]})
        config.add_output({"name": "num_output_tokens", "data_type": "TYPE_UINT32", "dims": [-1]})
        config.set_model_transaction_policy({"decoupled": True})
        config.set_max_batch_size(0)
        return config

    def initialize(self, args):
        arguments = json.loads((pathlib.Path(pb_utils.get_model_dir()) / "model.json").read_text())
        assert arguments == {"model": arguments["model"], "max_num_seqs": 7, "disable_log_stats": True}
        assert (pathlib.Path(arguments["model"]) / "engine_args.json").exists()

    def execute(self, requests):
        for request in requests:
            flags = [pb_utils.get_input_tensor_by_name(request, name).as_numpy()[0] for name in FLAGS]
            parameters = json.loads(request.parameters())
            tokens = parameters.pop("max_tokens")
            assert all(flags) and parameters == {"temperature": 0, "ignore_eos": True}
            text = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()[0]
            sender = request.get_response_sender()
            for part, count in ((text, tokens - 2), (b"", 1), (b"!", 1)):
                output = pb_utils.Tensor("text_output", np.array([part], dtype=object))
                number = pb_utils.Tensor("num_output_tokens", np.array([count], dtype=np.uint32))
                sender.send(pb_utils.InferenceResponse([output, number]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


def answer(*documents: object) -> Response:
    body = b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in documents)
    return Response(200, {}, [(1.0, body)])


@pytest.mark.servers
def test_the_backend_runs_in_triton_with_the_engines_arguments(tmp_path: Path) -> None:
    (tmp_path / "engine_args.json").write_text('{"max_num_seqs": 7}')
    (tmp_path / "checkout" / "src").mkdir(parents=True)
    (tmp_path / "checkout" / "src" / "model.py").write_text(BACKEND)
    backend = check_backend(tmp_path / "checkout")
    engine = Engine(tmp_path, sys.executable, tmp_path / "cache")
    prompts = [Prompt(f"prompt {number}", [], 5 + number) for number in range(4)]
    with triton_vllm(backend, engine, tmp_path / "work") as server:
        server.wait_ready(300)
        endpoint = Endpoint(GENERATE, server.url, server.session)
        assert texts(endpoint, prompts, Tokenizer.from_file(str(TOKENIZER))) == [
            f"{each.text}!" for each in prompts
        ]
        row = measure("name", "triton-vllm", 0, endpoint, prompts, closed_loop(2, 4))
        assert (row.completed, row.errors) == (4, [])
        assert row.tokens == sum(each.output_tokens for each in prompts)
        assert row.events_per_token == 8 / row.tokens


def test_tokens_are_counted_by_the_backend_and_events_by_their_text() -> None:
    read = GenerateTarget("http://x", "prompt", 3).read_ok(
        answer(
            {"text_output": "", "num_output_tokens": 1},
            {"text_output": "some more", "num_output_tokens": 2},
        )
    )
    assert (read.output_tokens, list(read.output_s)) == (3, [1.0])


def test_an_error_in_the_stream_fails_the_request() -> None:
    read = GenerateTarget("http://x", "prompt", 3).read_ok(
        answer({"text_output": "some", "num_output_tokens": 1}, {"error": "out of memory"})
    )
    assert (read.outcome, read.error) == ("failed", "out of memory")


def test_the_stub_gets_the_engines_modules_and_a_numpy_that_it_can_use(tmp_path: Path) -> None:
    (tmp_path / "modules" / "numpy").mkdir(parents=True)
    (tmp_path / "modules" / "numpy" / "__init__.py").write_text("__version__ = '2.0'")
    (tmp_path / "modules" / "of_the_engine.py").touch()
    (tmp_path / "modules" / "scipy.py").touch()
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path}/modules exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    programs = stub_environment(tmp_path / "environment", str(python))
    code = "import numpy, of_the_engine; print(numpy.__version__); import scipy"
    done = subprocess.run([programs / "python3", "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.startswith("1.")
    assert "No module named 'scipy'" in done.stderr or "import of scipy halted" in done.stderr


def test_an_engine_of_another_python_is_refused(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho '[[3, 9], []]'\n")
    python.chmod(0o755)
    with pytest.raises(InvalidInput, match="engine-python must be of the version of this one, 3"):
        stub_environment(tmp_path / "environment", str(python))

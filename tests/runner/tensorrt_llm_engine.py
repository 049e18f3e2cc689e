"""A compiled engine's directory as TensorRT-LLM lays it out, its tar, and what serves it here.

What stands in: ``tests/standins/tensorrt_llm`` for the library, ``tests/standins/gpus.py`` for the
GPUs. Served by greedy choice, the stand-in repeats the prompt's tokens.
"""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

from engine.tar.manifest import EngineFacts, Library
from engine.tar.pack import pack
from engine.tar.unpack import unpack
from tests.runner.paced_engine import END_ID, END_TOKEN, PacedModel, make_tokenizer

STANDINS = Path(__file__).resolve().parents[1] / "standins"
MAX_SEQ_LEN = 512
MAX_BATCH_SIZE = 4
MAX_BEAM_WIDTH = 2
SM = 90


def write_engine(
    folder: Path, *, vocab_size: int, world_size: int = 1, version: str = "0.16.0", **rank: object
) -> Path:
    """``config.json`` and ``rankN.engine``; ``rank`` is what the stand-in reads there."""
    folder.mkdir(parents=True, exist_ok=True)
    mapping = {
        "world_size": world_size,
        "tp_size": world_size,
        "pp_size": 1,
        "cp_size": 1,
        "gpus_per_node": 8,
    }
    pretrained = {
        "architecture": "LlamaForCausalLM",
        "dtype": "float16",
        "vocab_size": vocab_size,
        "max_position_embeddings": MAX_SEQ_LEN,
        "mapping": mapping,
        "quantization": {"quant_algo": None, "kv_cache_quant_algo": None},
    }
    build: dict[str, Any] = {
        "max_input_len": 64,
        "max_seq_len": MAX_SEQ_LEN,
        "max_batch_size": MAX_BATCH_SIZE,
        "max_beam_width": MAX_BEAM_WIDTH,
        "max_num_tokens": 8192,
        "kv_cache_type": "PAGED",
        "plugin_config": {
            "remove_input_padding": True,
            "context_fmha": True,
            "use_paged_context_fmha": True,
            "tokens_per_block": 64,
        },
    }
    config = {"version": version, "pretrained_config": pretrained, "build_config": build}
    (folder / "config.json").write_text(json.dumps(config))
    for number in range(world_size):
        (folder / f"rank{number}.engine").write_text(json.dumps({"tokens_per_second": 200, **rank}))
    return folder


def make_compiled_model(folder: Path, *, world_size: int = 1, **rank: object) -> PacedModel:
    """Return the engine in ``folder``: ``engine.tar`` and, unpacked, ``engine``."""
    tokenizer = make_tokenizer()
    source = write_engine(
        folder / "source", vocab_size=tokenizer.get_vocab_size(), world_size=world_size, **rank
    )
    tokenizer.save(str(source / "tokenizer.json"))
    (source / "tokenizer_config.json").write_text(json.dumps({"eos_token": END_TOKEN}))
    (source / "generation_config.json").write_text(json.dumps({"eos_token_id": END_ID}))
    facts = EngineFacts(
        engine_kind="tensorrt_llm",
        library=Library(name="tensorrt_llm", version="0.16.0"),
        sm=SM,
        world_size=world_size,
        dtype="float16",
        max_batch_size=MAX_BATCH_SIZE,
        max_input_len=64,
        max_seq_len=MAX_SEQ_LEN,
    )
    pack(source, facts, folder / "engine.tar")
    with (folder / "engine.tar").open("rb", buffering=0) as stream:
        unpack(stream, folder / "engine")
    return PacedModel(folder / "engine", folder / "engine.tar", tokenizer)


def write_engine_python(folder: Path, *, standins: Path = STANDINS) -> Path:
    """Provide a Python that has the stand-in."""
    return _write_script(
        folder / "python",
        f'PYTHONPATH="$PYTHONPATH:{standins}" exec {shlex.quote(sys.executable)} "$@"',
    )


def _write_script(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path

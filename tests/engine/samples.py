"""Small engines to pack, and tars as somebody else would make them."""

import io
import subprocess
import sys
import tarfile
from collections.abc import Iterable
from pathlib import Path

from engine.tar.manifest import EngineFacts
from engine.tar.pack import pack

FACTS = EngineFacts(engine_kind="transformers", dtype="float32", model_id="acme/tiny", revision="abc")

FILES = {
    "config.json": b'{"model_type": "llama"}',
    "model.safetensors": bytes(range(256)) * 4096,
    "tokenizer.json": b"{}",
    "tokenizer_config.json": b"{}",
    "nested/deeper/notes.txt": b"hello",
}

TENSORRT_CONFIG = b"""{
  "version": "0.16.0",
  "pretrained_config": {
    "architecture": "LlamaForCausalLM", "dtype": "float16",
    "mapping": {"world_size": 2, "tp_size": 2, "pp_size": 1},
    "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": null}
  },
  "build_config": {"max_batch_size": 64, "max_input_len": 1024, "max_seq_len": 2048}
}"""

LEGACY_FILES = {
    "config.json": TENSORRT_CONFIG,
    "rank0.engine": b"zero" * 1000,
    "rank1.engine": b"one" * 1000,
    "tokenizer.json": b"{}",
    "tokenizer_config.json": b"{}",
    "cog-trt-llm-config.yaml": b"model_id: acme/tiny\nhf_token: hf_0123456789abcdefghijklmnop\n",
}


def write_files(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def read_files(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
    files.pop("engine_manifest.json", None)
    return files


def packed(folder: Path, files: dict[str, bytes] = FILES, facts: EngineFacts = FACTS) -> Path:
    tar = folder / "packed" / "engine.tar"
    pack(write_files(folder / "source", files), facts, tar)
    return tar


def handmade_tar(
    members: Iterable[tuple[tarfile.TarInfo | str, bytes]], tar_format: int = tarfile.GNU_FORMAT
) -> bytes:
    """Return a tar of just these members, whatever they are; a name stands for a plain file."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tar_format) as tar:
        for member, content in members:
            info = tarfile.TarInfo(member) if isinstance(member, str) else member
            if info.isreg():
                info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def legacy_tar(*more: tuple[tarfile.TarInfo | str, bytes]) -> bytes:
    return handmade_tar([*LEGACY_FILES.items(), *more])


def everything_in(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def error_on_full_disk(code: str, *arguments: object, stdin: bytes = b"") -> str:
    """Run ``code`` with a limit of files' sizes, at which the kernel refuses a write as on a full disk."""
    limit = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
    command = [sys.executable, "-c", limit + code, *map(str, arguments)]
    return subprocess.run(command, input=stdin, capture_output=True, check=False).stderr.decode()

"""Describe an engine by its manifest."""

import argparse
from pathlib import Path

from builder.model_source import find_source
from cli.family import CHAT_FILES, family_line
from engine.inspect import read_manifest, read_sampling, small_files, verify
from engine.kinds import KINDS
from engine.machine.gpu import Gpu, visible_gpus
from engine.machine.preflight import check_runs_here, installed_version
from engine.machine.python import engine_python
from engine.tar.manifest import Manifest
from engine.words import in_words
from errors.engine_tar import EngineNotFound
from errors.requests import InvalidInput


def run(options: argparse.Namespace) -> int:
    if options.verify and "://" in options.engine:
        raise InvalidInput(
            name="--verify", expected="used with an engine on this machine", value=options.engine
        )
    if not Path(options.engine).is_dir() and find_source(options.engine, kind="transformers") is not None:
        remedy = f"for a model: `cog-triton plan {options.engine}`"
        raise EngineNotFound(place=options.engine, reason="is no engine", remedy=remedy)
    manifest = verify(Path(options.engine)) if options.verify else read_manifest(options.engine)
    say = (lambda line: None) if options.json else print
    print(manifest.model_dump_json(indent=2) if options.json else describe(manifest))
    if sampling := ", ".join(
        f"{name} {value}" for name, value in read_sampling(options.engine, manifest).items()
    ):
        say(f"{'sampling':<12}{sampling} (API requests without their own; GENERATION_CONFIG)")
    with small_files(options.engine, CHAT_FILES) as folder:
        if not options.json and folder is not None and (line := family_line(folder)) is not None:
            print(line)
    if options.verify:
        hashes = [each.sha256 is not None for each in manifest.files.values()]
        what = "size and SHA-256" if all(hashes) else "size, and where it has one the SHA-256,"
        say(f"verified    every file has the {what} of the manifest")
    if options.gpu:
        gpus = visible_gpus()
        say(f"{'here':<12}{describe_gpus(gpus)}")
        check_runs_here(manifest, gpus, installed_version(engine_python()))
        say(f"{'verdict':<12}this machine can run it")
    return 0


def describe_gpus(gpus: tuple[Gpu, ...]) -> str:
    return "; ".join(map(_describe_gpu, gpus)) or "no NVIDIA GPU"


def _describe_gpu(gpu: Gpu) -> str:
    facts = [gpu.name or "NVIDIA GPU", f"SM {gpu.sm}"]
    if gpu.free_bytes is not None and gpu.total_bytes is not None:
        facts.append(f"{in_words(gpu.free_bytes)} of {in_words(gpu.total_bytes)} free")
    return ", ".join(facts)


def describe(manifest: Manifest) -> str:
    gpu = f"NVIDIA GPU, SM {manifest.sm}" if manifest.sm else KINDS[manifest.engine_kind].runs_on
    library = f"{manifest.library.name} {manifest.library.version}" if manifest.library else None
    model = (
        manifest.model_id and f"{manifest.model_id}{f' at {manifest.revision}' if manifest.revision else ''}"
    )
    size_bytes = sum(each.size_bytes for each in manifest.files.values())
    rows = {
        "engine": manifest.engine_kind,
        "model": model,
        "runs on": gpu if manifest.world_size == 1 else f"{gpu}, {manifest.world_size} of them",
        "library": library,
        "weights": ", ".join(filter(None, (manifest.dtype, manifest.quantization))),
        "sequence": manifest.max_seq_len and f"{manifest.max_seq_len} tokens, prompt and output",
        "batch": manifest.max_batch_size and f"{manifest.max_batch_size} sequences",
        "files": f"{len(manifest.files)}, {in_words(size_bytes)}",
    }
    return "\n".join(f"{name:<12}{value}" for name, value in rows.items() if value)

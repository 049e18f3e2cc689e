"""Proves on a GPU that a slimmed PyTorch computes what the whole one does, bit for bit.

    python3 scripts/prove_slimming --sm 90 --other-sm 86 --site ENV/lib/python3.12/site-packages --work WORK

Run it with the Python of the environment that has PyTorch, transformers and expecttest (`--path` takes a
folder with what is missing there). It copies torch and nvidia into the work folder, by hard links where that
goes, slims one copy to the GPU's architecture and one to another, and does the same work in each, with
CUDA libraries of that copy alone:

* twice in the whole one, which shows what is not the same from run to run anyway,
* in the slim one: every result must be the same bits, every error the same error,
* the same with all kernels loaded at once (CUDA_MODULE_LOADING=EAGER),
* in the one for the other architecture: this must fail, with CUDA's "no kernel image is available",
* kernels of three small libraries, built here with nvcc, whose containers hold one kind of code each.

Exit status 0 if all of that is so.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
SLIM = HERE.parents[1] / "nix" / "slim"
COPIED = ("torch", "nvidia")
NO_IMAGE = "no kernel image is available"
WORKLOAD_TIMEOUT_S = 210


@dataclass
class Run:
    """What the workload did in one environment: results and errors by name, and the libraries it loaded."""

    digests: dict[str, str] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    libraries: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def outcomes(self) -> dict[str, str]:
        return self.digests | self.errors


def main() -> None:
    """Runs the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sm", type=int, required=True, help="the architecture of the GPU that is here")
    parser.add_argument("--other-sm", type=int, required=True, help="one whose code does not run here")
    parser.add_argument("--site", type=Path, required=True, help="the site-packages with torch and nvidia")
    parser.add_argument("--work", type=Path, required=True, help="a folder for the copies")
    parser.add_argument("--path", default="", help="more folders to import from, as in PYTHONPATH")
    parser.add_argument("--only", default="", help="only the work that has this in its name")
    parser.add_argument("--device", default="cuda", help=argparse.SUPPRESS)
    parser.add_argument("--results", type=Path, help="a folder to keep the results in")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor() as pool:
        probes = pool.submit(_probe, options.work / "probe", options.sm)
        findings = _compare_environments(options, pool)
        findings += probes.result()
    for finding in findings:
        print(f"FAILED: {finding}")
    print("proof: failed" if findings else "proof: complete", flush=True)
    raise SystemExit(bool(findings))


def _compare_environments(options: argparse.Namespace, pool: ThreadPoolExecutor) -> list[str]:
    copies = {name: options.work / name for name in ("whole", "slim", "other")}
    for copy in copies.values():
        _copy(options.site, copy)
    for name, sm in (("slim", options.sm), ("other", options.other_sm)):
        _slim("--sm", sm, copies[name], expected=0)
        _slim("--check", sm, copies[name], expected=0, quiet=True)
    _slim("--check", options.sm, copies["whole"], expected=1, quiet=True)
    for name, copy in copies.items():
        print(f"{name}: {_disk_megabytes(copy):,} MB on disk", flush=True)

    submitted = {
        name: pool.submit(_workload, name, copies[copy], loading, options)
        for name, copy, loading in (
            ("whole", "whole", "LAZY"),
            ("whole again", "whole", "LAZY"),
            ("slim", "slim", "LAZY"),
            ("whole eager", "whole", "EAGER"),
            ("slim eager", "slim", "EAGER"),
            ("other", "other", "LAZY"),
        )
    }
    runs = {name: future.result() for name, future in submitted.items()}
    print(", ".join(f"{name}: {run.seconds:.0f} s" for name, run in runs.items()))
    findings = [
        f"{name}: {library} was loaded"
        for name, run in runs.items()
        for library in run.libraries
        if any(Path(library).is_relative_to(options.site.resolve() / part) for part in COPIED)
    ]
    findings += _same(runs["whole"], runs["whole again"], runs["slim"], "slim")
    findings += _same(runs["whole"], runs["whole eager"], runs["slim eager"], "slim, loaded at once")
    return findings + _fails_plainly(runs["whole"], runs["other"])


def _same(whole: Run, again: Run, slim: Run, name: str) -> list[str]:
    """What a slim run did differently, of all that two whole runs did alike."""
    if (
        not whole.digests
        or set(whole.outcomes) != set(again.outcomes)
        or set(whole.outcomes) != set(slim.outcomes)
    ):
        sizes = [len(run.outcomes) for run in (whole, again, slim)]
        return [f"{name}: not the same work was done everywhere: {sizes}"]
    varying = {key for key, outcome in whole.outcomes.items() if again.outcomes[key] != outcome}
    alike = {key for key, outcome in whole.outcomes.items() if slim.outcomes[key] == outcome}
    compared = set(whole.outcomes) - varying
    results = compared & alike & set(whole.digests)
    print(f"{name}: {len(compared & alike)} of {len(compared)} outcomes are the same, {len(results)} of them")
    print(f"    results bit for bit, the others errors; {len(varying)} vary anyway: {sorted(varying)}")
    different = sorted(compared - alike)
    return [f"{name}: {key}: {whole.outcomes[key]} became {slim.outcomes[key]}" for key in different]


def _fails_plainly(whole: Run, other: Run) -> list[str]:
    failed = {key: error for key, error in other.errors.items() if key in whole.digests}
    plain = [key for key, error in failed.items() if NO_IMAGE in error]
    rest = Counter(error for error in failed.values() if NO_IMAGE not in error)
    print(f"other: {len(failed)} of {len(whole.digests)} fail, {len(plain)} of them with {NO_IMAGE!r}")
    for error, count in rest.most_common(12):
        print(f"    {count} x {error}")
    still = sorted(set(other.digests) & set(whole.digests))
    print(f"    still {len(still)} results, such as {', '.join(still[:12])}")
    return [] if plain else [f"the environment for the other architecture fails without {NO_IMAGE!r}"]


def _workload(name: str, copy: Path, loading: str, options: argparse.Namespace) -> Run:
    results = (options.results or options.work) / f"{name.replace(' ', '-')}.jsonl"
    environment = _environment(copy, options.path) | {"CUDA_MODULE_LOADING": loading}
    command = [
        sys.executable,
        str(HERE / "workload.py"),
        str(results),
        "--only",
        options.only,
        "--device",
        options.device,
    ]
    started = time.monotonic()
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=WORKLOAD_TIMEOUT_S, check=False
        )
        if done.returncode:
            print(f"{name}: exit status {done.returncode}: {done.stderr[-2000:]}")
    except subprocess.TimeoutExpired:
        print(f"{name}: still at work after {WORKLOAD_TIMEOUT_S} s")
    run = Run(seconds=time.monotonic() - started)
    for line in results.read_text().splitlines() if results.exists() else []:
        outcome = json.loads(line)
        if "name" not in outcome:
            run.libraries = outcome["libraries"]
        elif "digest" in outcome:
            run.digests[outcome["name"]] = outcome["digest"]
        else:
            run.errors[outcome["name"]] = outcome["error"]
    own = [library for library in run.libraries if Path(library).is_relative_to(copy.resolve())]
    print(
        f"{name}: {len(own)} libraries of {copy}, {len(run.digests)} results, {len(run.errors)} errors",
        flush=True,
    )
    return run


def _environment(copy: Path, path: str) -> Mapping[str, str]:
    parts = [str(copy.resolve()), *filter(None, [path])]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(parts),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HF_HUB_OFFLINE": "1",
    }


def _probe(folder: Path, sm: int) -> list[str]:
    """Launches the kernels of the small libraries, whole and slim, loaded as needed and at once."""
    whole, slim = folder / "whole", folder / "slim"
    whole.mkdir(parents=True, exist_ok=True)
    subprocess.run(["sh", str(HERE / "probe" / "build.sh"), str(HERE / "probe"), str(whole)], check=True)
    shutil.copytree(whole, slim, dirs_exist_ok=True)
    _slim("--sm", sm, slim, expected=0)
    findings = []
    for loading in ("LAZY", "EAGER"):
        before, after = (_launched(libraries, loading) for libraries in (whole, slim))
        print(f"probe, {loading}: whole {before}\nprobe, {loading}: slim  {after}", flush=True)
        if before != after:
            findings.append(f"probe, {loading}: {before} became {after}")
    return findings


def _launched(folder: Path, loading: str) -> str:
    command = [sys.executable, str(HERE / "probe" / "run.py"), str(folder)]
    environment = {**os.environ, "CUDA_MODULE_LOADING": loading, "CUDA_CACHE_DISABLE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    return done.stdout.strip() or f"exit status {done.returncode}: {done.stderr.strip()}"


def _slim(what: str, sm: int, folder: Path, *, expected: int, quiet: bool = False) -> None:
    command = [sys.executable, str(SLIM), what, str(sm), "-j", str(os.cpu_count()), str(folder)]
    started = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(f"slim {what} {sm} {folder}: {done.returncode} in {time.monotonic() - started:.1f} s", flush=True)
    if not quiet:
        print(done.stdout, flush=True)
    if done.returncode != expected:
        raise SystemExit(f"slim {what} {sm} {folder} ended with {done.returncode}: {done.stderr}")


def _copy(site: Path, copy: Path) -> None:
    for name in COPIED:
        target = copy / name
        shutil.rmtree(target, ignore_errors=True)
        try:
            shutil.copytree(site / name, target, copy_function=os.link, symlinks=True)
        except (OSError, shutil.Error):  # another file system
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(site / name, target, symlinks=True)


def _disk_megabytes(folder: Path) -> int:
    return sum(path.lstat().st_blocks for path in folder.rglob("*")) * 512 // 10**6


if __name__ == "__main__":
    main()

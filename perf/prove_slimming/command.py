"""Prove on a GPU that a slimmed PyTorch computes what the whole one does, bit for bit.

    python -m perf prove-slimming --sm 90 --other-sm 86 --site ENV/lib/python3.12/site-packages --work WORK

Run it with the Python of the environment that has PyTorch, transformers and expecttest (`--path` names more
folders to import from). It copies torch and nvidia into the work folder, by hard links where possible, slims
one copy to the GPU's architecture and one to another, and does the same work with each copy's CUDA libraries:

* with the whole one, twice, and once with all kernels loaded at once (CUDA_MODULE_LOADING=EAGER): results
  that vary are left out,
* with the slim one, lazily and at once: every result must be the same bits, every error the same error,
* with the one for the other architecture: this must fail, with CUDA's "no kernel image is available",
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
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from perf.options import Options

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SLIM = ROOT / "nix" / "slim"
COPIED = ("torch", "nvidia")
VARIES = "varies"  # as workload.py says it
NO_IMAGE = "no kernel image is available"
WORKLOAD_TIMEOUT_S = 1800


@dataclass
class Run:
    """What the workload did in one environment: outcomes by name, and the libraries it loaded."""

    outcomes: dict[str, str] = field(default_factory=dict)
    libraries: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def results(self) -> set[str]:
        """The names of what ended without an error."""
        return {name for name, outcome in self.outcomes.items() if ": " not in outcome}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Options("prove-slimming", __doc__)
    parser.add_argument("--sm", type=int, required=True, help="the architecture of the GPU that is here")
    parser.add_argument("--other-sm", type=int, required=True, help="one whose code does not run here")
    parser.add_argument("--site", type=Path, required=True, help="the site-packages with torch and nvidia")
    parser.add_argument("--work", type=Path, required=True, help="a folder for the copies")
    parser.add_argument("--path", default="", help="more folders to import from, as in PYTHONPATH")
    parser.add_argument("--only", default="", help="only the work that has this in its name")
    parser.add_argument("--device", default="cuda", help=argparse.SUPPRESS)
    parser.add_argument("--results", type=Path, help="a folder to keep the results in")
    options = parser.parse_args(arguments)
    options.work.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor() as pool:
        probes = pool.submit(_probe, options.work / "probe", options.sm)
        findings = _compare_environments(options, pool)
        findings += probes.result()
    for finding in findings:
        print(f"FAILED: {finding}")
    print("proof: failed" if findings else "proof: complete", flush=True)
    return bool(findings)


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
    wholes = [runs["whole"], runs["whole again"], runs["whole eager"]]
    findings += _same(wholes, runs["slim"], "slim") + _same(wholes, runs["slim eager"], "slim eager")
    return findings + _fails_plainly(runs["whole"], runs["other"])


def _same(wholes: Sequence[Run], slim: Run, name: str) -> list[str]:
    """What a slim run did differently, of all that the whole runs did alike."""
    runs = [*wholes, slim]
    finished = set.intersection(*(set(run.outcomes) for run in runs))
    varying = set()
    for key in finished:
        outcomes = {run.outcomes[key] for run in wholes}
        if len(outcomes) > 1 or VARIES in outcomes:
            varying.add(key)
    expected = {key: wholes[0].outcomes[key] for key in sorted(finished - varying)}
    different = [key for key, outcome in expected.items() if slim.outcomes[key] != outcome]
    results = wholes[0].results.intersection(expected).difference(different)
    print(f"{name}: {len(results)} results the same bit for bit, and {len(different)} outcomes different;")
    print(f"    the same errors: {len(set(expected) - wholes[0].results)}")
    print(f"    left out, since they vary anyway: {len(varying)}: {', '.join(sorted(varying))}")
    findings = [f"{name}: {key}: {expected[key]} became {slim.outcomes[key]}" for key in different]
    if not finished or any(set(run.outcomes) != finished for run in runs):
        findings.append(f"{name}: not all work was finished: {[len(run.outcomes) for run in runs]}")
    return findings


def _fails_plainly(whole: Run, other: Run) -> list[str]:
    failed = {key: other.outcomes[key] for key in whole.results & set(other.outcomes) - other.results}
    plain = [key for key, error in failed.items() if NO_IMAGE in error]
    rest = Counter(error for error in failed.values() if NO_IMAGE not in error)
    still = sorted(whole.results & other.results)
    print(f"other: {len(failed)} of {len(whole.results)} fail, {len(plain)} of them with {NO_IMAGE!r}")
    for error, count in rest.most_common(12):
        print(f"    {count} x {error}")
    print(f"    {len(still)} need no kernel: {', '.join(still)}")
    return [] if plain else [f"the environment for the other architecture fails without {NO_IMAGE!r}"]


def _workload(name: str, copy: Path, loading: str, options: argparse.Namespace) -> Run:
    results = (options.results or options.work) / f"{name.replace(' ', '-')}.jsonl"
    environment = _environment(copy, options.path) | {"CUDA_MODULE_LOADING": loading}
    arguments = [str(results.absolute()), "--only", options.only, "--device", options.device]
    command = [sys.executable, "-m", "perf.prove_slimming.workload", *arguments]
    started = time.monotonic()
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=WORKLOAD_TIMEOUT_S, check=False
        )
        if done.returncode:
            print(f"{name}: exit status {done.returncode}: {done.stderr[-2000:]}")
    except subprocess.TimeoutExpired:
        print(f"{name}: still at work after {WORKLOAD_TIMEOUT_S} s", flush=True)
    run = Run(seconds=time.monotonic() - started)
    for line in results.read_text().splitlines() if results.exists() else []:
        content = json.loads(line)
        if "name" in content:
            run.outcomes[content["name"]] = content["outcome"]
        else:
            run.libraries = content["libraries"]
    own = [library for library in run.libraries if Path(library).is_relative_to(copy.resolve())]
    print(f"{name}: {len(own)} libraries of {copy}, {len(run.results)} results", flush=True)
    return run


def _environment(copy: Path, path: str) -> dict[str, str]:
    parts = [str(copy.resolve()), str(ROOT), *filter(None, [path])]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(parts),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
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

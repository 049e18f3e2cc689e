"""Prove on a GPU that a slimmed PyTorch computes what the whole one does, bit for bit.

    python -m perf prove-slimming --sm 90 --other-sm 86 --site ENV/lib/python3.12/site-packages --work WORK

Run it with the Python of the environment that has PyTorch, transformers and expecttest. It copies torch and
nvidia into the work folder, by hard links where possible, slims one copy to the GPU's architecture and one to
another, and does the same work with each copy's CUDA libraries:

* with the whole one, twice: results that vary are left out,
* with the slim one: every result must be the same bits, every error the same error,
* with the one for the other architecture: this must fail, with CUDA's "no kernel image is available".

With CUDA_MODULE_LOADING=EAGER in the environment all kernels are loaded at once. Exit status 0 if all of that
is so.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from engine.machine.root import SOURCE_ROOT
from perf.options import Options

_COPIED = ("torch", "nvidia")
_VARIES = "varies"  # as workload.py says it
_NO_IMAGE = "no kernel image is available"
_WORKLOAD_TIMEOUT_S = 1800


@dataclass
class Run:
    """What the workload did in one environment: outcomes by name, and the libraries it loaded."""

    outcomes: dict[str, str] = field(default_factory=dict)
    libraries: list[str] = field(default_factory=list)

    @property
    def results(self) -> set[str]:
        """The names of what ended without an error."""
        return {name for name, outcome in self.outcomes.items() if ": " not in outcome}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Options("prove-slimming", __doc__)
    parser.add_argument("--sm", type=int, required=True, help="the architecture of the GPU that is here")
    parser.add_argument("--other-sm", type=int, required=True, help="one whose code does not run here")
    parser.add_argument("--site", type=Path, required=True, help="the site-packages with torch and nvidia")
    parser.add_argument("--work", type=Path, required=True, help="a folder for the copies and the results")
    parser.add_argument("--only", default="", help="only the work that has this in its name")
    options = parser.parse_args(arguments)
    copies = {name: options.work.resolve() / name for name in ("whole", "slim", "other")}
    for copy in copies.values():
        _copy(options.site, copy)
    for name, sm in (("slim", options.sm), ("other", options.other_sm)):
        _slim("--sm", sm, copies[name], expected=0)
        _slim("--check", sm, copies[name], expected=0)
    _slim("--check", options.sm, copies["whole"], expected=1)
    environments = {**copies, "whole again": copies["whole"]}
    with ThreadPoolExecutor() as pool:
        submitted = {name: pool.submit(_run, options, name, copy) for name, copy in environments.items()}
    runs = {name: future.result() for name, future in submitted.items()}
    findings = [
        f"{name}: {library} was loaded"
        for name, run in runs.items()
        for library in run.libraries
        if any(Path(library).is_relative_to(options.site.resolve() / part) for part in _COPIED)
    ]
    findings += _differences([runs["whole"], runs["whole again"]], runs["slim"])
    findings += _unexpected(runs["whole"], runs["other"])
    for finding in findings:
        print(f"FAILED: {finding}")
    print("proof: failed" if findings else "proof: complete", flush=True)
    return bool(findings)


def _differences(wholes: Sequence[Run], slim: Run) -> list[str]:
    """What the slim run did differently, of all that the whole runs did alike."""
    names = [set(run.outcomes) for run in (*wholes, slim)]
    expected = {
        name: wholes[0].outcomes[name]
        for name in sorted(set.intersection(*names))
        if _VARIES not in (outcomes := {run.outcomes[name] for run in wholes}) and len(outcomes) == 1
    }
    different = [name for name, outcome in expected.items() if slim.outcomes[name] != outcome]
    same = wholes[0].results.intersection(expected).difference(different)
    print(f"slim: {len(same)} results the same bit for bit, and {len(different)} outcomes different;")
    print(f"    the same errors: {len(set(expected) - wholes[0].results)}")
    varying = sorted(names[0].difference(expected))
    print(f"    left out, since they vary anyway: {len(varying)}: {', '.join(varying)}")
    findings = [f"slim: {name}: {expected[name]} became {slim.outcomes[name]}" for name in different]
    if not same or any(each != names[0] for each in names):
        findings.append(f"not all work was finished: {[len(each) for each in names]}")
    return findings


def _unexpected(whole: Run, other: Run) -> list[str]:
    """Work that fails for the other architecture otherwise than it must."""
    failed = {name: other.outcomes[name] for name in whole.results & set(other.outcomes) - other.results}
    plain = [name for name, error in failed.items() if _NO_IMAGE in error]
    still = sorted(whole.results & other.results)
    print(f"other: {len(failed)} of {len(whole.results)} fail, {len(plain)} of them with {_NO_IMAGE!r}")
    print(f"    {len(still)} need no kernel: {', '.join(still)}")
    return [] if plain else [f"the environment for the other architecture fails without {_NO_IMAGE!r}"]


def _run(options: argparse.Namespace, name: str, copy: Path) -> Run:
    results = options.work.resolve() / f"{name.replace(' ', '-')}.jsonl"
    paths = [str(copy), str(SOURCE_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        "HF_HUB_OFFLINE": "1",
    }
    command = [sys.executable, "-m", "perf.prove_slimming.workload", str(results), "--only", options.only]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=_WORKLOAD_TIMEOUT_S, check=False
        )
        if done.returncode:
            print(f"{name}: exit status {done.returncode}: {done.stderr[-2000:]}")
    except subprocess.TimeoutExpired:
        print(f"{name}: still at work after {_WORKLOAD_TIMEOUT_S} s", flush=True)
    run = Run()
    for line in results.read_text().splitlines() if results.exists() else []:
        content = json.loads(line)
        if "name" in content:
            run.outcomes[content["name"]] = content["outcome"]
        else:
            run.libraries = content["libraries"]
    own = [library for library in run.libraries if Path(library).is_relative_to(copy)]
    print(f"{name}: {len(own)} libraries of {copy}, {len(run.results)} results", flush=True)
    return run


def _slim(what: str, sm: int, folder: Path, *, expected: int) -> None:
    slim = [sys.executable, str(SOURCE_ROOT / "nix" / "slim"), "-j", str(os.cpu_count())]
    command = [*slim, what, str(sm), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    print(f"slim {what} {sm} {folder}: {done.returncode}", flush=True)
    if done.returncode != expected:
        raise SystemExit(f"slim {what} {sm} {folder} ended with {done.returncode}: {done.stderr}")


def _copy(site: Path, copy: Path) -> None:
    for name in _COPIED:
        target = copy / name
        shutil.rmtree(target, ignore_errors=True)
        try:
            shutil.copytree(site / name, target, copy_function=os.link, symlinks=True)
        except (OSError, shutil.Error):  # another file system
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(site / name, target, symlinks=True)

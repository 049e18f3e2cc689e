"""An engine to be served on this machine: a folder whose weights are links to the downloaded files.

    <cache>/models/<name>-<digest>/   an engine, by its build config and the model's commit or files
    <cache>/models/last/<digest>      the engine that a build config last led to, if the Hub can't be asked

``python -m builder.engine_here MODEL`` is for the runner, which does not import the builder: it prints what
happens, and the engine's folder in the last line.
"""

import hashlib
import json
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from builder.build import open_work, run_plan
from builder.config.config import BuildConfig
from builder.config.file import ConfigFile
from builder.kinds import engine_plan
from builder.machine_fit import fit_here
from builder.model_source import find_source, missing_environment
from builder.progress import progress_lines
from builder.steps import Work, folder_step
from builder.survey import survey
from builder.weights.files import build_error, cache_folder
from engine.directory import load
from engine.kinds import KINDS
from engine.lock import locked
from engine.machine.gpu import visible_gpus
from engine.progress import Progress
from engine.staging import discard
from errors.build import DownloadFailed
from errors.coded_error import CodedError
from errors.engine_tar import EngineNotFound
from errors.machine import GpuRequired

Report = Callable[[str], None]


def engine_here(file: ConfigFile, *, report: Report = print, progress: Progress | None = None) -> Path:
    """Return the folder of the engine of ``file``, and make the engine if it is not there.

    A table reports the memory that the model needs before its weights are downloaded. A model that does not
    fit is refused.
    """
    if KINDS[file.config.engine_kind].needs_gpu and not visible_gpus():
        raise GpuRequired(engine_kind=file.config.engine_kind)
    models = cache_folder() / "models"
    try:
        (models / "last").mkdir(parents=True, exist_ok=True)
        last = models / "last" / config_digest(file.config, file.folder)
        try:
            with open_work(file, report, progress) as work:
                engine = _made(file, work, models)
        except DownloadFailed as exc:
            engine = Path(last.read_text()) if last.exists() else models / "none"
            if not is_whole(engine):
                raise
            report(f"the Hub can't be asked ({exc.facts['reason']}); serving what was downloaded before")
        last.write_text(str(engine))
    except OSError as exc:
        raise build_error(exc, models) from exc
    return engine


def _made(file: ConfigFile, work: Work, models: Path) -> Path:
    planned = engine_plan(file.config)
    found = survey(file.config, work, with_weights=planned.takes_weights)
    planned.check_values(found.values)
    fit = fit_here(file, found, models)
    name = re.sub(r"[^\w.-]+", "--", file.model_name)[-80:]
    engine = models / f"{name}-{config_digest(fit.config, file.folder, found.identity)}"
    lock_path = engine.with_name(f".{engine.name}.lock")
    with locked(lock_path, lambda: work.report("waiting for another process that makes this engine")):
        if fit.problem is not None or not is_whole(engine):
            for line in fit.lines():
                work.report(line)
            if hint := missing_environment(file.config.engine_kind):
                work.report(hint)
        if fit.problem is not None:
            raise fit.problem
        if not is_whole(engine):
            if engine.exists():
                discard(engine)
            work.config, work.destination, work.serves_here = fit.config, engine, True
            run_plan(engine_plan(fit.config), file.notes, work, folder_step())
    return engine


def is_whole(engine: Path) -> bool:
    """Return True if every file is there: a link to a file that is gone does not count."""
    try:
        load(engine)
    except CodedError:
        return False
    return True


def config_digest(config: BuildConfig, folder: Path | None, identity: str = "") -> str:
    named = {"revision"} if identity else set()  # The identity has its commit.
    facts = [config.model_dump(mode="json", exclude=named), str(folder), identity]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def main(model: str) -> int:
    print_line = partial(print, flush=True)
    try:
        file = find_source(model)
        if file is None:
            raise EngineNotFound(place=model, reason="is neither a model nor a file or folder here")
        print(engine_here(file, report=print_line, progress=progress_lines(print_line)))
    except CodedError as exc:
        print(exc, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

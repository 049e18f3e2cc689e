"""A model's tokenizer without its weights, as a folder on this machine that the runner's API server reads.

<cache>/tokenizers/<name>-<digest>/   tokenizer, chat template, end tokens and lengths of a model
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from builder.build import open_work, run_plan
from builder.config.file import ConfigFile, checked_config
from builder.engine_here import config_digest, is_whole
from builder.model_source import find_source
from builder.steps import EnginePlan, Step, Work, download_step, folder_step, place_fast_tokenizer
from builder.weights.checkpoint import read_config
from builder.weights.files import build_error, cache_folder, place
from engine.directory import load
from engine.progress import Progress
from engine.staging import discard
from engine.tar.manifest import MANIFEST_NAME, EngineFacts
from errors.build import DownloadFailed
from errors.settings import InvalidSetting

_KIND = "paced"
"""Kind that needs no more than a tokenizer."""
_END_IDS = "generation_config.json"
_CONFIG = "config.json"
_TOKENIZER = "a model's folder, a Hugging Face model (owner/name, owner/name@revision) or an engine's folder"


def tokenizer_here(named: str, *, report: Callable[[str], None], progress: Progress) -> Path:
    """Return the folder of an engine's files without weights; ``named`` itself if it is an engine's folder.

    Raises E1006 if ``named`` is neither an engine nor a model, and the errors of a build.
    """
    file = _source(named)
    if file is None:
        return load(Path(named)).path
    folder = cache_folder() / "tokenizers"
    name = re.sub(r"[^\w.-]+", "--", file.model_name)[-80:]
    target = folder / f"{name}-{config_digest(file.config, file.folder)}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open_work(file, report, progress) as work:
            work.destination = target
            run_plan(_Plan(file.config), (), work, folder_step())
    except DownloadFailed as exc:
        if not is_whole(target):
            raise
        report(f"the Hub can't be asked ({exc.facts['reason']}); using what was downloaded before")
    except OSError as exc:
        raise build_error(exc, target) from exc
    return target


class _Plan(EnginePlan):
    takes_weights = False

    def steps(self) -> Sequence[Step]:
        return [
            download_step(self.config, with_weights=False),
            Step("tokenizer", place_fast_tokenizer),
            Step("end tokens and lengths", _place_facts),
        ]


def _place_facts(work: Work) -> None:
    for name in (_CONFIG, _END_IDS):
        if name in work.model.files:
            place(work.model.files[name], work.directory / name)
    known = read_config(work.model) if _CONFIG in work.model.files else None
    length = known.max_position_embeddings if known is not None else None
    work.facts = EngineFacts(engine_kind=_KIND, max_seq_len=length)
    if work.destination.exists():
        discard(work.destination)


def _source(named: str) -> ConfigFile | None:
    """Return the build config of a model's tokenizer; None: it names an engine's folder."""
    path = Path(named)
    file = find_source(named, kind=_KIND)
    has_tokenizer = any((path / name).exists() for name in ("tokenizer.json", "tokenizer.model"))
    if file is None and has_tokenizer and not _is_engine(path):
        keys = {"engine": _KIND, "model_path": path.absolute().name or "."}
        file = ConfigFile(checked_config(keys), hf_token=None, folder=path.absolute().parent, notes=())
    has_gguf = file is not None and file.config.gguf_file is not None
    if has_gguf or (file is None and not _is_engine(path)):
        raise InvalidSetting(name="--tokenizer", expected=_TOKENIZER, value=named)
    return file


def _is_engine(folder: Path) -> bool:
    return (folder / MANIFEST_NAME).exists() or any(folder.glob("*rank*.engine"))

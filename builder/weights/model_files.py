"""Files of a model: which of them belong to an engine, and what identifies their content."""

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pydantic import SecretStr

from builder.config.config import WeightFormat
from engine.progress import Progress
from errors.build_config import ModelUnusable, WeightFormatMissing

TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("chat_template.jinja", "chat_template.json"),
)
"""Files of a tokenizer that the serving side reads; what a slow one is made of stays outside."""

TEMPLATES = "additional_chat_templates/*.jinja"
"""Further chat templates by name, as transformers saves them."""

_SUPPORTING = ("*.json", "*.jinja", "tokenizer.model", "spiece.model", "vocab.txt", "merges.txt")
_NOT_WEIGHTS = re.compile(r"(adapter|optimizer|scheduler|training_args|rng_state|random_states)")
_SHARD = r"-\d{5}-of-\d{5}"
_WEIGHTS: Mapping[WeightFormat, tuple[str, ...]] = {
    "safetensors": (r"model\.safetensors", rf"model{_SHARD}\.safetensors", r".*\.safetensors"),
    "bin": (r"pytorch_model\.bin", rf"pytorch_model{_SHARD}\.bin", r".*\.bin"),
    "pt": (r".*\.(pt|pth)",),
}
"""Formats by preference, and within each the ways of naming: one set of weights, not all."""
_WHOLE: Mapping[WeightFormat, str] = {"safetensors": "model.safetensors", "bin": "pytorch_model.bin"}
"""File of weights that are not sharded. If it is there, nothing reads the index."""
_NUMBERED = re.compile(r"(.*-)(\d+)-of-(0*\d{1,5})(\.\w+)")


@dataclass(frozen=True)
class Model:
    """Files of a model, by name, wherever they lie; ``revision`` is the Hub's commit."""

    name: str
    revision: str | None
    files: Mapping[str, Path]

    def unusable(self, problem: str) -> ModelUnusable:
        return ModelUnusable(model=self.name, problem=problem)


@dataclass(kw_only=True)
class Sources:
    """Places that models come from, and what their downloads need."""

    folders: Sequence[Path]
    """Folders that ``model_path`` may be relative to; the first that has it counts."""
    hf_token: SecretStr | None
    cache: Path
    scratch: Path
    """Folder on the file system of ``cache``."""
    progress: Progress | None = None
    only_public: bool = False
    """True if URLs in the config must not lead to private addresses."""


def supporting_names(names: Iterable[str], *, code: bool) -> list[str]:
    """Return the names of configuration and tokenizer files, and with ``code`` of Python files."""
    patterns = (*_SUPPORTING, TEMPLATES, *(("*.py",) if code else ()))
    return [name for name in names if any(_matches(name, pattern) for pattern in patterns)]


def tokenizer_names(names: Iterable[str]) -> list[str]:
    """Return the names of the files that the serving side reads of a tokenizer."""
    return [name for name in names if name in TOKENIZER_FILES or _matches(name, TEMPLATES)]


def _matches(name: str, pattern: str) -> bool:
    """Match whole names. NOTE: by ``fnmatch`` a star stands for slashes too."""
    return PurePosixPath("/", name).match(f"/{pattern}")


def weight_names(
    model: str, names: Iterable[str], wanted: WeightFormat | None
) -> tuple[WeightFormat, list[str]]:
    """Return the best format that ``names`` offer (or ``wanted``) and one set of weights in it."""
    names = list(names)
    candidates = [name for name in names if "/" not in name and not _NOT_WEIGHTS.match(name)]
    sets = {weight_format: _one_set(candidates, weight_format) for weight_format in _WEIGHTS}
    offered = {weight_format: found for weight_format, found in sets.items() if found}
    if wanted is None and offered:
        return next(iter(offered.items()))
    if wanted in offered:
        return wanted, offered[wanted]
    if offered:
        remedy = f"it has {' and '.join(offered)}: set weight_format to that or leave it out"
    elif gguf := [name for name in names if name.endswith(".gguf")]:
        remedy = f"set gguf_file to one of {', '.join(gguf[:5])} (on the command line: owner/name:{gguf[0]})"
    elif index := next((name for name in map(index_name, _WEIGHTS) if name in names), None):
        remedy = f"it lacks all files that its {index} names: download it again"
    else:
        remedy = "it has none in another format either: choose another model or revision"
    raise WeightFormatMissing(model=model, weight_format=wanted or " or ".join(_WEIGHTS), remedy=remedy)


def _one_set(names: list[str], weight_format: WeightFormat) -> list[str]:
    for pattern in _WEIGHTS[weight_format]:
        if found := sorted(name for name in names if re.fullmatch(pattern, name)):
            return found
    return []


def index_name(weight_format: WeightFormat, weights: Collection[str] = ()) -> str | None:
    """Return the name of the index of sharded weights; None if there is none for such ``weights``."""
    whole = _WHOLE.get(weight_format)
    return None if whole is None or whole in weights else f"{whole}.index.json"


def missing_shards(wanted: Iterable[str], names: Iterable[str]) -> list[str]:
    """Return files that the number of one of ``wanted`` implies (``-1-of-3``) and ``names`` lacks."""
    shards: set[str] = set()
    for name in wanted:
        if name not in shards and (found := _NUMBERED.fullmatch(name)):
            begin, number, count, end = found.groups()
            width = len(number)
            shards |= {f"{begin}{each:0{width}}-of-{count}{end}" for each in range(1, int(count) + 1)}
    return sorted(shards.difference(names))


def identity(model: Model) -> str:
    """Return the model's revision; for a folder what its files look like."""
    return model.revision if model.revision is not None else _digest(model.files.items())


def looks(path: Path) -> str:
    """Return a digest of names, sizes and times of change of the file or folder at ``path``."""
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    return _digest((each.relative_to(path).as_posix(), each) for each in files)


def _digest(files: Iterable[tuple[str, Path]]) -> str:
    digest = hashlib.sha256()
    for name, path in sorted(files):
        status = path.stat()
        digest.update(f"{name} {status.st_size} {status.st_mtime_ns}\n".encode())
    return f"files {digest.hexdigest()[:16]}"

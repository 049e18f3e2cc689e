"""How an embedding model makes one vector of its tokens' vectors: what its sentence-transformers files say.

    modules.json                  the steps: Transformer, Pooling and, in many models, Normalize
    1_Pooling/config.json         the kind of pooling
    sentence_bert_config.json     the longest input in tokens

An engine is an embedding engine if it has ``modules.json``; any other one generates text.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from errors.engine_tar import PoolingUnsupported

MODULES_NAME = "modules.json"
PoolingMode = Literal["mean", "cls", "lasttoken"]
"""Mean of all tokens' vectors, the first token's, or the last one's; by sentence-transformers' names."""

_MODES: tuple[PoolingMode, ...] = ("mean", "cls", "lasttoken")
_MODULE_CONFIG = re.compile(r"\d+_\w+/config\.json")
_FILES = re.compile(
    rf"modules\.json|config_sentence_transformers\.json|sentence_[\w-]+_config\.json|{_MODULE_CONFIG.pattern}"
)
_WITH_OFFSET = ("camembert", "mpnet", "roberta", "xlm-roberta", "xlm-roberta-xl")
"""Types of models that number their positions from the padding token's id plus one."""


@dataclass(frozen=True)
class Pooling:
    mode: PoolingMode
    is_normalized: bool
    """True if vectors have the length 1."""
    size: int
    """Numbers in a vector."""
    shorter: tuple[int, ...] | None
    """Sizes that vectors can be cut to (matryoshka); empty: any; None: the model was not trained for it."""
    max_tokens: int | None
    """The longest input; None: not known."""

    def limit(self, tokens: int) -> int:
        """Return the longest input in tokens: the lower one of the model's and the engine's limits."""
        return min(tokens, self.max_tokens or tokens)

    def allows(self, size: int) -> bool:
        return size == self.size or (
            self.shorter is not None and 0 < size < self.size and (not self.shorter or size in self.shorter)
        )


def pooling_names(names: Iterable[str]) -> list[str]:
    """Return the names of files that describe a model's pooling; none unless it has ``modules.json``."""
    names = list(names)
    if MODULES_NAME not in names:
        return []
    return [name for name in names if _FILES.fullmatch(name)]


def read_pooling(folder: Path) -> Pooling | None:
    """Read the pooling of the model in ``folder``. Return None if it generates text.

    Raises PoolingUnsupported.
    """
    if not (folder / MODULES_NAME).is_file():
        return None
    modules = _document(folder, MODULES_NAME)
    kinds: dict[str, str] = {}
    for module in modules if isinstance(modules, list) else ():
        if isinstance(module, dict):
            kinds[str(module.get("type")).rpartition(".")[2]] = str(module.get("path"))
    if foreign := sorted(kinds.keys() - {"Transformer", "Pooling", "Normalize"}):
        raise _unusable(folder, MODULES_NAME, f"the module {foreign[0]} is not supported")
    if "Pooling" not in kinds:
        raise _unusable(folder, MODULES_NAME, "it has no Pooling")
    config = _object(folder, "config.json")
    name = f"{kinds['Pooling']}/config.json"
    if not _MODULE_CONFIG.fullmatch(name):
        raise _unusable(folder, MODULES_NAME, f"the path {kinds['Pooling']!r} of Pooling is not supported")
    pooling = _object(folder, name)
    size = pooling.get("word_embedding_dimension", pooling.get("embedding_dimension"))
    size = config.get("hidden_size") if size is None else size
    if type(size) is not int or size < 1:
        raise _unusable(folder, name, "it has no word_embedding_dimension")
    return Pooling(
        mode=_mode(folder, name, pooling),
        is_normalized="Normalize" in kinds,
        size=size,
        shorter=_shorter(config),
        max_tokens=_max_tokens(folder, config),
    )


def _mode(folder: Path, name: str, pooling: Mapping[str, Any]) -> PoolingMode:
    prefix = "pooling_mode_"
    given = [key for key, value in pooling.items() if key.startswith(prefix) and value is True]
    named = {key[len(prefix) :].removesuffix("_tokens").removesuffix("_token") for key in given}
    if isinstance(pooling.get("pooling_mode"), str):
        named = {pooling["pooling_mode"]}
    for mode in _MODES:
        if named == {mode}:
            return mode
    raise _unusable(folder, name, f"{' and '.join(sorted(named)) or 'no'} pooling is not supported")


def _shorter(config: Mapping[str, Any]) -> tuple[int, ...] | None:
    sizes = config.get("matryoshka_dimensions")
    if isinstance(sizes, list) and sizes:
        return tuple(sorted(each for each in sizes if type(each) is int))
    return () if config.get("is_matryoshka") is True else None


def _max_tokens(folder: Path, config: Mapping[str, Any]) -> int | None:
    limits = [config.get("max_position_embeddings")]
    if config.get("model_type") in _WITH_OFFSET and type(limits[0]) is int:
        limits[0] -= 1 + int(config.get("pad_token_id", 1))
    for path in sorted(folder.glob("sentence_*_config.json")):
        limits.append(_object(folder, path.name).get("max_seq_length"))
    return min((each for each in limits if type(each) is int and each > 0), default=None)


def _object(folder: Path, name: str) -> dict[str, Any]:
    found = _document(folder, name)
    if not isinstance(found, dict):
        raise _unusable(folder, name, "it is not a JSON object")
    return found


def _document(folder: Path, name: str) -> Any:
    try:
        return json.loads((folder / name).read_bytes())
    except FileNotFoundError as exc:
        raise _unusable(folder, name, "there is no such file") from exc
    except (ValueError, RecursionError) as exc:
        raise _unusable(folder, name, "it is not JSON") from exc


def _unusable(folder: Path, name: str, reason: str) -> PoolingUnsupported:
    return PoolingUnsupported(place=folder / name, reason=reason)

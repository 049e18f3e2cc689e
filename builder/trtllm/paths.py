"""The paths of cog-trt-llm's configs, which are of one machine.

The original ran in ``/src`` and put the model into ``/src/models/<model_id>``; ``./engine_outputs`` and
``/src/engine_outputs`` are the same folder. Nothing here reads the disk.
"""

import posixpath

from builder.config.config import BuildConfig

WORKING_DIRECTORY = "/src"
MODELS_DIRECTORY = "/src/models"


def resolve(path: str) -> str:
    """Return the absolute path that ``path`` was in the original."""
    return posixpath.normpath(posixpath.join(WORKING_DIRECTORY, path))


def is_same(path: str, other: str) -> bool:
    return resolve(path) == resolve(other)


def model_directory(config: BuildConfig) -> str:
    """Return the folder where a config's programs read the model."""
    return f"{MODELS_DIRECTORY}/{config.model_id or config.model_path or 'model'}"


def is_model_directory(path: str) -> bool:
    return resolve(path).startswith(f"{MODELS_DIRECTORY}/")

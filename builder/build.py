"""Build an engine: config -> plan -> engine.tar, which is written completely or not at all."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tarfile import is_tarfile

from huggingface_hub import get_token
from pydantic import SecretStr

from builder.config.file import ConfigFile, checked_token, read_config
from builder.kinds import all_steps, engine_plan
from builder.steps import EnginePlan, Step, Work
from builder.weights.files import build_error, cache_folder
from engine.progress import Progress
from engine.staging import scratch
from engine.tar.manifest import Manifest
from errors.requests import InvalidInput

OWN_FOLDER = Path(__file__).resolve().parent
"""Base of ``model_path`` in a config from a URL: this package has the examples' models."""


def build(
    config_source: str | Path | ConfigFile,
    destination: Path,
    *,
    hf_token: str | None = None,
    only_public: bool = False,
    report: Callable[[str], None] = print,
    progress: Progress | None = None,
) -> Manifest:
    """Build the engine that the config at ``config_source`` describes into ``destination``.

    ``model_path`` is relative to the config's folder or to this package. ``hf_token`` overrides a token in
    the config, which overrides HF_TOKEN; no token is reported or packed. ``only_public``: for untrusted
    configs; neither their URL nor those in them may lead to a private address. ``report`` gets one line at a
    time. Raises 12xx for what the caller can change, otherwise 13xx and 23xx; a failed build does not change
    ``destination``.
    """
    try:
        if isinstance(config_source, ConfigFile):
            file = config_source
        else:
            file = read_config(config_source, only_public=only_public)
        planned = engine_plan(file.config)
        _check_destination(destination.absolute())
        with open_work(file, report, progress) as work:
            work.hf_token = first_token(hf_token, file.hf_token)
            work.only_public = only_public
            work.destination = destination.absolute()
            return run_plan(planned, file.notes, work)
    except OSError as exc:
        raise build_error(exc, destination) from exc


@contextmanager
def open_work(file: ConfigFile, report: Callable[[str], None], progress: Progress | None) -> Iterator[Work]:
    """Provide the state of a build of ``file``, whose ``destination`` the caller sets."""
    with scratch(cache_folder() / "builds" / "build") as folder, ExitStack() as resources:
        work = Work(
            config=file.config,
            hf_token=first_token(None, file.hf_token),
            folders=[*filter(None, [file.folder]), OWN_FOLDER],
            cache=cache_folder(),
            directory=folder / "engine",
            scratch=folder,
            report=report,
            progress=progress,
            resources=resources,
        )
        work.directory.mkdir(parents=True)
        yield work


def run_plan(planned: EnginePlan, notes: tuple[str, ...], work: Work, last: Step | None = None) -> Manifest:
    """Report ``notes`` and run the steps of ``planned``, and the ``last`` one as in ``all_steps``."""
    for note in (*notes, *planned.notes):
        work.report(note)
    for line, step in all_steps(planned, last):
        work.report(line)
        step.run(work)
    return work.manifest


def _check_destination(destination: Path) -> None:
    """Raise E1005 or OSError if no file can be written to ``destination``; what is there stays."""
    if destination.exists() and not destination.is_file():
        # NOTE: root could replace a device by a file.
        raise InvalidInput(name="the destination", expected="a file's path", value=str(destination))
    is_new = not destination.exists() or ".tar" in destination.suffixes
    if not is_new and not is_tarfile(destination):  # A mistyped name, such as README.md, destroys no file.
        expected = "the path of a new file, or of an engine.tar to replace"
        raise InvalidInput(name="the destination", expected=expected, value=str(destination))
    with scratch(destination) as path:
        path.touch()


def first_token(given: str | None, configured: SecretStr | None) -> SecretStr | None:
    """Return ``given``, else the config's token, else this user's token for the Hub."""
    token = checked_token(given or "") or configured
    return token or checked_token(get_token() or "", key="HF_TOKEN")

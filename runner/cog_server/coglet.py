"""Behavior of coglet (Cog's server, in Rust) that is not documented but needed here, and a check of it.

Read in coglet's source and observed with Cog 0.23.1. Each name of coglet that this package uses:

* ``_ctx_wrapper``: the coroutine around ``run``, and around nothing else. ``streaming`` runs it at once.
* ``asyncio.run_coroutine_threadsafe``: submits it, looked up at each call; ``future.cancel()`` cancels it.
* ``_coglet_prediction_id``: the context variable with the prediction's id, for logs, traces and
  ``prediction_dirs``.
* ``/tmp/coglet/predictions``: where each prediction leaves folders, which ``prediction_dirs`` removes.

Behaviour that no check at the start can see, and where it is used:

* A plain generator that an async ``run`` returns is streamed; an async generator is not (``streaming``).
* A piece of output that is an Enum is sent as its value. Any other text is first looked at as a date, a path
  and an array (``Chunk``).
* For each prediction ``typing.get_type_hints(run)`` compiles the annotations (``prepare_run``).
* An error is shown as ``<class name>: <text>`` (``shown_error``).
* Each line within a write, and each write, is one message to the server (``print_lines``).
* A prediction that streams holds one of 512 threads (``__main__``).
* At SIGTERM coglet stops to listen and waits for open requests, and calls the handler before its own
  (``shutdown``).
* Connections inherit the options of the listening socket, which is a file descriptor of the process
  (``shutdown``).
* The sockets to its worker have names of its process id (``engine.machine.cog_sockets``).
* Log lines are JSON objects with timestamp, level, target and fields (``json_logs``).
* COG_TRACE_CONFIGURED and COG_TRACE_SAMPLER switch its tracing on (``__main__``).
"""

import contextvars
import mmap
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from importlib.metadata import version
from pathlib import Path

import coglet

from errors.coded_error import CodedError
from errors.settings import MissingRequirement

SUPPORTED_VERSION = "0.23.1"
PREDICTION_COROUTINE = "_ctx_wrapper"
PREDICTION_ID = "_coglet_prediction_id"
PREDICTIONS_DIR = Path("/tmp/coglet/predictions")  # noqa: S108 - coglet uses it whatever TMPDIR says


@dataclass(frozen=True)
class Reliance:
    """A name of coglet that we rely on: its library contains ``name`` as long as coglet uses it."""

    name: str
    lost: str
    """Functions that do not work without it."""
    is_essential: bool


RELIANCES = (
    Reliance(PREDICTION_COROUTINE, "streaming", is_essential=True),
    Reliance("run_coroutine_threadsafe", "streaming and cancellation", is_essential=True),
    Reliance(PREDICTION_ID, "request ids in logs, removal of prediction folders", is_essential=False),
    Reliance(str(PREDICTIONS_DIR), "removal of prediction folders", is_essential=False),
)


def check_coglet(log: Callable[[str], None], library: Path | None = None) -> None:
    """Raise E1008 if streaming can't work with this coglet; log what else it lacks."""
    found = f"Cog {version('cog')} with coglet {coglet.__version__}"
    missing = _missing(library or Path(str(coglet._impl.__file__)))
    if essential := [each for each in missing if each.is_essential]:
        raise MissingRequirement(
            what=f"{_listed(essential)} in {found}",
            remedy=f"install cog=={SUPPORTED_VERSION}, which is supported",
        )
    if missing:
        log(f"warning: {found} lacks {_listed(missing)}; Cog {SUPPORTED_VERSION} is supported")
    elif coglet.__version__ != SUPPORTED_VERSION:
        log(f"warning: {found} is installed; Cog {SUPPORTED_VERSION} is supported")


def _missing(library: Path) -> list[Reliance]:
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return [each for each in RELIANCES if content.find(each.name.encode()) < 0]


def _listed(reliances: Iterable[Reliance]) -> str:
    return ", ".join(f"{each.name} (for {each.lost})" for each in reliances)


class Chunk(str):
    """A text that coglet's worker sends for 41 us of CPU in place of 49, with Python's lock all the time.

    NOTE: coglet asks whether a piece of output is a pydantic model, then whether it is an Enum, whose value
    it sends; only then whether it is a date, a path or an array. To a coglet that does not ask, it is a text.
    """

    __slots__ = ()
    __class__ = Enum  # type: ignore[assignment]
    model_dump = dict = None
    value = property(str.__str__)


def prediction_id() -> str:
    """Return the id of the prediction that runs in the current context; blank outside one."""
    context = contextvars.copy_context()
    return next((str(context[each]) for each in context if each.name == PREDICTION_ID), "")


def prepare_run(run: Callable[..., object]) -> None:
    """Have coglet skip the search for files in the inputs, 0.6 ms per prediction: there are none."""
    run.__no_type_check__ = True  # type: ignore[attr-defined]


def print_lines(lines: Iterable[str]) -> None:
    """Print into the prediction's logs in one write."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def shown_error(error: CodedError) -> Exception:
    """Return the error with its code as the class name, so that Cog shows ``E1234 Name: sentence``."""
    shown: Exception = type(f"{error.code} {type(error).__name__}", (Exception,), {})(error.sentence)
    return shown

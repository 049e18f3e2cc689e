"""The engine environment (torch, transformers or TensorRT-LLM): its variables, versions and converters."""

import os
from collections.abc import Sequence
from pathlib import Path

from builder.program import Program, run_program
from engine.machine.python import ENGINE_PYTHON_VARIABLE, engine_python
from engine.redact import without_secret_variables
from errors.build import ConversionFailed, OutOfMemory, ProgramFailed, ProgramMissing

_WITHHELD = ("PYTHONPATH", "PYTHONHOME", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD")
"""Variables that would load this environment's packages in the other, or undo what is set here."""
_CONVERTERS = Path(__file__).parent / "conversion"


def program_environment(*, offline: bool) -> dict[str, str]:
    """Return the variables of an engine environment's program; ``offline`` keeps it from asking the Hub."""
    environment = {
        name: value for name, value in without_secret_variables(os.environ).items() if name not in _WITHHELD
    }
    environment |= {"TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1"}
    # With PYTHONSAFEPATH, which the images set, a converter does not find the modules beside it by itself.
    environment["PYTHONPATH"] = str(_CONVERTERS)
    # NOTE: TensorRT-LLM reads `.bin` and `.pt` with a plain torch.load, which with its torch (2.5) runs a
    # pickle's code. With this, torch uses its weights-only loader, whatever the caller asks for.
    environment["TORCH_FORCE_WEIGHTS_ONLY_LOAD"] = "1"
    if offline:
        environment |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    return environment


def run_conversion(converter: str, arguments: Sequence[str | Path], *, what: str, folder: Path) -> None:
    """Run ``conversion/<converter>`` in ``folder``, without network access. Raises ConversionFailed."""
    python = engine_python()
    program = Program(
        step=what,
        command=[python, str(_CONVERTERS / converter), *map(str, arguments)],
        folder=folder,
        environment=program_environment(offline=True),
    )
    try:
        run_program(program, lambda line: None)
    except (ProgramFailed, OutOfMemory) as exc:
        tail = exc.facts.get("log_tail", "(none)")
        raise ConversionFailed(what=what, reason=exc.facts["reason"], log_tail=tail) from exc
    except ProgramMissing as exc:
        reason = f"{ENGINE_PYTHON_VARIABLE}={python} can't be started"
        raise ConversionFailed(what=what, reason=reason, log_tail="(none)") from exc

"""What ``cog-triton`` imports before it knows what it has to do: help and usage errors come at once."""

import subprocess
import sys

import pytest

LARGE = ("pydantic", "numpy", "yaml", "httpx", "huggingface_hub", "tritonclient", "aiohttp", "asyncio", "cog")
_MAX_MODULES = 240
_ASK = """
import sys
from cli.main import main
try:
    main(sys.argv[1:])
except SystemExit:
    pass
print(len(sys.modules), *sorted(sys.modules), file=sys.stderr)
"""


@pytest.mark.parametrize("arguments", [(), ("--help",), ("no-such-command",), ("serve", "--help")])
def test_help_and_usage_errors_import_nothing_large(arguments: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _ASK, *arguments], capture_output=True, text=True, check=True
    )
    count, *modules = done.stderr.splitlines()[-1].split()
    assert not {name.partition(".")[0] for name in modules} & set(LARGE)
    assert int(count) < _MAX_MODULES

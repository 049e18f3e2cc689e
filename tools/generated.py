"""Write generated files."""

from collections.abc import Mapping
from pathlib import Path


def write(texts: Mapping[Path, str]) -> None:
    """Write each text to its path, unless the file already has it."""
    for path, text in texts.items():
        if not path.is_file() or path.read_text() != text:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
            print(f"written: {path}")

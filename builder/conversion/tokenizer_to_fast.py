"""Run in the engine environment: ``tokenizer_to_fast.py SLOW_DIR FAST_DIR [--trust-remote-code]``.

It reads the tokenizer in SLOW_DIR with transformers and writes tokenizer.json and tokenizer_config.json to
FAST_DIR. It imports nothing of this project, which that environment does not have.
"""

import argparse
import importlib.util
import sys
from pathlib import Path

from transformers import AutoTokenizer


def is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("slow_dir")
    parser.add_argument("fast_dir")
    parser.add_argument("--trust-remote-code", action="store_true")
    arguments = parser.parse_args()
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            arguments.slow_dir, local_files_only=True, trust_remote_code=arguments.trust_remote_code
        )
    except (ImportError, ValueError) as exc:
        # NOTE: transformers then assumes a tiktoken file and reports that tiktoken is missing.
        missing = [name for name in ("sentencepiece", "google.protobuf") if not is_installed(name)]
        if missing and any(Path(arguments.slow_dir).glob("*.model")):
            sys.exit(f"a SentencePiece tokenizer needs {' and '.join(missing)} in the engine environment")
        raise SystemExit(str(exc)) from exc
    if not tokenizer.is_fast:
        sys.exit(f"{type(tokenizer).__name__} has no fast form")
    tokenizer.save_pretrained(arguments.fast_dir)


if __name__ == "__main__":
    main()

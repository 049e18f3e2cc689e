"""Run in the engine environment: ``tokenizer_to_fast.py SLOW_DIR FAST_DIR [--trust-remote-code]``.

Reads whatever tokenizer transformers finds in SLOW_DIR and writes tokenizer.json and
tokenizer_config.json to FAST_DIR. Imports nothing of this project: that environment has none of it.
"""

from __future__ import annotations

import argparse
import sys

from transformers import AutoTokenizer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("slow_dir")
    parser.add_argument("fast_dir")
    parser.add_argument("--trust-remote-code", action="store_true")
    arguments = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(
        arguments.slow_dir, local_files_only=True, trust_remote_code=arguments.trust_remote_code
    )
    if not tokenizer.is_fast:
        sys.exit(f"{type(tokenizer).__name__} has no fast form")
    tokenizer.save_pretrained(arguments.fast_dir)


if __name__ == "__main__":
    main()

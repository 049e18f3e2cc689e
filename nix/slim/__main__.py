"""Run the package beside this file: `python3 nix/slim --sm 86 DIR`, wherever the folder lies."""

from slim.cli import main

if __name__ == "__main__":  # a worker process may import this file
    raise SystemExit(main())

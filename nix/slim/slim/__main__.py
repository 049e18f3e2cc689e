"""`python3 -m slim`, with nix/slim on the path."""

from __future__ import annotations

from .cli import main

if __name__ == "__main__":  # a worker process may import this file
    raise SystemExit(main())

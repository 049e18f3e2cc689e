"""``python -m cli`` is ``cog-triton``."""

import sys

try:
    from cli.main import main

    sys.exit(main())
except KeyboardInterrupt:  # During the import.
    sys.exit(130)

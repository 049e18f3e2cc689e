"""``python -m cli`` is ``cog-triton``."""

import sys

from engine.machine.old_python import leave_old_python

try:
    leave_old_python("cli", sys.argv[1:])
    from cli.main import main

    sys.exit(main())
except KeyboardInterrupt:  # During the import.
    sys.exit(130)

"""``python -m cli`` is ``cog-triton``."""

import sys

from cli.main import main

sys.exit(main())

"""``python -m presence``."""

import sys

from presence.cli import main

sys.exit(main())

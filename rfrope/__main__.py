"""``python -m rfrope``."""

import sys

from rfrope.cli import main

if __name__ == "__main__":
    sys.exit(main())

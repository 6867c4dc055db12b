"""``python -m app`` is ``cutaway``."""

import sys

from app.cli import main

if __name__ == "__main__":
    sys.exit(main())

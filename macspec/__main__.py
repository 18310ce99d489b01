"""``python -m macspec``."""

import sys

from macspec.cli import main

if __name__ == "__main__":
    sys.exit(main())

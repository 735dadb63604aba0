"""``python -m staging``."""

import sys

from staging.cli import main

if __name__ == "__main__":
    sys.exit(main())

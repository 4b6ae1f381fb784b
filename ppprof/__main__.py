"""``python -m ppprof``: the same as the ``ppprof`` command."""

import sys

from ppprof.cli import main

if __name__ == "__main__":
    sys.exit(main())

"""The program of ``ppprof run``: it may be run by its path, as ``paddle.distributed.launch`` does."""

import sys

# Python has put this folder there, whose modules are not top-level ones. The script's folder, or the
# working directory for a module, replaces it.
if not getattr(sys.flags, "safe_path", False):
    sys.path[0] = ""

from ppprof.integrations.script import main

if __name__ == "__main__":
    sys.exit(main(yields=True))

"""The program of ``ppprof run``: it may be run by its path, as ``paddle.distributed.launch`` does."""

import sys

AT_START = frozenset(sys.modules)
"""Modules of an interpreter that has imported nothing: a script cannot replace these either."""

# Python has put this folder there, whose modules are not top-level ones.
if not getattr(sys.flags, "safe_path", False):
    del sys.path[0]

from ppprof.integrations.script import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main(yields=True, at_start=AT_START))

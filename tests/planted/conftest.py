"""The scripts of this folder are trainings, which `tests/jobs/test_planted_lines.py` runs."""

collect_ignore_glob = ["*.py"]

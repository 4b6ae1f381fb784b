"""Known vulnerabilities of what a lock file pins, by pip-audit; part of `make check`.

Exit code 1 for one that has a fix: renew the lock (`make lock`), or a bound in pyproject.toml. One
without a fix is told. Where the database cannot be reached nothing is known, and that is told.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from typing import Any

CANARY = "https://pypi.org/pypi/jinja2/2.10/json"
"""Of the database that pip-audit asks: a package that is known to be vulnerable.

A mirror may have packages and no database: pip-audit takes all of them for sound, then."""
ACCEPTED: dict[str, str] = {}
"""Id of a vulnerability that has a fix that we cannot take -> why."""


def main(lock: str) -> int:
    """0 when nothing is to be done."""
    try:
        check_database()
        found = audit(lock)
    except (OSError, ValueError) as error:
        print(f"pip-audit: skipped: its database cannot be reached ({error})", file=sys.stderr)
        return 0
    to_do = 0
    for package in found["dependencies"]:
        if "skip_reason" in package:
            print(f"{package['name']}: not audited: {package['skip_reason']}", file=sys.stderr)
        for known in package.get("vulns", ()):
            fixes = known["fix_versions"]
            why = ACCEPTED.get(known["id"], "" if fixes else "no fix yet")
            told = why or f"fixed in {', '.join(fixes)}"
            print(f"{package['name']} {package['version']}: {known['id']}: {told}", file=sys.stderr)
            to_do += not why
    if not to_do:
        audited = [package for package in found["dependencies"] if "skip_reason" not in package]
        print(f"{lock}: nothing to do about {len(audited)} packages")
    return 1 if to_do else 0


def check_database() -> None:
    """Returns where the database is there and knows something.

    Raises:
        OSError: it cannot be reached.
        ValueError: something else answers in its place.
    """
    with urllib.request.urlopen(CANARY, timeout=10) as answer:
        if not json.load(answer).get("vulnerabilities"):
            raise ValueError("it knows of no vulnerability of jinja2 2.10")


def audit(lock: str) -> dict[str, Any]:
    """What pip-audit finds, as it prints it.

    Raises:
        OSError: it could not ask.
    """
    options = ["--requirement", lock, "--no-deps", "--disable-pip", "--format", "json"]
    done = subprocess.run(
        [sys.executable, "-m", "pip_audit", *options, "--progress-spinner", "off"],
        capture_output=True,
        text=True,
        check=False,
    )
    if not done.stdout.startswith("{"):
        raise OSError(done.stderr.strip()[-300:])
    found: dict[str, Any] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

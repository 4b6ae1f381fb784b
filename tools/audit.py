"""Check the packages of a lock file for known vulnerabilities with pip-audit; part of `make check`.

Exits with 1 for a vulnerability that has a fix: renew the lock (`make lock`) or change a bound in
pyproject.toml. Prints vulnerabilities without a fix. If the database is unreachable, prints that
the check was skipped.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from typing import Any

CANARY = "https://pypi.org/pypi/jinja2/2.10/json"
"""A vulnerable package in the database that pip-audit queries.

A mirror may have packages but no database. Then pip-audit finds no vulnerabilities at all."""
ACCEPTED: dict[str, str] = {}
"""Id of a vulnerability whose fix we cannot use -> the reason."""


def main(lock: str) -> int:
    """Print vulnerabilities; return 1 if one of them needs a change here, else 0."""
    try:
        check_database()
        report = audit(lock)
    except (OSError, ValueError) as error:
        print(f"pip-audit: skipped: its database is unreachable ({error})", file=sys.stderr)
        return 0
    num_fixable = 0
    for package in report["dependencies"]:
        if "skip_reason" in package:
            print(f"{package['name']}: not audited: {package['skip_reason']}", file=sys.stderr)
        for vulnerability in package.get("vulns", ()):
            name, fixes = vulnerability["id"], vulnerability["fix_versions"]
            reason = ACCEPTED.get(name, "" if fixes else "no fix yet")
            status = reason or f"fixed in {', '.join(fixes)}"
            print(f"{package['name']} {package['version']}: {name}: {status}", file=sys.stderr)
            num_fixable += not reason
    if not num_fixable:
        audited = [package for package in report["dependencies"] if "skip_reason" not in package]
        print(f"{lock}: nothing to do about {len(audited)} packages")
    return 1 if num_fixable else 0


def check_database() -> None:
    """Check that the database is reachable and complete.

    Raises:
        OSError: the database is unreachable.
        ValueError: the response is not from the real database.
    """
    with urllib.request.urlopen(CANARY, timeout=10) as response:
        if not json.load(response).get("vulnerabilities"):
            raise ValueError("it knows of no vulnerability of jinja2 2.10")


def audit(lock: str) -> dict[str, Any]:
    """Run pip-audit and return its JSON report.

    Raises:
        OSError: pip-audit failed.
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
    report: dict[str, Any] = json.loads(done.stdout)
    return report


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

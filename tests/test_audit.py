"""``tools/audit.py``: when `make check` fails over what others found, and when it cannot know."""

from __future__ import annotations

import io
import json
import runpy
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import pytest

AUDIT = runpy.run_path(str(Path(__file__).parents[1] / "tools/audit.py"))
VULNERABLE = {"vulnerabilities": [{"id": "PYSEC-1"}]}


@pytest.fixture
def audit(monkeypatch):
    """Exit code, for what the database and pip-audit answer."""

    def of(database, *packages):
        def opened(url, timeout):
            if isinstance(database, Exception):
                raise database
            return io.BytesIO(database)

        done = subprocess.CompletedProcess([], 0, json.dumps({"dependencies": packages}), "")
        monkeypatch.setattr(urllib.request, "urlopen", opened)
        monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
        return AUDIT["main"]("dev.lock")

    return of


def package(**more):
    return {"name": "a", "version": "1", "vulns": [], **more}


def test_a_vulnerability_with_a_fix_fails(audit, capsys):
    known = {"id": "PYSEC-2", "fix_versions": ["1.1", "2.0"]}
    assert audit(json.dumps(VULNERABLE).encode(), package(vulns=[known])) == 1
    assert capsys.readouterr().err == "a 1: PYSEC-2: fixed in 1.1, 2.0\n"


def test_a_vulnerability_without_a_fix_is_printed(audit, capsys):
    known = {"id": "PYSEC-2", "fix_versions": []}
    assert audit(json.dumps(VULNERABLE).encode(), package(vulns=[known])) == 0
    printed = capsys.readouterr()
    assert printed.err == "a 1: PYSEC-2: no fix yet\n"
    assert printed.out == "dev.lock: nothing to do about 1 packages\n"


def test_what_was_not_looked_at_does_not_count(audit, capsys):
    skipped = {"name": "b", "skip_reason": "not on PyPI"}
    assert audit(json.dumps(VULNERABLE).encode(), package(), skipped) == 0
    printed = capsys.readouterr()
    assert printed.err == "b: not audited: not on PyPI\n"
    assert printed.out == "dev.lock: nothing to do about 1 packages\n"


@pytest.mark.parametrize(
    ("database", "why"),
    [
        (urllib.error.URLError("no route"), "<urlopen error no route>"),
        (b"", "Expecting value: line 1 column 1 (char 0)"),
        (b"{}", "it knows of no vulnerability of jinja2 2.10"),
    ],
)
def test_an_unreachable_database_is_no_failure(audit, capsys, database, why):
    assert audit(database) == 0
    message = f"pip-audit: skipped: its database is unreachable ({why})\n"
    assert capsys.readouterr().err == message

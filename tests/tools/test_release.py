"""The release tool: what it asks of a checkout, and the files that it builds."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools import release

ROOT = Path(__file__).parents[2]


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=tester", "-c", "user.email=tester@example.com"]
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository of version 1.2.3, ready for its release."""
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.3"\n')
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## [1.2.3] - 2026-11-23\n")
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "Release")
    return tmp_path


def test_a_checkout_that_is_ready(checkout: Path) -> None:
    assert release.read_version(checkout) == "1.2.3"
    assert release.problems_of(checkout, "1.2.3") == []


def test_all_problems_at_once(checkout: Path) -> None:
    (checkout / "CHANGELOG.md").write_text("# Changelog\n\n## [1.2.3]\n")
    (checkout / "new.py").touch()
    assert release.problems_of(checkout, "1.2.3") == [
        "CHANGELOG.md: no heading '## [1.2.3] - YYYY-MM-DD'; add it",
        "changes that are not committed: CHANGELOG.md, new.py; commit or remove them",
    ]


def test_a_version_is_required(checkout: Path) -> None:
    (checkout / "pyproject.toml").write_text("[project]\n")
    with pytest.raises(release.ReleaseError, match="no version; add"):
        release.read_version(checkout)


def test_two_builds_that_differ_are_rejected(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
        (folder / "equal").write_text("1")
    release.compare(first, second)
    (first / "a.whl").write_text("1")
    (second / "a.whl").write_text("2")
    (second / "more").touch()
    with pytest.raises(release.ReleaseError, match=r"differ: a\.whl, more;"):
        release.compare(first, second)


@pytest.mark.skipif(not shutil.which("sha256sum"), reason="needs sha256sum of coreutils")
def test_the_checksums_are_those_of_sha256sum(tmp_path: Path) -> None:
    (tmp_path / "a.whl").write_bytes(b"wheel")
    release.write_checksums(tmp_path)
    check = ["sha256sum", "--check", "--strict", "SHA256SUMS"]
    assert subprocess.run(check, cwd=tmp_path, capture_output=True, check=False).returncode == 0
    (tmp_path / "a.whl").write_bytes(b"other")
    assert subprocess.run(check, cwd=tmp_path, capture_output=True, check=False).returncode == 1


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs a git repository")
def test_the_changelog_has_this_version() -> None:
    problems = release.problems_of(ROOT, release.read_version(ROOT))
    assert [problem for problem in problems if problem.startswith("CHANGELOG")] == []


@pytest.mark.all
@pytest.mark.install
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs a git repository")
def test_the_files_of_a_release(tmp_path: Path) -> None:
    for module in ("auditwheel", "cyclonedx_py"):
        pytest.importorskip(module, reason="needs the group release")
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", str(ROOT), str(clone))
    version = release.read_version(clone)
    changelog = clone / "CHANGELOG.md"
    changelog.write_text(changelog.read_text() + f"\n## [{version}] - 2026-11-23\n")
    git(clone, "commit", "--quiet", "--all", "--message", "Release")
    done = subprocess.run(
        [sys.executable, "tools/release.py"], cwd=clone, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    names = {path.name for path in (clone / "dist").iterdir()}
    assert {
        f"ppprof-{version}.tar.gz",
        f"ppprof-{version}-py3-none-any.whl",
        f"ppprof-{version}.cdx.json",
        "SHA256SUMS",
    } < names
    others = [*filter(shutil.which, release.CROSS_COMPILERS)]
    assert len(names) == 5 + len(others)  # and the wheel of this platform
    sbom = (clone / f"dist/ppprof-{version}.cdx.json").read_text()
    assert "file:" not in sbom  # no path of the machine that built it
    bom = json.loads(sbom)
    assert {"ppprof", "polars", "numpy", "msgspec"} <= {part["name"] for part in bom["components"]}

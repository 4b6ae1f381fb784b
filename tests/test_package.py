"""What a release holds, and what it does where nothing else is: no checkout, no Paddle."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email.parser import BytesParser
from importlib.resources import files
from pathlib import Path

import pytest
import yaml

import ppprof
from tests.fixtures import gpu_traces
from tests.fixtures.timeline import write
from tools.release import read_version

ROOT = Path(__file__).parent.parent
PACKAGE = Path(ppprof.__file__).parent
STATIC_GRAPH = ROOT / "tests/fixtures/paddle/static_graph_26.pb"
RUNS = ROOT / "tests/fixtures/runs"
AARCH64_ROOT = os.environ.get("PPPROF_AARCH64_ROOT", "")
DATA = {
    "py.typed",
    "analysis/diff/operator_names.yaml",
    "trace/communication_names.yaml",
    "report/html/echarts.min.js",
    "report/texts/en.yaml",
    "report/texts/zh.yaml",
    "report/html/template.html",
    "report/html/licenses/echarts.LICENSE",
    "report/html/licenses/echarts.NOTICE",
    "report/html/licenses/zrender.LICENSE",
    "report/html/licenses/d3.LICENSE",
    *(f"trace/fastpath/native/{name}.c" for name in ("scan", "events")),
    *(
        f"trace/fastpath/native/{name}.h"
        for name in ("columns", "memory", "program", "store", "texts")
    ),
}
# dist/echarts.min.js of https://registry.npmjs.org/echarts/-/echarts-6.1.0.tgz, a file that npm
# publishes with integrity sha512-q0yaFPggC9FUdsWH4blavRWFmxdrIodbkoKNAjJudAI6CA9gNPxHtV2RcZNEepZVl
# k4yvBYkOkbk6HIVpIyHZA==
ECHARTS_SHA256 = "b66b25aeb4df84e33199dc21694014d336d222cbd9deb0e5a7c14bd6aa0d0fd0"


def test_the_charts_are_drawn_by_what_apache_published():
    script = files("ppprof.report.html").joinpath("echarts.min.js").read_bytes()
    assert hashlib.sha256(script).hexdigest() == ECHARTS_SHA256


def test_foreign_code_comes_with_its_licences():
    """A page holds the script, and the script begins with its own notice."""
    html = files("ppprof.report.html")
    script = html.joinpath("echarts.min.js").read_text("utf-8")
    assert "Licensed to the Apache Software Foundation" in script[:300]
    for name, owner in {
        "echarts.LICENSE": "Apache License",
        "echarts.NOTICE": "Copyright 2017-2026 The Apache Software Foundation",
        "zrender.LICENSE": "Copyright (c) 2017, Baidu Inc.",
        "d3.LICENSE": "Copyright 2010-2016 Mike Bostock",
    }.items():
        assert owner in html.joinpath("licenses", name).read_text("utf-8")


def test_the_conda_recipe_needs_what_the_package_needs():
    recipe = yaml.safe_load((ROOT / "recipe/recipe.yaml").read_text("utf-8"))
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    (python,) = re.findall(r'^requires-python = "(.+?)"', project, re.M)
    (needed,) = re.findall(r"^dependencies = \[\n(.*?)^\]", project, re.M | re.S)
    needs = re.findall(r'^  "([\w-]+)(.+?)"', needed, re.M)
    assert len(needs) > 5
    run = {f"{name.lower().replace('-', '_')} {bounds}" for name, bounds in needs}
    assert set(recipe["requirements"]["run"]) == run | {f"python {python}"}
    assert f"python {python}" in recipe["requirements"]["host"]
    assert recipe["package"]["version"] == read_version(ROOT)


def run(*command: object, variables: dict[str, str] | None = None, **more: object) -> str:
    """What a command prints that ends well; the caller's modules are out of its sight."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(part) for part in command],
        env={**environment, **(variables or {})},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        **more,
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def release(tmp_path_factory) -> tuple[Path, Path]:
    """Source distribution, and the wheel made from that."""
    out = tmp_path_factory.mktemp("release")
    run(sys.executable, "-m", "build", "--outdir", out, ROOT)
    (sdist,), (wheel,) = out.glob("*.tar.gz"), out.glob("*.whl")
    return sdist, wheel


def installed(python: str, package: Path | str, folder: Path, **variables: str) -> Path:
    """The interpreter of a new environment that holds a package and what it needs."""
    run(python, "-m", "venv", folder)
    new = folder / "bin/python"
    run(new, "-m", "pip", "install", "--quiet", "--no-compile", package, variables=variables)
    run(new, "-m", "pip", "check")
    return new


@pytest.mark.all
@pytest.mark.install
def test_what_is_in_the_wheel(release):
    with zipfile.ZipFile(release[1]) as wheel:
        names = set(wheel.namelist())
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        about = BytesParser().parsebytes(wheel.read(metadata))
    packaged = {name for name in names if ".dist-info/" not in name}
    code = {path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py")}
    assert {f"ppprof/{name}" for name in code | DATA} <= packaged
    assert {name.partition("/")[0] for name in packaged} == {"ppprof"}  # no tests, no tools
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    has_core = "ppprof/trace/fastpath/native/_core.so" in packaged
    assert has_core == any(map(shutil.which, ("cc", "gcc", "clang")))
    assert release[1].name.endswith("-py3-none-any.whl") != has_core
    assert about["Requires-Python"] == ">=3.9,<3.14" or about["Requires-Python"] == "<3.14,>=3.9"
    needed = [need for need in about.get_all("Requires-Dist") if "extra ==" not in need]
    assert not [
        need for need in needed if re.match("paddle|visualdl|distributed|pandas|pyarrow", need)
    ]
    assert set(about.get_all("Provides-Extra")) == {
        *("train", "gpu", "view", "dask", "pandas", "mcp", "otlp")
    }


@pytest.mark.all
@pytest.mark.install
def test_what_is_in_the_source_distribution(release):
    """All that a packager needs to test what he builds."""
    with tarfile.open(release[0]) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    assert "ppprof/trace/fastpath/native/_core.so" not in names
    assert {"LICENSE", "README.md", "pyproject.toml", "Makefile"} <= names
    assert {"tools/train.py", "tools/build_core.py"} <= names
    assert {
        path.relative_to(ROOT).as_posix() for path in Path(__file__).parent.glob("*.py")
    } <= names


@pytest.mark.jobs
@pytest.mark.install
def test_the_wheel_reads_a_run_where_nothing_else_is_installed(release, tmp_path):
    """In an environment of its own, without Paddle: every command that reads a trace."""
    for name in ("base", "run"):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "a.pb", *gpu_traces.training(3))
    python = installed(sys.executable, release[1], tmp_path / "venv")
    command = python.with_name("ppprof")
    found = "import importlib.util as u; print(u.find_spec('paddle'), u.find_spec('tests'))"
    assert run(python, "-c", found, cwd=tmp_path) == "None None\n"

    def does(*arguments: str) -> str:
        return run(command, *arguments, cwd=tmp_path)

    assert "Model Summary" in does("summary", "run")
    assert "Step Breakdown" in does("ranks", "run")
    assert "Step time" in does("diff", "base", "run")
    does("merge", "run", "-o", "all.json")
    does("convert", "run/a.pb", "a.json")
    does("report", "run", "--baseline", "base", "-o", "page.html")
    page = (tmp_path / "page.html").read_text("utf-8")
    assert "echarts" in page
    version = does("--version")
    assert version.startswith("ppprof ")
    has_core = not release[1].name.endswith("-py3-none-any.whl")
    assert f"\ncore {'native' if has_core else 'python'} (" in version


@pytest.mark.all
@pytest.mark.install
@pytest.mark.parametrize("version", ["3.9", "3.13"])
def test_the_source_reads_runs_on_the_oldest_and_newest_python_without_a_compiler(
    release, version, tmp_path
):
    """It prints what the compiled core of this environment prints of the same files."""
    interpreter = shutil.which(f"python{version}") or "false"
    if subprocess.run([interpreter, "--version"], capture_output=True, check=False).returncode:
        pytest.skip(f"needs python{version} on PATH")  # a shim of pyenv fails: set PYENV_VERSION
    python = installed(interpreter, release[0], tmp_path / "venv", CC="false")
    assert f"Python {version}." in run(python, "--version")
    assert "\ncore python (" in run(python, "-m", "ppprof", "--version", cwd=tmp_path)
    run(python, "-m", "ppprof", "demo", "--no-browser", cwd=tmp_path)
    page = (tmp_path / "ppprof_demo/report.html").read_text("utf-8")
    assert "echarts" in page
    for command in (
        ("summary", STATIC_GRAPH),
        ("summary", "ppprof_demo"),
        ("ranks", "ppprof_demo"),
    ):
        here = run(sys.executable, "-m", "ppprof", *command, cwd=tmp_path)
        assert run(python, "-m", "ppprof", *command, cwd=tmp_path) == here != ""


@pytest.mark.all
@pytest.mark.install
def test_pipx_runs_the_demo(release, tmp_path):
    """The command of the page on installation."""
    python = installed(sys.executable, "pipx", tmp_path / "venv")
    shutil.copy(release[1], tmp_path)
    command = ["pipx", "run", "--spec", f"./{release[1].name}", "ppprof", "demo", "--no-browser"]
    run(python, "-m", *command, cwd=tmp_path, variables={"PIPX_HOME": str(tmp_path / "home")})
    assert "echarts" in (tmp_path / "ppprof_demo/report.html").read_text("utf-8")
    assert not (tmp_path / "venv/bin/ppprof").exists()


@pytest.mark.all
@pytest.mark.install
@pytest.mark.skipif(
    not all((AARCH64_ROOT, shutil.which("qemu-aarch64"), shutil.which("aarch64-linux-gnu-gcc"))),
    reason="needs qemu-aarch64, aarch64-linux-gnu-gcc, and PPPROF_AARCH64_ROOT: a folder with Debian's "
    "python3.11-minimal of arm64 and the packages that it needs, unpacked by dpkg-deb -x",
)
def test_the_wheel_for_aarch64_prints_what_that_of_this_machine_prints(release, tmp_path):
    """The compiled core included: of traces in either format."""
    built = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", tmp_path]
    run(*built, release[0], variables={"CC": "aarch64-linux-gnu-gcc"})
    (wheel,) = tmp_path.glob("*-py3-none-linux_aarch64.whl")
    (python,) = Path(AARCH64_ROOT, "usr/bin").glob("python3.*")
    options = ["--python-version", python.name.removeprefix("python"), "--only-binary", ":all:"]
    for name in ("linux", "manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014"):
        options += ["--platform", f"{name}_aarch64"]
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--target", site]
    run(*pip, *options, wheel)
    other = ["qemu-aarch64", "-L", AARCH64_ROOT, python, "-m", "ppprof"]
    variables = {"PYTHONPATH": str(site)}
    version = run(*other, "--version", cwd=tmp_path, variables=variables)
    assert "\ncore native (" in version
    assert "aarch64" in version
    for command in (
        ("summary", STATIC_GRAPH),
        ("ranks", RUNS / "slow_rank_of_two"),
        ("diff", RUNS / "nothing", RUNS / "slow_layer"),
    ):
        here = run(sys.executable, "-m", "ppprof", *command)
        assert run(*other, *command, cwd=tmp_path, variables=variables) == here != ""

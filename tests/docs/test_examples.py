"""The folder examples/: short files, listed in its README, whose commands exist."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from ppprof.cli import command_parser

EXAMPLES = Path(__file__).parents[2] / "examples"
FILES = sorted(path for path in EXAMPLES.iterdir() if path.suffix != ".md" and path.is_file())
MOST_LINES = 60


def commands(path: Path) -> list[list[str]]:
    """The words of each command line of ppprof in a file, without the redirections."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".yaml":
        jobs = [job for job in yaml.safe_load_all(text) if job["kind"] == "Job"]
        (container,) = jobs[0]["spec"]["template"]["spec"]["containers"]
        text = container["command"][-1]
    if path.suffix == ".yml":
        steps = yaml.safe_load(text)["jobs"]["compare"]["steps"]
        text = "\n".join(step.get("run", "") for step in steps)
    text = re.sub(r"\\\n", " ", text)
    text = re.sub(r"^\s*exec (?=ppprof)", "", text, flags=re.M)
    lines = re.findall(r"^\s*(ppprof [a-z].*)$", text, re.M)
    return [shlex.split(line.partition(" | ")[0]) for line in lines]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_an_example_is_short_and_listed(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MOST_LINES
    assert f"]({path.name})" in (EXAMPLES / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_its_commands_are_commands_of_ppprof(path: Path, monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    lines = commands(path)
    assert lines
    for _, *words in lines:
        arguments = command_parser().parse_args(words)
        assert arguments.command == words[0]


@pytest.mark.parametrize("name", ["slurm.sh", "kubernetes.yaml"])
def test_the_master_is_an_address(name: str) -> None:
    """Paddle's launcher never starts its server if ``--master`` is a host name."""
    (command,) = [each for each in commands(EXAMPLES / name) if "--master" in each]
    assert command[command.index("--master") + 1] in ("$master:8090", "${master%% *}:8090")


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
def test_the_script_of_slurm_is_bash() -> None:
    done = subprocess.run(["bash", "-n", EXAMPLES / "slurm.sh"], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def test_kubernetes_knows_every_field() -> None:
    """Strict: a field that its API does not have is an error, too."""
    for part in yaml.safe_load_all((EXAMPLES / "kubernetes.yaml").read_text(encoding="utf-8")):
        kubernetes_validate.validate(part, "1.33", strict=True)
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate({**part, "template": {}}, "1.33", strict=True)


def test_the_names_of_kubernetes_belong_together() -> None:
    text = (EXAMPLES / "kubernetes.yaml").read_text(encoding="utf-8")
    service, job = yaml.safe_load_all(text)
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}
    name = job["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": name}
    assert pod["subdomain"] == service["metadata"]["name"]
    script = container["command"][-1]
    assert f"getent ahostsv4 {name}-0.{pod['subdomain']})" in script
    (command,) = commands(EXAMPLES / "kubernetes.yaml")
    nodes = command[command.index("--nnodes") + 1]
    assert int(nodes) == job["spec"]["completions"] == job["spec"]["parallelism"]

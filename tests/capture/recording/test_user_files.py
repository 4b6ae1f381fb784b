"""Which files are the user's."""

from __future__ import annotations

import json
import re
import sysconfig
from pathlib import Path

import pytest

from ppprof.capture.recording.user_files import UserFiles, function_name, raised_at

GENERATED = "/home/me/.cache/paddle/to_static_tmp/17/Net_forwardky1eyryk.py"
SITE = sysconfig.get_path("purelib")
USER, DEBIAN = (
    "/home/other/.local/lib/python3.10/site-packages",
    "/usr/local/lib/python3.10/dist-packages",
)
"""Where pip installs for a user, and for all users of a system that a venv may see."""


@pytest.mark.parametrize(
    ("file", "shown", "is_own"),
    [
        ("/home/me/train.py", "train.py", True),
        ("/home/me/lib/net.py", "lib/net.py", True),
        ("/home/other/net.py", "/home/other/net.py", True),
        ("/opt/net.py", "/opt/net.py", True),
        (f"{SITE}/numpy/core.py", f"{SITE}/numpy/core.py", False),
        (f"{SITE}/paddleformers/trainer/trainer.py", "paddleformers/trainer/trainer.py", True),
        (f"{SITE}/paddlenlp_tools/a.py", f"{SITE}/paddlenlp_tools/a.py", False),
        ("/home/me/python-packages/x/train.py", "python-packages/x/train.py", True),
        (f"{USER}/numpy/core.py", f"{USER}/numpy/core.py", False),
        (f"{USER}/paddlenlp/trainer/trainer.py", "paddlenlp/trainer/trainer.py", True),
        (f"{DEBIAN}/paddlefleet/layers.py", "paddlefleet/layers.py", True),
        (f"{DEBIAN}/numpy/core.py", f"{DEBIAN}/numpy/core.py", False),
        (GENERATED, GENERATED[len("/home/me/") :], False),
        ("<string>", "<string>", False),
    ],
)
def test_the_users_files_and_those_of_trainers_are_own(file: str, shown: str, is_own: bool) -> None:
    assert UserFiles(Path("/home/me"))[file] == (shown, is_own)


@pytest.mark.parametrize(
    ("file", "shown"),
    [
        ("/home/me/project/nets/encoder.py", "../../nets/encoder.py"),
        ("/home/me/project/examples/gpt/train.py", "train.py"),
        (
            "/home/me/project/.venv/lib/python3.11/site-packages/numpy/core.py",
            "/home/me/project/.venv/lib/python3.11/site-packages/numpy/core.py",
        ),
    ],
)
def test_a_file_of_the_project_above_the_working_directory_is_shown_from_there(
    file: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But not once the training has gone to another directory, which only it knows."""
    monkeypatch.setenv("PWD", "/home/me/project/examples/gpt")
    assert UserFiles(Path("/home/me/project/examples/gpt"))[file][0] == shown
    monkeypatch.setenv("PWD", "/home/me/project")
    expected = file if shown.startswith("..") else shown
    assert UserFiles(Path("/home/me/project/examples/gpt"))[file][0] == expected


def test_an_exception_is_at_the_users_innermost_line() -> None:
    files = UserFiles(Path(__file__).parent)
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads("{")
    assert re.fullmatch(
        r"test_user_files.py:\d+ test_an_exception_is_\w+", raised_at(caught.value, files)
    )
    assert raised_at(ValueError("was never raised"), files) == ""


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("forward", "forward"),
        ("#forward_0a3f2", "forward"),
        ("$resume_0@forward_0a3f2", "forward"),
        ("#$resume_0@forward_0a3f2", "forward"),
        ("layer_00001", "layer_00001"),
    ],
)
def test_a_function_that_sot_has_translated_has_its_own_name(name: str, shown: str) -> None:
    code = test_a_function_that_sot_has_translated_has_its_own_name.__code__
    translated = code.replace(co_name=name)
    if hasattr(code, "co_qualname"):
        translated = translated.replace(co_qualname=name)
    assert function_name(translated) == shown

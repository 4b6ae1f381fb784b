"""A shape that no device computes well: a vocabulary of 50,257 words, and one of 50,304 beside it.

The job states a peak that no CPU of a few cores reaches, so that its products stay below it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import ppprof
from tests.jobs.launching import train

pytestmark = [pytest.mark.paddle, pytest.mark.all]


@pytest.mark.parametrize(("vocabulary", "is_named"), [(50257, True), (50304, False)])
def test_a_vocabulary_that_is_no_multiple_of_8_is_named(
    tmp_path: Path, vocabulary: int, is_named: bool
) -> None:
    settings = (
        "Distributed.dp_degree=1",
        "Profiler.enable=True",
        f"Model.vocab_size={vocabulary}",
        "Global.device_peak_flops=1e12",
        "Global.device_peak_gbps=100",
    )
    done = train(tmp_path, *settings, processes=1)
    assert done.returncode == 0, done.stdout[-2000:]
    found = ppprof.advise(ppprof.open(tmp_path / "profiler_log"))
    facts = [finding.facts for finding in found if finding.rule == "slow-product"]
    named = [each for each in facts if each["remedy"] == "config-vocabulary"]
    assert [(each["dim"], each["proposed_dim"]) for each in named] == is_named * [(50257, 50304)]

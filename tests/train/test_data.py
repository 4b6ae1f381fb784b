from __future__ import annotations

import functools
import operator
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppprof.train.corpus import DataError, find_files, token_file
from ppprof.train.data import Share, StepBatches, TextSamples

pytestmark = pytest.mark.paddle


def _text(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_a_file_a_directory_and_a_glob(tmp_path: Path) -> None:
    folder = _text(tmp_path, a="one", b__c="two", b__empty="")
    assert find_files(str(folder / "a")) == [folder / "a"]
    assert find_files(str(folder)) == [folder / "a", folder / "b/c"]
    assert find_files(f"{folder}/**/c") == [folder / "b/c"]


def test_the_default_is_the_standard_library_without_its_tests() -> None:
    files = find_files(None)
    names = {path.name for path in files}
    assert {"argparse.py", "socket.py"} <= names
    assert not any("test" in path.parts or "site-packages" in path.parts for path in files)


@pytest.mark.parametrize("name", ["nothing", "nothing/*.txt"])
def test_no_text_is_an_error_that_names_the_place(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match=f"{tmp_path}/nothing.*: no text found; expected a file"):
        find_files(str(tmp_path / name))


def test_tokens_are_bytes_and_made_again_when_a_file_changes(tmp_path: Path) -> None:
    folder = _text(tmp_path, a="ab", b="\u00e9")
    files = find_files(str(folder))
    tokens = token_file(files, tmp_path / "cache")
    assert tokens.read_bytes() == b"ab\x00\xc3\xa9\x00"
    assert tokens.stat().st_mode == files[0].stat().st_mode  # others may read it where they may
    assert token_file(files, tmp_path / "cache") == tokens
    (folder / "a").write_text("xyz")
    os.utime(folder / "a", ns=(1, 1))
    changed = token_file(files, tmp_path / "cache")
    assert changed != tokens
    assert changed.read_bytes().startswith(b"xyz\x00")


def test_a_text_or_a_cache_that_is_out_of_reach(tmp_path: Path) -> None:
    text, gone = tmp_path / "a", tmp_path / "gone"
    text.write_text("ab")
    with pytest.raises(DataError, match=rf"cannot join the text .*{gone}.*XDG_CACHE_HOME"):
        token_file([text, gone], tmp_path / "cache")
    with pytest.raises(DataError, match=rf"cannot join the text .*{text}/cache.*XDG_CACHE_HOME"):
        token_file([text], text / "cache")


def test_a_text_that_breaks_off_leaves_nothing_behind(tmp_path: Path) -> None:
    text, folder = tmp_path / "a", tmp_path / "folder"
    text.write_text("ab")
    folder.mkdir()  # opens as no file, after the first was copied
    with pytest.raises(DataError, match=r"Is a directory: "):
        token_file([text, folder], tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_sample_and_the_tokens_that_follow_it(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_bytes(bytes(range(20)))
    samples = TextSamples(path, length=4, share=(0.5, 1.0))
    assert len(samples) == 2
    tokens, labels = samples[1]
    assert tokens.tolist() == [14, 15, 16, 17]
    assert labels.tolist() == [15, 16, 17, 18]
    assert tokens.dtype == labels.dtype == np.int64


def test_each_read_waits_as_long_as_the_latency(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr("time.sleep", waits.append)
    path = tmp_path / "tokens"
    path.write_bytes(bytes(range(20)))
    slow, fast = (TextSamples(path, length=4, latency_ms=ms) for ms in (25.0, 0.0))
    assert [part.tolist() for part in slow[1]] == [part.tolist() for part in fast[1]]
    slow[0]
    assert waits == [0.025, 0.025]


def test_too_little_text(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_bytes(b"1234")
    with pytest.raises(
        DataError, match="4 bytes of text are too few for a sample of max_seq_len 4"
    ):
        TextSamples(tmp_path / "tokens", length=4)
    with pytest.raises(DataError, match="3 samples are fewer than the 4 of one step"):
        StepBatches(3, local=2, micro=1, share=Share(0, 2))


@given(
    replicas=st.integers(1, 4),
    micro=st.integers(1, 3),
    per_step=st.integers(1, 3),
    num_samples=st.integers(36, 80),
    seed=st.one_of(st.none(), st.integers(0, 5)),
)
def test_ranks_share_each_step_and_meet_every_sample_once(
    replicas: int, micro: int, per_step: int, num_samples: int, seed: int | None
) -> None:
    local = micro * per_step
    by_rank = [
        list(StepBatches(num_samples, local, micro, Share(rank, replicas), seed, epochs=2))
        for rank in range(replicas)
    ]
    alone = list(
        StepBatches(num_samples, local * replicas, local * replicas, Share(0, 1), seed, epochs=2)
    )
    for step, whole in enumerate(alone):
        micro_batches = [rank[step * per_step : (step + 1) * per_step] for rank in by_rank]
        assert (
            functools.reduce(
                operator.iadd,
                (functools.reduce(operator.iadd, batches, []) for batches in micro_batches),
                [],
            )
            == whole
        )
    per_epoch = len(alone) // 2
    for epoch in (alone[:per_epoch], alone[per_epoch:]):
        met = functools.reduce(operator.iadd, epoch, [])
        assert len(set(met)) == len(met) == num_samples // (local * replicas) * local * replicas


@given(st.integers(0, 25), st.one_of(st.none(), st.integers(0, 5)))
def test_a_position_is_the_number_of_samples_taken(steps: int, seed: int | None) -> None:
    def batches(taken: int) -> list[list[int]]:
        return list(StepBatches(50, 4, 2, Share(1, 2), seed, taken, epochs=3))

    assert batches(8 * steps) == batches(0)[2 * steps :]


@given(st.integers(1, 12), st.integers(1, 8))
def test_steps_of_another_size_go_on_where_the_others_ended(steps: int, local: int) -> None:
    def met(taken: int, local: int) -> list[int]:
        batches = StepBatches(48, local, local, Share(0, 1), seed=1, taken=taken, epochs=1)
        return functools.reduce(operator.iadd, batches, [])

    before, after = met(0, 4)[: 4 * steps], met(4 * steps, local)
    assert not set(before) & set(after)
    assert len(before) + len(after) > 48 - local or steps == 12


def test_epochs_differ_in_order_and_seeds_do_too() -> None:
    def order(seed: int) -> list[list[int]]:
        return list(StepBatches(16, 16, 16, Share(0, 1), seed, epochs=2))

    assert order(1) == order(1)
    assert order(1)[0] != order(1)[1]
    assert order(1)[0] != order(2)[0]

"""Byte pairs: learned from a text, and the same text again from its tokens."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from ppprof.train.tokenizer import NUM_BYTES, BytePairs


def spelled(tokens: list[int], merges: list[tuple[int, int]]) -> bytes:
    """The bytes behind tokens."""
    known = [bytes([byte]) for byte in range(NUM_BYTES)]
    for left, right in merges:
        known.append(known[left] + known[right])
    return b"".join(known[token] for token in tokens)


def test_the_commonest_pair_is_merged_first_and_within_words_only() -> None:
    pairs = BytePairs.learn(b"abab cab ab", 8)
    # In words: "abab", " cab", " ab".
    assert pairs.merges == [(97, 98)]  # 4 times; afterwards no pair is there twice
    assert pairs.encode(b"abab cab") == [256, 256, 32, 99, 256]


def test_of_equally_common_pairs_the_lower_is_first() -> None:
    assert BytePairs.learn(b"ba dc ba dc", 1).merges == [(32, 100)]


def naive(text: bytes, num_merges: int) -> list[tuple[int, int]]:
    """Counted anew for every merge."""
    words = Counter(BytePairs.words(text))
    parts = {word: list(word) for word in words}
    merges: list[tuple[int, int]] = []
    for token in range(NUM_BYTES, NUM_BYTES + num_merges):
        counts = Counter[tuple[int, int]]()
        for word, times in words.items():
            for pair in zip(parts[word], parts[word][1:]):
                counts[pair] += times
        best = min(counts, key=lambda pair: (-counts[pair], pair), default=None)
        if best is None or counts[best] < 2:
            break
        for word, tokens in parts.items():
            merged: list[int] = []
            rest = tokens
            while rest:
                width = 2 if tuple(rest[:2]) == best else 1
                merged += [token] if width == 2 else rest[:1]
                rest = rest[width:]
            parts[word] = merged
        merges.append(best)
    return merges


TEXTS = st.text("ab \n(1\u00e9", max_size=60).map(str.encode)


@given(TEXTS)
def test_learning_is_counting_anew_for_every_merge(text: bytes) -> None:
    assert BytePairs.learn(text, 12).merges == naive(text, 12)


@given(TEXTS, TEXTS)
def test_tokens_spell_the_text(text: bytes, other: bytes) -> None:
    pairs = BytePairs.learn(text, 12)
    for some in (text, other, bytes(range(256)), b"a" * 200):
        assert spelled(pairs.encode(some), pairs.merges) == some
        assert len(pairs.encode(some)) <= len(some)


def test_the_same_in_every_process() -> None:
    code = (
        "from ppprof.train.tokenizer import BytePairs; import argparse, pathlib;"
        "print(BytePairs.learn(pathlib.Path(argparse.__file__).read_bytes()[:20000], 99).merges)"
    )
    said = {
        subprocess.check_output([sys.executable, "-c", code], env={"PYTHONHASHSEED": str(seed)})
        for seed in (1, 2)
    }
    assert len(said) == 1

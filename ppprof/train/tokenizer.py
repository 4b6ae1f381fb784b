"""Byte-pair encoding, as GPT-2 has it, in plain Python: what a dataset does to text on the fly."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

NUM_BYTES = 256
"""Tokens before any merge: the bytes themselves."""

_WORDS = re.compile(rb" ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+")
"""What is merged within: letters, digits or signs, with the space before them; GPT-2's pattern."""

_LONGEST = 64
"""Bytes of a word at the most: the time to encode one grows with their square."""


class BytePairs:
    """Text to tokens: of the pairs of neighbours in a word the first learned is merged first.

    >>> pairs = BytePairs([(97, 98), (256, 99)])  # "ab" is 256, "abc" 257
    >>> pairs.encode(b"abcab")
    [257, 256]
    >>> pairs.encode(b"b abc")
    [98, 32, 257]

    Args:
        merges: pairs of tokens; the n-th becomes token 256 + n.
    """

    def __init__(self, merges: Sequence[tuple[int, int]]) -> None:
        self.merges = list(merges)
        self._ranks = {pair: rank for rank, pair in enumerate(merges)}

    @classmethod
    def learn(cls, text: bytes, num_merges: int) -> BytePairs:
        """Merges the commonest pair of tokens in ``text``, so many times or as long as one repeats."""
        words = Counter(cls.words(text))
        parts = {word: list(word) for word in words}
        counts: Counter[tuple[int, int]] = Counter()
        holders: defaultdict[tuple[int, int], set[bytes]] = defaultdict(set)

        def count(word: bytes, times: int) -> None:
            for pair in zip(parts[word], parts[word][1:]):
                counts[pair] += times
                holders[pair].add(word)

        for word, times in words.items():
            count(word, times)
        merges: list[tuple[int, int]] = []
        while len(merges) < num_merges and counts:
            best = min(counts, key=lambda pair: (-counts[pair], pair))
            if counts[best] < 2:
                break
            for word in holders.pop(best):
                count(word, -words[word])
                _merge(parts[word], best, NUM_BYTES + len(merges))
                count(word, words[word])
            merges.append(best)
        return cls(merges)

    @staticmethod
    def words(text: bytes) -> Iterator[bytes]:
        """The pieces of a text within which pairs are merged; together they are all of it."""
        for match in _WORDS.finditer(text):
            word = match[0]
            for first in range(0, len(word), _LONGEST):
                yield word[first : first + _LONGEST]

    def encode(self, text: bytes) -> list[int]:
        """The tokens of a text."""
        found = []
        for word in self.words(text):
            found += self._encode_word(word)
        return found

    def _encode_word(self, word: bytes) -> list[int]:
        tokens = list(word)
        ranks, last = self._ranks, len(self._ranks)
        while len(tokens) > 1:
            rank, pair = min((ranks.get(pair, last), pair) for pair in zip(tokens, tokens[1:]))
            if rank == last:
                break
            _merge(tokens, pair, NUM_BYTES + rank)
        return tokens


def _merge(tokens: list[int], pair: tuple[int, int], merged: int) -> None:
    """Puts ``merged`` in the place of each ``pair``, from the left."""
    left, right = pair
    at = 0
    while at < len(tokens) - 1:
        if tokens[at] == left and tokens[at + 1] == right:
            tokens[at : at + 2] = [merged]
        at += 1

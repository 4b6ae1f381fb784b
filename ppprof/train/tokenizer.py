"""Byte-pair encoding as in GPT-2, in plain Python: a typical cost of a dataset."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

NUM_BYTES = 256
"""Number of tokens without merges: the byte values."""

_WORDS = re.compile(rb" ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+")
"""Words, within which pairs merge: letters, digits or signs after an optional space. GPT-2's
pattern."""

_LONGEST = 64
"""Most bytes of a word: the time to encode it grows with their square."""


class BytePairs:
    """Encoder of text to tokens. Pairs of neighbours merge in the order in which they were learned.

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
        """Merge the most frequent pair in ``text`` up to ``num_merges`` times, while pairs repeat."""
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
        """Split a text into words; joined, they are the text."""
        for match in _WORDS.finditer(text):
            word = match[0]
            for first in range(0, len(word), _LONGEST):
                yield word[first : first + _LONGEST]

    def encode(self, text: bytes) -> list[int]:
        """Return the tokens of a text."""
        tokens = []
        for word in self.words(text):
            tokens += self._encode_word(word)
        return tokens

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
    """Replace each ``pair`` by ``merged`` in place, from the left."""
    left, right = pair
    position = 0
    while position < len(tokens) - 1:
        if tokens[position] == left and tokens[position + 1] == right:
            tokens[position : position + 2] = [merged]
        position += 1

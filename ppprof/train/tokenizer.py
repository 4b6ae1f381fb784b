"""Byte-pair encoding as in GPT-2, in plain Python: it stands for the cost of a typical dataset."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

NUM_BYTES = 256
"""Number of tokens without merges: one for each byte value."""

_WORDS = re.compile(rb" ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+")
"""Pattern of words: letters, digits or signs, each after an optional space, or white space. Pairs
merge only within a word. GPT-2's pattern without its contractions, for bytes."""

_LONGEST = 64
"""Most bytes of a word; longer words are split, since the time to encode a word grows with the square
of its bytes."""


class BytePairs:
    """Encodes text as tokens. Pairs of adjacent tokens merge in the order of ``merges``.

    >>> pairs = BytePairs([(97, 98), (256, 99)])  # "ab" is 256, "abc" 257
    >>> pairs.encode(b"abcab")
    [257, 256]
    >>> pairs.encode(b"b abc")
    [98, 32, 257]

    Args:
        merges: pairs of tokens; pair number n, counted from 0, becomes token 256 + n.
    """

    def __init__(self, merges: Sequence[tuple[int, int]]) -> None:
        self.merges = list(merges)
        self._ranks = {pair: rank for rank, pair in enumerate(merges)}

    @classmethod
    def learn(cls, text: bytes, num_merges: int) -> BytePairs:
        """Return an encoder whose merges are learned from ``text``.

        The most frequent pair is merged, up to ``num_merges`` times. Learning ends early when no
        pair occurs twice.
        """
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
        """Yield the words of a text, including white space; joined, they are the text.

        >>> list(BytePairs.words(b"two words, 42"))
        [b'two', b' words', b',', b' 42']
        """
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
    """Replace each ``pair`` in ``tokens`` by ``merged``, in place and from the left."""
    left, right = pair
    position = 0
    while position < len(tokens) - 1:
        if tokens[position] == left and tokens[position + 1] == right:
            tokens[position : position + 2] = [merged]
        position += 1

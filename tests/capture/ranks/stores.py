"""The store of a job, in one process."""

from __future__ import annotations

from typing import Any


class Store(dict[str, Any]):
    """As much of Paddle's store as is needed."""

    def add(self, key: str, number: int) -> int:
        self[key] = self.get(key, 0) + number
        return int(self[key])

    def set(self, key: str, value: str) -> None:
        self[key] = value

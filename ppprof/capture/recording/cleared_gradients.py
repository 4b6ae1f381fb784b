"""Gradients that are cleared before an optimizer uses them: those of a generator, below the loss of a discriminator.

Two networks that are trained in turn::

    update_d()   D and G: backward   opt_d.step()                           uses those of D
    update_g()   opt_g.clear_grad()                                         those of G were for nothing
                 D and G: backward   opt_g.step()                           uses those of G
    update_d()   opt_d.clear_grad()                                         those of D were for nothing
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

CallId = tuple[int, int]
"""Thread and start of a call."""


class ClearedGradients:
    """What becomes of the gradients that each Backward adds to. A parameter is known by the address of its node."""

    def __init__(self) -> None:
        self.waiting: dict[int, list[CallId]] = {}
        """The Backwards that have added to the gradient of a parameter since it was last used or cleared."""
        self._cleared: defaultdict[CallId, set[int]] = defaultdict(set)
        self._using: set[CallId] = set()
        """Backwards of which some gradient was used."""
        self._updated: set[int] = set()
        self._num_steps = 0

    def note_backward(self, call: CallId, leaves: Iterable[int]) -> None:
        """Note that a Backward adds to the gradients of leaves of its graph."""
        for leaf in leaves:
            self.waiting.setdefault(leaf, []).append(call)

    def note_use(self, leaf: int, *, is_update: bool) -> None:
        """Note that an optimizer updates a parameter, or that the training reads its gradient."""
        self._using.update(self.waiting.pop(leaf, ()))
        if is_update and not self._num_steps:
            self._updated.add(leaf)

    def note_clear(self, leaf: int) -> None:
        """Note that the gradient of a parameter is cleared."""
        for call in self.waiting.pop(leaf, ()):
            self._cleared[call].add(leaf)

    def end_step(self) -> None:
        """Note the end of a step. In the second one, gradients of the first are cleared."""
        self._num_steps += 1
        if self._num_steps > 1:
            self.waiting.clear()

    def found(self) -> dict[CallId, set[int]]:
        """Return the parameters of which each Backward has computed gradients for nothing.

        Without those that no operator has updated in the first step: other ranks, or other functions, may update them,
        or their update was left out, as after an overflow. So it was for a Backward no gradient of which is used.
        """
        found = {
            call: leaves & self._updated
            for call, leaves in list(self._cleared.items())
            if call in self._using
        }
        return {call: leaves for call, leaves in found.items() if leaves}

"""The scripts of the page share one global scope."""

from __future__ import annotations

import re
from collections import Counter

from ppprof.report import html

OURS = [name for name in html._SCRIPTS if not name.endswith(".min.js")]


def test_no_two_scripts_define_the_same_name() -> None:
    """A second definition of a name stops its whole script, with a line in the console only."""
    names = Counter(
        name
        for script in OURS
        for name in re.findall(
            r"^(?:async )?(?:const|let|var|function|class) (\w+)", html._file(script), re.M
        )
    )
    assert len(names) > 50
    assert [name for name, count in names.items() if count > 1] == []

"""Views that ranks can share."""

from __future__ import annotations

import pytest

from ppprof.choices.views import ACROSS, VIEWS, check_across
from ppprof.errors import UsageError


@pytest.mark.parametrize(
    ("views", "by", "message"),
    [
        (["op"], "node", "by 'node': expected rank or name"),
        (
            ["op", "mem", "device"],
            "name",
            "'mem', 'device': expected some of model, dist, op, kernel, memcpy, udf, "
            "whose rows are names that ranks share",
        ),
    ],
)
def test_views_that_cannot_be_compared_across_ranks(views, by, message):
    with pytest.raises(UsageError) as error:
        check_across(views, by)
    assert str(error.value) == message


def test_the_views_are_of_the_nine_in_their_order():
    assert [view for view in VIEWS if view in ACROSS] == list(ACROSS)

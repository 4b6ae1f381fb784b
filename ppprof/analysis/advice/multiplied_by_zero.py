"""Gradients that are 0 since a tensor is multiplied by the number 0: a term of the loss that is switched off."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import polars as pl

from ppprof.analysis.advice.repeated_calls import repeated_calls
from ppprof.analysis.advice.repeated_gradients import repeated_gradients
from ppprof.analysis.profile.profile import Profile, once
from ppprof.analysis.profile.python_lines import line_name
from ppprof.arrays import Int64
from ppprof.trace.event_lines import frame_of_call
from ppprof.trace.operator_inputs import MULTIPLIED, ZERO, attributes_of


class MultipliedByZero(NamedTuple):
    """What is computed for products with the number 0 in a window."""

    gradients: pl.DataFrame
    """The gradients that are 0: row (of the host events), step, name (the line of the product), term (the line that
    computes what is multiplied, null if unknown or equal) and time_ns, device time if the trace has device events."""
    operators: pl.DataFrame
    """Likewise the operators to whose results no other gradients lead, and the gradients that ``paddle.grad`` computes for
    such results."""


@once
def multiplied_by_zero(profile: Profile) -> MultipliedByZero:
    """Return what is computed for products with the number 0.

    ::

        calls       model   loss        paddle.grad  term   loss + 0.0 * term   run_backward
        events      mm gelu cross_entr. gg gg gg     pow    scale  add          add ce scale pow gg gg gg gelu mm
        gradients                                                                      ##### ### ## ## ##
        operators                       ## ## ##     ###    #####

    Nodes that run again count for `repeated_gradients`, and those of calls that compute again what is known for
    `repeated_calls`.
    """
    tree = profile.tree
    hosts = tree.hosts_with("step", "attributes")
    again = repeated_gradients(profile)["row"]
    is_inside = pl.Series(repeated_calls(profile).is_inside)
    hosts = hosts.filter(~is_inside).filter(~pl.col("row").is_in(again.implode()))
    hosts = hosts.drop_nulls(["step", "attributes"]).select(
        "row", "step", pl.col("attributes").cast(pl.String), time_ns=tree.time_column
    )
    zero = _named(profile, hosts, ZERO)
    others = hosts.filter(~pl.col("row").is_in(zero["row"].implode()))
    return MultipliedByZero(zero, _named(profile, others, MULTIPLIED))


def _named(profile: Profile, hosts: pl.DataFrame, attribute: str) -> pl.DataFrame:
    """Return the outermost events with an attribute, and the names of its lines."""
    marked = hosts.filter(pl.col("attributes").str.contains(f'"{attribute}":', literal=True))
    texts = marked["attributes"].unique()
    names = {text: _lines(profile, attributes_of(text), attribute) for text in texts}
    known = [(text, *lines) for text, lines in names.items() if lines]
    schema = dict.fromkeys(("attributes", "name", "term"), pl.String())
    marked = marked.join(
        pl.DataFrame(known, schema, orient="row"), "attributes", maintain_order="left"
    )
    rows: Int64 = marked["row"].to_numpy().astype(np.int64)
    is_inner = pl.Series(profile.tree.below(np.sort(rows))[rows], dtype=pl.Boolean)
    return marked.filter(~is_inner).select("row", "step", "name", "term", "time_ns")


def _lines(
    profile: Profile, attributes: Mapping[str, object], attribute: str
) -> tuple[str, str | None] | None:
    """Return the names of a product's line, and of that which computes what is multiplied; None if the former is unknown."""
    stacks = attributes.get(attribute)
    if not isinstance(stacks, list) or len(stacks) != _NUM_LINES:
        return None
    frames = [frame_of_call(str(stack)) for stack in stacks]
    line, term = (line_name(profile.trace.stacks, each) if each else None for each in frames)
    return None if line is None else (line, None if term == line else term)


_NUM_LINES = 2

"""Gradients that lead only to parameters that no optimizer updates, or not with these gradients.

The former are those of a teacher, or below a head that alone is trained; the latter those of a generator, below the loss of
a discriminator, whose optimizer clears them first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional

import numpy as np
import polars as pl

from ppprof.analysis.advice.repeated_calls import repeated_calls
from ppprof.analysis.advice.repeated_gradients import repeated_gradients
from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.profile.python_lines import line_name
from ppprof.trace.event_lines import frame_of_call
from ppprof.trace.labels import map_texts
from ppprof.trace.operator_inputs import (
    CLEARED,
    LAYER,
    NOT_UPDATED,
    NUM_GRADIENTS,
    UNUSED_GRADIENTS,
    ZERO,
    attributes_of,
    operator_of_gradient,
)

_PRODUCTS = frozenset(
    ("matmul", "linear", "bmm", "mm", "conv1d", "conv2d", "conv3d", "depthwise_conv2d")
)
"""Operators whose gradients take about as long as each other. Other operators compute theirs together."""


def unneeded_gradients(profile: Profile) -> pl.DataFrame:
    """Return the nodes of gradients that lead only to parameters that no optimizer updates with them, by layer.

    ::

        layers      student     teacher                   generator    loss network
        updated     yes         no                        yes          no
        nodes       ########    uuuuuuu                   #########    #u#u#u#u
                                all their time counts                  half of that of products

    Nodes whose gradients are 0 count for `ppprof.analysis.advice.multiplied_by_zero`, those that run again for `repeated_gradients`, those of calls that compute again what is known for
    `repeated_calls`, and nodes of operators outside such layers not at all.

    Returns:
        One row per node, with gradients that are linked to operators: step; name, the outermost layer around
        the operator without an updated parameter, by its path or class, with the line that calls it
        (``backbone (net.py:8, forward(): x = self.backbone(x))``); time_ns, device time if the trace has device
        events; passes, whether any node of the layer, also one without a row, computes gradients that lead to
        other layers; is_cleared, whether the layer has an optimizer, which clears these gradients; and caller, the line
        that calls the function of the layer's line, null if unknown or not cleared. No rows without a recorded graph of
        gradients.
    """
    tree = profile.tree
    hosts = tree.hosts_with("step", "forward", "attributes")
    layers = _layers(profile, hosts)
    nodes = hosts.filter(pl.col("category") == "Operator").drop_nulls("forward")
    if nodes.is_empty() or not layers:
        return pl.DataFrame(schema=_ROWS)
    is_layer = np.zeros(hosts.height, bool)
    is_layer[list(layers)] = True
    layer = tree.enclosing(is_layer)[nodes["forward"].to_numpy()]
    nodes = nodes.with_columns(
        *pl.DataFrame([layers.get(row, _NO_LAYER) for row in layer.tolist()], _LAYER, orient="row"),
        share=map_texts(nodes["attributes"], _share, pl.Float64).fill_null(0.0),
        operator=map_texts(nodes["name"], operator_of_gradient),
    ).drop_nulls("name")
    # Of a Backward that uses all of the layer's gradients, such as that of the generator's own loss, none pass.
    backward = tree.innermost(tree.events.host_rows("Backward"))[nodes["row"].to_numpy()]
    nodes = nodes.with_columns(backward=pl.Series(backward))
    is_unused = (pl.col("share") > 0).any().over("name", "backward")
    nodes = nodes.with_columns(passes=(is_unused & (pl.col("share") < 1)).any().over("name"))
    counts = (pl.col("share") == 1) | pl.col("operator").is_in(_PRODUCTS)
    again = repeated_gradients(profile)["row"]
    is_inside = pl.Series(repeated_calls(profile).is_inside[nodes["row"].to_numpy()])
    nodes = nodes.filter(
        counts, pl.col("share") > 0, ~pl.col("row").is_in(again.implode()), ~is_inside
    )
    nodes = nodes.select(
        "step",
        "name",
        *("passes", "is_cleared", "caller"),
        time_ns=(pl.col(tree.time_column) * pl.col("share")).round().cast(pl.Int64),
    )
    return nodes.drop_nulls("step").select(*_ROWS)


_LAYER = {"name": pl.String, "is_cleared": pl.Boolean, "caller": pl.String}
_Layer = tuple[str, bool, Optional[str]]
_NO_LAYER = (None, None, None)
_NUM_LINES = 2
_ROWS = {"step": pl.Int64, "time_ns": pl.Int64, "passes": pl.Boolean, **_LAYER}


def _layers(profile: Profile, hosts: pl.DataFrame) -> Mapping[int, _Layer]:
    """Return the columns of `_LAYER` of each outermost call of a layer whose gradients are unused, by its row."""
    tree = profile.tree
    is_forward = (hosts["category"] == "Forward") & hosts["attributes"].is_not_null()
    forwards = hosts.filter(is_forward).select("row", pl.col("name", "attributes").cast(pl.String))
    kinds = {kind: _layer(profile, *kind) for kind in set(forwards.drop("row").iter_rows())}
    known = {row: layer for row, *kind in forwards.iter_rows() if (layer := kinds[tuple(kind)])}
    rows = np.array(list(known), np.int64)
    is_inside = tree.below(rows)
    return {row: layer for row, layer in known.items() if not is_inside[row]}


def _layer(profile: Profile, kind: str, attributes: str) -> _Layer | None:
    """Return the columns of `_LAYER` of calls with these attributes; None if their gradients are used."""
    known = attributes_of(attributes)
    is_cleared = NOT_UPDATED not in known
    stacks = known.get(CLEARED) if is_cleared else [known[NOT_UPDATED], ""]
    if not isinstance(stacks, list) or len(stacks) != _NUM_LINES:
        return None
    frames = map(frame_of_call, map(str, stacks))
    line, caller = (line_name(profile.trace.stacks, each) if each else None for each in frames)
    name = str(known.get(LAYER) or kind)
    return f"{name} ({line})" if line else name, is_cleared, caller


def _share(attributes: str) -> float:
    """Return which share of a node's gradients is unused; 0 without the attributes of a node, and of those that are 0."""
    known = attributes_of(attributes) if UNUSED_GRADIENTS in attributes else {}
    if ZERO in known:
        return 0.0
    num, unused = known.get(NUM_GRADIENTS), known.get(UNUSED_GRADIENTS)
    if type(num) is not int or type(unused) is not int or not 0 < unused <= num:
        return 0.0
    return unused / num

"""Gradients that lead only to parameters that no optimizer updates: of a teacher, or below a head that alone is trained."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from ppprof.analysis.advice.repeated_calls import repeated_calls
from ppprof.analysis.advice.repeated_gradients import repeated_gradients
from ppprof.analysis.profile.profile import Profile
from ppprof.analysis.profile.python_lines import line_name
from ppprof.trace.event_lines import frame_of_call
from ppprof.trace.labels import map_texts
from ppprof.trace.operator_inputs import (
    LAYER,
    NOT_UPDATED,
    NUM_GRADIENTS,
    UNUSED_GRADIENTS,
    attributes_of,
    operator_of_gradient,
)

_PRODUCTS = frozenset(
    ("matmul", "linear", "bmm", "mm", "conv1d", "conv2d", "conv3d", "depthwise_conv2d")
)
"""Operators whose gradients take about as long as each other. Other operators compute theirs together."""


def unneeded_gradients(profile: Profile) -> pl.DataFrame:
    """Return the nodes of gradients that lead only to parameters that no optimizer updates, by layer.

    ::

        layers      student     teacher                   generator    loss network
        updated     yes         no                        yes          no
        nodes       ########    uuuuuuu                   #########    #u#u#u#u
                                all their time counts                  half of that of products

    Nodes that run again count for `repeated_gradients`, those of calls that compute again what is known for
    `repeated_calls`, and nodes of operators outside such layers not at all.

    Returns:
        One row per node, with gradients that are linked to operators: step; name, the outermost layer around
        the operator without an updated parameter, by its path or class, with the line that calls it
        (``backbone (net.py:8, forward(): x = self.backbone(x))``); time_ns, device time if the trace has device
        events; and passes, whether any node of the layer, also one without a row, computes gradients that lead to
        other layers. No rows without a recorded graph of gradients.
    """
    tree, events = profile.tree, profile.trace.events
    hosts = tree.hosts.with_columns(
        events.select("step", "forward", "attributes").slice(0, tree.hosts.height)
    )
    layers = _layers(profile, hosts)
    nodes = hosts.filter(pl.col("category") == "Operator").drop_nulls("forward")
    if nodes.is_empty() or not layers:
        return pl.DataFrame(schema=_ROWS)
    is_layer = np.zeros(hosts.height, bool)
    is_layer[list(layers)] = True
    layer = tree.enclosing(is_layer)[nodes["forward"].to_numpy()]
    nodes = nodes.with_columns(
        name=pl.Series([layers.get(row) for row in layer.tolist()], dtype=pl.String),
        share=map_texts(nodes["attributes"], _share, pl.Float64).fill_null(0.0),
        operator=map_texts(nodes["name"], operator_of_gradient),
    ).drop_nulls("name")
    nodes = nodes.with_columns(passes=(pl.col("share") < 1).any().over("name"))
    counts = (pl.col("share") == 1) | pl.col("operator").is_in(_PRODUCTS)
    again = repeated_gradients(profile)["row"]
    is_inside = pl.Series(repeated_calls(profile).is_inside[nodes["row"].to_numpy()])
    nodes = nodes.filter(
        counts, pl.col("share") > 0, ~pl.col("row").is_in(again.implode()), ~is_inside
    )
    time_ns = "cpu_ns" if tree.devices.is_empty() else "device_ns"
    nodes = nodes.select(
        "step",
        "name",
        time_ns=(pl.col(time_ns) * pl.col("share")).round().cast(pl.Int64),
        passes="passes",
    )
    return nodes.drop_nulls("step")


_ROWS = {"step": pl.Int64, "name": pl.String, "time_ns": pl.Int64, "passes": pl.Boolean}


def _layers(profile: Profile, hosts: pl.DataFrame) -> Mapping[int, str]:
    """Return the row and the name of each outermost call of a layer without an updated parameter."""
    tree = profile.tree
    is_forward = (hosts["category"] == "Forward") & hosts["attributes"].is_not_null()
    forwards = hosts.filter(is_forward)
    line = map_texts(forwards["attributes"], lambda text: attributes_of(text).get(NOT_UPDATED))
    path = map_texts(forwards["attributes"], lambda text: attributes_of(text).get(LAYER))
    forwards = forwards.with_columns(line=line, path=path).drop_nulls("line")
    rows = forwards["row"].to_numpy()
    forwards = forwards.filter(pl.Series(~tree.below(rows)[rows]))
    names = {}
    for row, kind, path, line in forwards.select(
        "row", pl.col("name").cast(pl.String), "path", "line"
    ).iter_rows():
        frame = frame_of_call(line)
        place = f" ({line_name(profile.trace.stacks, frame)})" if frame else ""
        names[row] = f"{path or kind}{place}"
    return names


def _share(attributes: str) -> float:
    """Return which share of a node's gradients is unused; 0 without the attributes of a node."""
    known = attributes_of(attributes) if UNUSED_GRADIENTS in attributes else {}
    num, unused = known.get(NUM_GRADIENTS), known.get(UNUSED_GRADIENTS)
    if type(num) is not int or type(unused) is not int or not 0 < unused <= num:
        return 0.0
    return unused / num

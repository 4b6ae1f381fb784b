"""Why a rank is slow: what takes longer there than on its peers, or everything alike."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from ppprof.analysis.advice.evidence import Evidence
from ppprof.analysis.advice.finding import Fact
from ppprof.analysis.advice.indicators import MOST_NAMES
from ppprof.trace import GARBAGE_COLLECTION

REASON = 0.5
"""Share of a rank's excess from which a line, gap, operator or module is its reason."""
ALIKE = 0.2
"""Operators are slower alike if the logarithms of their ratios to the peers' spread by less."""
_LEAST_OPERATORS = 3
_LEAST_OF_STEP = 0.01
_KINDS = ("collection", "line", "gap", "operator", "module")
"""Kinds of `NAMES`, that which helps most first; collections are one, whatever line they are in."""


def reason_of(
    evidence: Evidence, rank: int, peers: Sequence[int], excess_ns: float
) -> tuple[dict[str, Fact], pl.DataFrame]:
    """Return what takes longer on a rank than on its peers.

    ::

        rank   line 7   line 9   matmul        rank 1 exceeds the median by 50 in line 7: the reason
        0      10       30       20
        1      60       30       20            twice as long everywhere would be a factor of 2
        2      10       30       20

    Returns:
        The facts reason, reason_kind, reason_ns and factor, null without a reason; and a table of name,
        time_ns, peers_ns (the median) and excess_ns, the largest excess first.
    """
    facts: dict[str, Fact] = dict.fromkeys(("reason", "reason_kind", "reason_ns", "factor"))
    own, others = _times(evidence, rank), [_times(evidence, peer) for peer in peers]
    schema = {"name": pl.String, **dict.fromkeys(("time_ns", "peers_ns", "excess_ns"), pl.Float64)}
    if own.is_empty() or not others:
        return facts, pl.DataFrame(schema=schema)
    of_peers = [_filled(own, other) for other in others]
    peers_ns = np.median(np.stack(of_peers), axis=0)
    table = own.with_columns(peers_ns=pl.Series(peers_ns)).with_columns(
        excess_ns=pl.col("time_ns") - pl.col("peers_ns")
    )
    table = table.sort("excess_ns", "name", descending=[True, False])
    facts["factor"] = _factor(table.filter(what="operator"), evidence.step_ns, excess_ns)
    large = table.filter(pl.col("excess_ns") >= REASON * excess_ns)
    for kind in _KINDS if facts["factor"] is None else ():
        found = large.filter(what=kind)
        if found.height:
            facts |= {
                "reason": found["name"][0],
                "reason_kind": kind,
                "reason_ns": found["excess_ns"][0],
            }
            break
    rows = table.filter(pl.col("excess_ns") >= 0.1 * excess_ns).unique("name", maintain_order=True)
    return facts, rows.select(*schema)


def _times(evidence: Evidence, rank: int) -> pl.DataFrame:
    """Return the times of a rank in an average step: what, name, time_ns."""
    own = evidence.typical_indicators.get(rank)
    if own is None or own.steps.is_empty():
        return pl.DataFrame(schema={"what": pl.String, "name": pl.String, "time_ns": pl.Float64})
    is_collection = pl.col("what") == "collection"
    name = pl.when(is_collection).then(pl.lit(GARBAGE_COLLECTION)).otherwise("name")
    named = own.names.filter(pl.col("what").is_in(_KINDS)).with_columns(name=name)
    sums = named.group_by("what", "name")
    return sums.agg(pl.col("time_ns").sum() / own.steps.height)


def _filled(own: pl.DataFrame, other: pl.DataFrame) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return another rank's time for each row of ``own``.

    A rank lists its largest names only: of a full list, one that is missing may take as long as the
    shortest of the list.
    """
    listed = other.group_by("what").agg(num=pl.len(), least=pl.col("time_ns").min())
    rest = pl.when(pl.col("num") >= MOST_NAMES).then("least").otherwise(0.0)
    joined = own.select("what", "name").join(other, ["what", "name"], "left", maintain_order="left")
    joined = joined.join(listed.select("what", rest=rest), "what", "left", maintain_order="left")
    return joined.select(pl.coalesce("time_ns", "rest", 0.0)).to_series().to_numpy()


def _factor(operators: pl.DataFrame, step_ns: float, excess_ns: float) -> float | None:
    """Return how many times as long all operators take; None if they differ, or explain too little."""
    known = operators.filter(
        (pl.col("time_ns") > 0) & (pl.col("peers_ns") >= _LEAST_OF_STEP * step_ns)
    )
    if known.height < _LEAST_OPERATORS or known["excess_ns"].sum() < REASON * excess_ns:
        return None
    time_ns, peers_ns = known["time_ns"].to_numpy(), known["peers_ns"].to_numpy()
    logs = np.log(time_ns / peers_ns)
    mean = np.average(logs, weights=peers_ns)
    spread = float(np.sqrt(np.average((logs - mean) ** 2, weights=peers_ns)))
    return None if spread >= ALIKE else round(float(time_ns.sum() / peers_ns.sum()), 2)

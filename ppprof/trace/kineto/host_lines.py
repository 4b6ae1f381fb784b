"""Lines of host events in Kineto's files: their kinds and names, links, modules and args.

`ppprof.trace.kineto.writer` has the table of kinds.
"""

from __future__ import annotations

import re

import polars as pl

from ppprof.trace.communication_names import TORCH_SPANS
from ppprof.trace.json.lines import Parts, microseconds, optional_arg, with_json_text
from ppprof.trace.kineto.collective_args import WAIT
from ppprof.trace.kineto.inputs import lists_of
from ppprof.trace.kineto.terms import DDP, EVALUATE, MODULE, STEP
from ppprof.trace.operator_inputs import with_json_callstack
from ppprof.trace.tree_arrays import enclosing

_PREFIXES = {"Dataloader": "enumerate(DataLoader)#", "Optimization": "Optimizer.step#"}
_SPANS = ("Forward", "Backward", "PythonOp", "PythonUserDefined")


def with_kinds(hosts: pl.DataFrame) -> pl.DataFrame:
    """Return host events with ``kind``, the ``cat`` to write, and ``title``, the name to write.

    Both are null for the Backward events that the reader derives.
    """
    is_derived = (
        (pl.col("category") == "Backward")
        & (pl.col("name") == "Backward")
        & pl.col("event").is_in(_parents_of_nodes(hosts).implode())
    )
    columns = hosts.select(
        pl.col("category", "name").cast(pl.String).fill_null(""),
        pl.col("stage").is_not_null().alias("is_staged"),
        is_derived.fill_null(False).alias("is_derived"),
    )
    distinct = columns.unique()
    kinds = [
        (None, None) if is_derived else _kind(category, name, is_staged)
        for category, name, is_staged, is_derived in distinct.iter_rows()
    ]
    table = distinct.with_columns(
        pl.Series("kind", [kind for kind, _ in kinds], pl.String),
        pl.Series("title", [title for _, title in kinds], pl.String),
    )
    joined = columns.join(table, on=columns.columns, how="left", maintain_order="left")
    return hosts.with_columns(joined["kind"], joined["title"])


def _parents_of_nodes(hosts: pl.DataFrame) -> pl.Series:
    is_node = pl.col("name").cast(pl.String).str.starts_with(EVALUATE)
    return hosts.filter(is_node)["parent"].drop_nulls().unique()


def _kind(category: str, name: str, is_staged: bool) -> tuple[str, str]:
    """Return ``cat`` and name of a host event; of a module, without its number.

    >>> _kind("Forward", "Linear", False), _kind("Communication", "all_reduce", False)
    (('python_function', 'nn.Module: Linear'), ('cpu_op', 'c10d::all_reduce'))
    """
    if category == "Forward" and not is_staged and name != DDP:
        return "python_function", MODULE + name
    if category == "ProfileStep":
        return "user_annotation", name.replace("ProfileStep#", STEP, 1)
    if category in _PREFIXES:
        prefix = _PREFIXES[category]
        return "user_annotation", name if name.startswith(prefix) else prefix + name
    if category == "Communication":
        if name.endswith(WAIT):
            return "user_annotation", name
        is_torchs = re.search(TORCH_SPANS, name) is not None
        return "cpu_op", name if is_torchs else f"c10d::{name}"
    return ("user_annotation" if category in _SPANS else "cpu_op"), name


def with_sequences(hosts: pl.DataFrame) -> pl.DataFrame:
    """Return host events with ``sequence`` and ``forward_thread``.

    ``sequence`` is the row of the forward event, in that event and in all that compute its
    gradient. ``forward_thread`` numbers its thread from 1 in the latter, and is 0 in the former.
    """
    thread = hosts.select(pl.struct("process", "thread").rank("dense")).to_series().cast(pl.Int64)
    is_maker = pl.col("event").is_in(hosts["forward"].drop_nulls().unique().implode())
    of_forward = thread.gather(hosts["forward"])
    return hosts.with_columns(
        sequence=pl.coalesce("forward", pl.when(is_maker).then("event")),
        forward_thread=pl.coalesce(of_forward, pl.when(is_maker).then(0)),
    )


def with_modules(hosts: pl.DataFrame) -> pl.DataFrame:
    """Return host events with the ``number`` of each module and the ``module`` around it.

    ::

        Net_0     ----------------------------   ------
        Linear_0    ----                           --
        Linear_1          ----
        Relu_0                  --

    Both are null for other events, and ``module`` also for outermost modules.
    """
    is_module = (hosts["kind"] == "python_function").fill_null(False)
    above = enclosing(hosts["parent"].fill_null(-1).to_numpy(), is_module.to_numpy())
    modules = hosts.select("event", "title", module=pl.Series(above)).filter(is_module)
    number = pl.int_range(pl.len()).over((pl.col("module") < 0).cum_sum(), "title")
    modules = modules.select(
        "event",
        number=number,
        module=pl.when(pl.col("module") >= 0).then("module"),
    )
    return hosts.join(modules, on="event", how="left", maintain_order="left")


def with_host_texts(rows: pl.DataFrame) -> pl.DataFrame:
    """Return host events with ``text``, their escaped name, and texts to append to their args."""
    rows = with_json_callstack(with_json_text(rows, "title"))
    rows = rows.with_columns(
        pl.when(pl.col(column).is_not_null())
        .then(with_json_text(rows.select(column), column)["text"])
        .alias(column)
        for column in ("axis", "phase")
    )
    inputs = rows.select(pl.col("shapes", "dtypes", "attributes").cast(pl.String))
    distinct = inputs.unique()
    texts = pl.Series("inputs", [lists_of(*row) for row in distinct.iter_rows()], pl.String)
    joined = inputs.join(
        distinct.with_columns(texts),
        on=inputs.columns,
        how="left",
        nulls_equal=True,
        maintain_order="left",
    )
    return rows.with_columns(joined["inputs"])


def span_start(kind: pl.Expr | str, name: Parts, process: pl.Expr, thread: pl.Expr) -> Parts:
    """Return the parts with which the line of every span starts, up to its ``args``."""
    return [
        *('{"ph":"X","cat":"', kind, '","name":"', *name, '","pid":', process.fill_null(0)),
        *(',"tid":', thread.fill_null(0), ',"ts":', microseconds("start_ns")),
        *(',"dur":', microseconds("dur_ns"), ',"args":{'),
    ]


def _quoted_arg(key: str, text: pl.Expr) -> pl.Expr:
    return pl.concat_str(pl.lit(f',"{key}":"'), text, pl.lit('"')).fill_null("")


def host_parts() -> Parts:
    """Return the parts of the line of a host event."""
    is_module = pl.col("kind") == "python_function"
    number = pl.concat_str(pl.lit("_"), pl.col("number").cast(pl.String)).fill_null("")
    identity = pl.col("event") + 1
    return [
        *span_start(pl.col("kind"), [pl.col("text"), number], pl.col("process"), pl.col("thread")),
        *('"Ev Idx":', pl.col("event")),
        optional_arg("External id", pl.when(~is_module).then(identity)),
        optional_arg("Python id", pl.when(is_module).then(identity)),
        optional_arg("Python parent id", pl.col("module") + 1),
        optional_arg("Python module id", pl.col("number")),
        optional_arg("Sequence number", pl.col("sequence")),
        optional_arg("Fwd thread id", pl.col("forward_thread")),
        pl.col("collective").fill_null(""),
        pl.col("inputs").fill_null(""),
        optional_arg("Call stack", pl.col("callstack")),
        _quoted_arg("axis", pl.col("axis")),
        *(optional_arg(key, pl.col(key)) for key in ("stage", "chunk", "micro_batch")),
        _quoted_arg("phase", pl.col("phase")),
        "}}",
    ]

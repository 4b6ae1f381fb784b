"""The schema of ``ppprof diff``."""

from __future__ import annotations

from ppprof.schemas.shorthand import document, fields, rows, schema_version, tables

_FORMS = ("baseline", "experiment", "delta", "delta_ratio", "noise")


def _compared(*numbers: str, forms: tuple[str, ...] = _FORMS) -> dict[str, str]:
    """Return the columns of each number, such as ``baseline_step_ns`` and ``delta_ratio_step``."""
    columns = (
        f"{form}_{number.removesuffix('_ns') if form == 'delta_ratio' else number}"
        for number in numbers
        for form in forms
    )
    return dict.fromkeys(columns, "number | null")


_INTERVAL = {
    "low": "number | null: Lower end of the 95% interval of ratio.",
    "high": "number | null: Upper end of the 95% interval of ratio.",
}

_STEP_TIME = {
    "verdict": "$verdict",
    "ratio": "number | null: Change of the step time as a ratio.",
    **_INTERVAL,
    "baseline_steps": "integer",
    "experiment_steps": "integer",
    "is_separated": "boolean: Whether no step of one run is as long as one of the other.",
    "needed_steps": "integer | null: About how many steps would decide; null if it is decided or unknown.",
    "growth_ns": "array[number | null]: What the steps of either run grow by from one to the next; null unless that is clear.",
    "steps_are": "array[string]: Which steps are compared.",
}

_RATE = {
    "metric": {"enum": ["ips", "tokens_per_s"]},
    "verdict": {"enum": ["higher", "lower", "no difference seen", "inconclusive"]},
    "ratio": "number: Change of the rate as a ratio.",
    **_INTERVAL,
    "count_ratio": "number: Change of the samples or tokens of a step as a ratio.",
}

_COMPARABILITY = {
    "score": "number | null: How much of the work is the same, as a ratio.",
    "shares": "object[number | null]: The same by kind, as ratios.",
    "differences": "array[array | string | object]: Settings that differ.",
}

_WORK = {
    "flops_ratio": "number | null: Change of the floating point operations as a ratio.",
    "dims": "object | null: A dimension that changed: from, to, and the operators with it.",
    "slower": "object | null: An operator that is slower at equal work: name and delta_ratio.",
    "dtypes": "object | null: The dtype in which most floating point operations are computed, if it changed: from and to.",
}

_OVERVIEW = {
    "metric": "string: The number.",
    "unit": "string | null: Its unit.",
    "baseline": "number | null: In the unit of the row.",
    "experiment": "number | null: In the unit of the row.",
    "delta": "number | null: experiment minus baseline, in the unit of the row.",
    "delta_ratio": "number | null: delta as a ratio of baseline.",
    "baseline_text": "string | null: The value where it is text.",
    "experiment_text": "string | null: The value where it is text.",
}

_RANK = {
    "baseline_rank": "integer | null",
    "experiment_rank": "integer | null",
    "coordinate": "string | null",
    "status": "$status",
    **_compared("step_ns", "own_ns", "computation_ns", "exposed_ns", "data_loading_ns"),
    **_compared("bubble_ns", "host_bound_ns", "queued_ns", "rest_ns"),
    "is_clear": "boolean | null",
}

_MODULE = {
    "stage": "integer | null",
    "depth": "integer",
    "name": "string",
    "status": "$status",
    **_compared(
        *("time_ns", "self_ns", "cpu_ns", "gpu_ns", "calls"),
        forms=("baseline", "experiment", "delta"),
    ),
    "delta_ratio": "number | null",
    **_compared("time_ns", "self_ns", "calls", forms=("noise",)),
    "is_clear": "boolean | null",
    **_compared("until_ns", forms=("baseline", "experiment")),
}

_COSTS = {
    "line": ["time_ns"],
    "op": ["calls", "cpu_total_ns", "cpu_self_ns", "gpu_total_ns", "gpu_self_ns"],
    "kernel": ["calls", "gpu_total_ns"],
    "dist": ["calls", "total_ns"],
    "runtime": ["calls", "cpu_total_ns"],
    "shape": ["calls", "flops", "time_ns"],
}
"""The numbers of the tables with a row for each name."""

_TABLES = {
    "overview?": fields(_OVERVIEW, "Numbers of the whole run; unit is the unit of the row."),
    "rank?": fields(_RANK, "Parts of a step, rank by rank."),
    **{
        f"{table}?": fields(
            {
                "name": "string",
                "status": "$status",
                **_compared(*numbers),
                "is_clear": "boolean | null: Whether the change is beyond the noise; null if unknown.",
            }
        )
        for table, numbers in _COSTS.items()
    },
    "module?": fields(_MODULE, "Modules, as a tree in pre-order."),
}

_TWO_RUNS = {
    "schema_version": schema_version(2),
    "baseline": "string: The first run.",
    "experiment": "string: The second run.",
    "step_time": fields(_STEP_TIME),
    "rates": rows(
        _RATE,
        "Samples and tokens per second, if the steps of both runs have other numbers of them.",
    ),
    "comparability": fields(_COMPARABILITY),
    "work": fields(_WORK),
    "rules": "array[$outcome]",
    "tables": tables(
        _TABLES,
        "Rows of each table of --views: baseline_X, experiment_X, delta_X, delta_ratio_X (relative to the baseline) and noise_X (standard error of the change) of each number X, per step; units end a name.",
    ),
}

_RUN = {
    "side": {"enum": ["baseline", "experiment"]},
    "run": "string",
    "num_steps": "integer",
    "wall_ns": "number: Mean time of a step.",
    "mean_ns": "number: Mean of adjusted steps: without the wait for a processor.",
    "median_ns": "number: Median of adjusted steps.",
    "quiet_ns": "number: 10% quantile of adjusted steps.",
    "wait_ratio": "number | null: Ratio of the steps in which the thread waited for a processor.",
    "num_left_out": "integer: Number of the run's other steps, which some run lacks.",
}

_SEVERAL_RUNS = {
    "schema_version": schema_version(2),
    "change": "$runs_change: Of the mean adjusted step.",
    "median_step": "$runs_change: Of the median adjusted step.",
    "quiet_steps": "$runs_change: Of the 10% quantile of adjusted steps.",
    "wait_difference": "string | null: A sentence if the waits for a processor differ.",
    "runs": rows(_RUN),
    "thresholds": "array[$outcome]",
}

_OUTCOME = {
    "rule": "string: The rule, as given.",
    "status": {"enum": ["pass", "fail", "inconclusive"]},
    "detail": "string: The change and its interval.",
}

_RUNS_CHANGE = {
    "ratio": "number: Geometric mean of the experiment's step times over that of the baseline's, minus 1.",
    **_INTERVAL,
    "num_runs": {
        **{"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2},
        "description": "Number of runs of either side.",
    },
    "spread": "number | null: Standard deviation of the logarithm of equal runs.",
    "needed_runs": "integer | null: About how many runs of either side would decide; null if it is decided.",
    "verdict": "$verdict",
}

SCHEMA = document(
    "diff",
    2,
    "What changed between two runs, or the step time of several. Times are in nanoseconds per step; ratios are changes, 0.1 for 10% more.",
    "$two_runs | $several_runs",
    two_runs=fields(_TWO_RUNS),
    several_runs=fields(_SEVERAL_RUNS),
    verdict={"enum": ["faster", "slower", "no difference seen", "inconclusive"]},
    status={"enum": ["both", "new", "gone"], "description": "Which of the two runs has it."},
    outcome=fields(_OUTCOME, "Result of a rule of --fail-if."),
    runs_change=fields(_RUNS_CHANGE),
)

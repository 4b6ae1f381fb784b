"""The schema of ``ppprof ranks``."""

from ppprof.schemas.shorthand import document, fields, schema_version, tables

_CLOCK = {
    "method": "string: How it is known: same, measured, collectives ...",
    "offset_ns": "integer: To add to the rank's times.",
    "drift_ppm": "number | null: Drift, in parts per million; null if unknown.",
    "error_ns": "integer | null: Most that the offset is wrong by.",
    "offset_by_starts_ns": "integer | null: The offset by the starts of collectives alone, to compare; null if unknown.",
}

_PARTS = {
    "rank?": "integer",
    "host?": "string | null: Name of the machine; null if unknown.",
    **{
        f"{axis}?": f"integer | null: Position on the axis {axis}; null if unknown."
        for axis in ("dp", "pp", "sharding", "sep", "mp")
    },
    "window?": "integer | null",
    "step?": "integer | null",
    "num_steps?": "integer: Number of steps that the times are means of.",
    "step_ns": "number | null: The step.",
    "computation_ns": "number | null: Computation.",
    "data_loading_ns": "number | null: Waiting for data.",
    "bubble_ns": "number | null: Idle time that the pipeline schedule imposes.",
    "host_bound_ns": "number | null: The device waits for the host; null without device events.",
    "queued_ns": "number | null: The device waits although work is queued; null without device events.",
    "rest_ns": "number | null: Other time.",
    "host_launch_ns": "number | null: Time of the host in launches, beside the sum; null without device events.",
}

_COMMUNICATION = {
    f"^{part}_.+_ns$": {"type": ["number", "null"], "description": meaning}
    for part, meaning in (
        ("exposed", "Communication over the axis that no computation hides."),
        ("communication", "All communication over the axis, beside the sum."),
        ("hidden", "Communication over the axis that computation hides, beside the sum."),
    )
}

_OWN_AXES = {
    "type": ["integer", "null"],
    "description": "Position on an axis of the job's own.",
}

_RANK = {"rank": "integer: The rank."}
_ROLE = {
    "role": "string: Ranks of one role do equal work: stage 0; empty without a pipeline.",
}
_AXIS = {
    "axis": "string | null: Axis of the group, such as dp, or pp+mp for a group over two; ? if unknown.",
}
_GROUP = {
    "members": "string: Ranks of a group, 0,4, or sender and receiver, 0>4.",
    **_AXIS,
}
_BUS = {"bus_bytes_per_s": "number | null: busbw of nccl-tests; null if the bytes are unknown."}
_EXCESS = {
    "excess_ns": "number | null: Time in a typical step above that of the peers or siblings.",
}
_TESTED = {
    **_EXCESS,
    "noise_ns": "number | null: Standard error of excess_ns.",
    "is_slow": "boolean | null: Whether the excess is above 5 standard errors and above 5% of a step.",
}

_COLLECTIVES = {
    **_GROUP,
    "calls": "integer: Number of collectives.",
    "transfer": "integer: Number of collectives that the link makes long.",
    "skew": "integer: Number of collectives that a late rank makes long.",
    "mixed": "integer: Number of collectives that both make long.",
    "inconclusive": "integer: Number of collectives of which the clocks do not say it.",
    "last_rank": "integer | null: The rank that most often arrived last.",
    "last_ratio": "number | null: Ratio of the collectives at which last_rank arrived last.",
    "wait_ns": "number | null: How long a member waits for the last one, mean over members, per step.",
    "cost_ns": "number | null: Last arrival minus median arrival, per step.",
    "transfer_ns": "number | null: From the last arrival to the last end, per step.",
    **_BUS,
}

_BANDWIDTHS = {
    **_AXIS,
    "op": "string: The communication operation, such as all_reduce.",
    "ranks": "integer: Number of ranks of the groups.",
    "bytes": "integer: Bytes that a rank contributes.",
    "calls": "number | null: Number of collectives per step.",
    "transfer_ns": "number | null: Median of one collective.",
    "algorithm_bytes_per_s": "number | null: algbw of nccl-tests.",
    **_BUS,
    "link_ratio": "number | null: bus_bytes_per_s as a ratio of what the slowest link can send; null if unknown.",
}

_SLOW_RANKS = {
    **_RANK,
    **_ROLE,
    "peers": "integer: Number of other ranks with the same role.",
    **_TESTED,
}

_SLOW_LINES = {**_RANK, "name": "string: The line: train.py:41, step().", **_EXCESS}

_SLOW_GROUPS = fields(
    {**_GROUP, "siblings": "integer: Number of groups that transfer the same.", **_TESTED},
    "How much longer the transfers of each group take than those of its siblings.",
)

_QUEUE = {
    **_RANK,
    "window": "integer: Number of the window, from 0.",
    "step": "integer: Number of the step.",
    "nothing_queued_ns": "integer | null: The device is idle and nothing is queued.",
    "launch_latency_ns": "integer | null: The device is idle between a launch and its kernel.",
    "blocking_call_ns": "integer | null: The device is idle during a call that blocks the host.",
    "other_work_ns": "integer | null: The device is idle although work is queued.",
    "unknown_ns": "integer | null: The device is idle for a reason that the trace does not say.",
    "queue_length": "number | null: Mean number of launched kernels that have not ended.",
    "launch_delay_ns": "number | null: Mean time from a launch to its kernel.",
}

_WHAT_IF = {
    "fixed": "string: What takes its usual time: nothing, all, kind, stage, worker, link, step ...; recorded is the measured time.",
    "stage": "integer | null: The stage.",
    "ranks": "string | null: The ranks whose operations are fixed, separated by commas.",
    "kind": "string | null: The kind of operation.",
    "step": "integer | null: The step.",
    "step_ns": "number | null: The step time, mean over steps.",
    "slowdown": "number | null: The present step time over step_ns: a ratio.",
    "share": "number | null: Share of the possible gain, a ratio; below 0 or above 1 if usual times are longer than recorded ones.",
    "alone_slowdown": "number | null: The step with all others fixed, over the step with all fixed: a ratio.",
    "error_ratio": "number | null: Difference of the replay from the recorded time, as a ratio.",
}

_STEP_TIMES = {
    **_RANK,
    **_ROLE,
    "num_steps": "integer: Number of steps.",
    "step_ns": "number | null: The step.",
    "communication_ns": "number | null: In calls of communication.",
    "reader_ns": "number | null: Reading data.",
    "own_ns": "number | null: The rest of the step.",
    **_EXCESS,
    "excess_low_ns": "number | null: Lower end of the 95% interval of excess_ns; null of fewer than 6 steps.",
    "excess_high_ns": "number | null: Upper end of the 95% interval of excess_ns; null of fewer than 6 steps.",
    "is_slow": "boolean: Whether it is slower than its peers at the last step, by a test with less than one false alarm in 100 hours.",
    "since_step": "integer | null: The first step since which it is; null if it is not.",
}

_WINDOWS = {
    "schema_version": schema_version(1),
    "run": "string: The run.",
    "by": "array[string]: The columns of --by.",
    "steps": "array[integer]: The steps.",
    "clocks": {
        "type": "object",
        "additionalProperties": fields(_CLOCK),
        "description": "Clock of each rank, keyed by rank, relative to the reference clock; of unknown clocks none.",
    },
    "tables": tables(
        {
            "breakdown": fields(
                _PARTS,
                "One row for each group of --by, or rank and step; --by adds its columns. The parts computation, exposed, data_loading, bubble, host_bound, queued and rest add up to step_ns.",
                patternProperties=_COMMUNICATION,
                additionalProperties=_OWN_AXES,
            ),
            "collectives": fields(
                _COLLECTIVES, "One row for each group of ranks that communicates."
            ),
            "bandwidths": fields(_BANDWIDTHS, "One row for each axis, operation and size."),
            "slow_ranks": fields(
                _SLOW_RANKS,
                "How much longer the own work of each rank takes than that of its peers.",
            ),
            "slow_lines": fields(_SLOW_LINES, "The line with most of the excess of a slow rank."),
            "slow_groups": _SLOW_GROUPS,
            "queue": fields(_QUEUE, "Why the device idles; no rows without device events."),
            "what_if?": fields(
                _WHAT_IF, "With --what-if: the step with one cause of delay removed."
            ),
        }
    ),
}

_WITHOUT_WINDOWS = {
    "schema_version": schema_version(1),
    "run": "string: The run.",
    "tables": tables(
        {
            "ranks": fields(_STEP_TIMES, "One row for each rank; medians over steps."),
            "slow_groups": _SLOW_GROUPS,
        }
    ),
}

SCHEMA = document(
    "ranks",
    1,
    "What each rank spends its steps on. Times are in nanoseconds, means of a step; ratios are from 0 to 1.",
    "$windows | $step_times",
    windows=fields(_WINDOWS),
    step_times=fields(_WITHOUT_WINDOWS, "Of a run without a window."),
)

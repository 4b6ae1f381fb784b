"""Messages that are logged in each of the languages of findings and pages."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

LANGUAGES = ("en", "zh")
"""Languages in which findings and pages are written."""

_TEXTS = {
    "truncated": (
        "{path}: partly read: the file is truncated{why}",
        "{path}：只读取了一部分：文件被截断{why}",
    ),
    "skipped": ("{path}: partly read: skipped {what}", "{path}：只读取了一部分：跳过 {what}"),
    "truncated_and_skipped": (
        "{path}: partly read: the file is truncated{why}; skipped {what}",
        "{path}：只读取了一部分：文件被截断{why}; 跳过 {what}",
    ),
    "unrecorded": (
        "{path}: recorded on {device} without device events: its times are those of the host, "
        "which only launches work; times of the device are unknown, and no table shows them",
        "{path}：在 {device} 上记录，但没有设备事件：其时间是主机的，主机只发起工作；"
        "设备的时间未知，任何表都不显示",
    ),
    "lost_events": (
        "{path}: not whole: {num} of {total} launches have no device event with a time; left out of "
        "all tables and averages: {steps} ({num_lost} of {num_steps})",
        "{path}：不完整：{total} 次发起中有 {num} 次没有带时间的设备事件；{steps}"
        "（{num_steps} 步中的 {num_lost} 步）不计入任何表和平均值",
    ),
    "lost_few": (
        "{path}: {num} of {total} launches have no device event with a time, at most 1% of those of "
        "a step: tables and averages count the others",
        "{path}：{total} 次发起中有 {num} 次没有带时间的设备事件，每步至多 1%：表和平均值只计其余的",
    ),
    "unusable": (
        "{path}: not usable for times of the device: {num} of {total} launches have no device event "
        "with a time, {num_lost} of {num_steps} steps are lost ({steps}): its times are those of the "
        "host, and no table shows times of the device",
        "{path}：不能用于设备时间：{total} 次发起中有 {num} 次没有带时间的设备事件，"
        "{num_steps} 步中缺失 {num_lost} 步（{steps}）：其时间是主机的，任何表都不显示设备的时间",
    ),
    "clock_ahead": (
        "{path}: the device's clock was {time} ahead of the host's: corrected, to within {error}",
        "{path}：设备的时钟比主机快 {time}：已校正，误差不超过 {error}",
    ),
    "clock_behind": (
        "{path}: the device's clock was {time} behind the host's: corrected, to within {error}",
        "{path}：设备的时钟比主机慢 {time}：已校正，误差不超过 {error}",
    ),
    "clock_moves": (
        "{path}: the device's clock moved by {time} against the host's within the window: times of the "
        "device against the host's are not corrected, and wrong by as much or more",
        "{path}：设备的时钟在窗口内相对主机变化了 {time}：设备与主机之间的时间未校正，误差至少这么大",
    ),
    "overlaps": (
        "{path}: device events that last beyond the end of the next one on their stream, where work "
        "runs in order: {num} ({names}); their lengths are cut to its start",
        "{path}：{num} 个设备事件持续到同一流上下一个事件结束之后，而流按顺序执行"
        "（{names}）：其时长截断到下一个事件的开始",
    ),
    "dropped": (
        "{path}: not whole: its profiler dropped {num:record|records} of the device, it does not say "
        "which: times of the device are minimums",
        "{path}：不完整：性能分析器丢弃了 {num} 条设备记录，且未说明是哪些：设备时间只是下限",
    ),
    "no_launch": (
        "{path}: {num} of {total} device events have no recorded launch: they belong to no step",
        "{path}：{total} 个设备事件中有 {num} 个没有记录其发起：不属于任何步",
    ),
    "missing_ranks": (
        "{path}: {num} of the {world_size} ranks of its job: what depends on the others is unknown",
        "{path}：任务共 {world_size} 个 rank，这里有 {num} 个：与其他 rank 有关的内容未知",
    ),
    "unknown_kind": (
        "{path}: {num:device event|device events} of the unknown kind {kind}: counted as kernels",
        "{path}：{num} 个未知类别 {kind} 的设备事件按 kernel 计",
    ),
    "look_alikes": (
        "{path}: {num} names of kernels look like communication and are in no table: {names}; they "
        "count as communication only where a recorded collective launches them; --names FILE adds names",
        "{path}：{num} 个 kernel 名称看起来是通信，但不在表中：{names}；"
        "只有由记录到的集合通信发起时才计为通信；可用 --names FILE 添加名称",
    ),
    "incomplete": (
        "{path}: the last {time} were not ended by step(): no table and no average counts them",
        "{path}：最后 {time} 没有以 step() 结束：不计入任何表和平均值",
    ),
    "allocations_end": (
        "{path}: allocations are recorded up to step {step} only, to spare the training memory or time: "
        "tables of memory count no later ones",
        "{path}：为节省训练进程的内存或时间，只记录到第 {step} 步为止的内存分配：内存表不统计之后的分配",
    ),
    "several_ranks": (
        "{path}: {ranks} in one file: each of its processes is read as a rank",
        "{path}：一个文件中有 {ranks}：其中每个进程按一个 rank 读取",
    ),
    "unrelated": (
        "{paths}: {traces}, in the order of their names: nothing in them says that they are of one "
        "job, and what compares ranks holds only if they are; compare others with `ppprof diff`",
        "{paths}：{traces}，按文件名的顺序编号：这些时间线中没有任何内容说明它们属于同一个任务，"
        "只有属于同一个任务时，rank 之间的比较才有意义；其他情况请用 `ppprof diff` 比较",
    ),
    "only_tables": (
        "{path}: only tables are left of this window, no trace",
        "{path}：这个窗口只剩下表，没有 trace",
    ),
    "sampled": (
        "{path}: this window has {total} segments, more than are read at once: {num} of them are "
        "read, at equal distances, and tables count only their steps; for others: ppprof summary FILE",
        "{path}：这个窗口有 {total} 个分段，超过一次读取的上限：等距读取其中 {num} 个，"
        "表只统计这些分段的步；其他分段请用：ppprof summary FILE",
    ),
    "died": (
        "{path}: the process that was reading it died: {error}",
        "{path}：读取它的进程已退出：{error}",
    ),
    "marked_steps": (
        "{path}: no ProfilerStep: {num:step|steps}, each from one {mark} to the next; "
        "--step-mark REGEX chooses other spans",
        "{path}：没有 ProfilerStep：按 {mark} 分为 {num} 步；可用 --step-mark REGEX 选择其他事件",
    ),
    "chosen_steps": (
        "{path}: {num:step|steps}, from spans such as {mark}",
        "{path}：按 {mark} 等事件分为 {num} 步",
    ),
    "inner_steps": (
        "{path}: steps within others: {num}; they are spans of these, not steps",
        "{path}：{num} 步位于其他步之内：按普通事件处理",
    ),
    "repeated_steps": (
        "{path}: the numbers of steps repeat: its {num:step is|steps are} numbered by time, from 0",
        "{path}：步的编号重复：{num} 步按时间从 0 起编号",
    ),
    "no_step": ("{path}: no step in it; left out", "{path}：其中没有步，已略去"),
    "one_step": (
        "{path}: no steps: the whole trace counts as one, step 0",
        "{path}：没有步：整个 trace 算作一步，即第 0 步",
    ),
    "by_order": (
        "{path}: collectives do not name their ranks ({names}); they are matched across ranks by name "
        "and order",
        "{path}：集合通信未记录其 rank（{names}）；已按名称与次序在各 rank 间匹配",
    ),
    "ignored_block": (
        "{path}: its Profiler block is ignored:\n{error}",
        "{path}：忽略其 Profiler 块：\n{error}",
    ),
    "newest": ("{given}: the newest run is {path}", "{given}：最新的运行是 {path}"),
    "open": ("{path}: open it in a browser", "{path}：请用浏览器打开"),
}
"""The texts of each message, keyed by its name, in the order of `LANGUAGES`."""


_PATHS = frozenset({"given", "path", "paths"})
"""Placeholders of paths: a line break in a file's name does not break the message's line."""


class Counted(str):
    """A number as text that is followed by the noun that agrees with it.

    >>> "{num:file|files}".format(num=Counted(1)), f"{Counted('2.5'):copy|copies}", f"{Counted(3)}"
    ('1 file', '2.5 copies', '3')
    """

    def __format__(self, nouns: str) -> str:
        one, bar, many = nouns.partition("|")
        if not bar:
            return super().__format__(nouns)
        return f"{self!s} {one if self == '1' else many}"


class Message(str):
    """A message in English, and what its texts in other languages need.

    >>> message = Message("no_step", path="a.json")
    >>> print(message, translated(message, "zh"))
    a.json: no step in it; left out a.json：其中没有步，已略去
    """

    key: str
    values: dict[str, object]

    def __new__(cls, key: str, **values: object) -> Message:
        """Return the message ``key`` of `_TEXTS` with its ``{placeholders}`` replaced by values."""
        message = super().__new__(cls, _filled(_TEXTS[key][0], values))
        message.key, message.values = key, values
        return message

    def __str__(self) -> Message:  # also of an exception with this message
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return _message, (self.key, self.values)


def _message(key: str, values: dict[str, object]) -> Message:
    return Message(key, **values)


def translated(message: str, language: str) -> str:
    """Return a message in one of `LANGUAGES`; text that is no `Message` stays as it is."""
    if not isinstance(message, Message):
        return message
    return _filled(_TEXTS[message.key][LANGUAGES.index(language)], message.values)


def _filled(text: str, values: Mapping[str, object]) -> str:
    return text.format(
        **{
            name: Counted(str(value).replace("\n", "\\n") if name in _PATHS else value)
            for name, value in values.items()
        }
    )


def message_of(record: logging.LogRecord) -> str:
    """Return the text of a record: the `Message` that was logged, if it was one."""
    logged = record.args[0] if record.msg == "%s" and isinstance(record.args, tuple) else record.msg
    return logged if isinstance(logged, Message) else record.getMessage()


@contextmanager
def logged_warnings() -> Iterator[list[str]]:
    """Return a context manager that gives a list of the warnings that are logged inside it.

    The warnings are logged as usual, too.
    """
    logger = logging.getLogger("ppprof")
    messages: list[str] = []

    def collect(record: logging.LogRecord) -> bool:
        if record.levelno >= logging.WARNING:
            messages.append(message_of(record))
        return True

    # A filter: if the logger had a handler, Python would no longer show warnings by itself.
    logger.addFilter(collect)
    try:
        yield messages
    finally:
        logger.removeFilter(collect)


@contextmanager
def logged_in(language: str) -> Iterator[None]:
    """Translate the messages of the logger ``ppprof`` while the context is open.

    Args:
        language: one of `LANGUAGES`. Nothing changes for English.
    """
    logger = logging.getLogger("ppprof")
    handlers = list(logger.handlers) if language != "en" else []

    def translate(record: logging.LogRecord) -> bool:
        record.msg, record.args = translated(message_of(record), language), ()
        return True

    for handler in handlers:
        handler.addFilter(translate)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(translate)

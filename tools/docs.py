"""Write the generated parts of the docs pages.

    python -m tools.docs
    python -m tools.docs --trainings          # runs the trainings in pages, compares the words
    python -m tools.docs --trainings --write  # and writes what they print into the pages

``docs/config.md`` gets the tables of the keys of two blocks, from the dataclasses and the docstrings
under their fields. ``docs/advice.md`` gets the rules, from the English catalogue. Their
Chinese pages get the same tables, from ``tools/docs.zh.yaml`` and the Chinese catalogue.
``docs/commands.md`` gets usages and arguments, and names pages by their titles. Console sessions in
all pages get the output that their commands print now, see `tools.doc_sessions`. For trainings see
`tools.doc_trainings`.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, get_args, get_type_hints

import yaml

from ppprof.analysis.advice import RULES
from ppprof.analysis.advice.finding import LEAST_RATIO
from ppprof.cli import COMMANDS
from ppprof.config import ProfilerConfig, WindowSchedule
from ppprof.config.training import BLOCKS
from ppprof.config.validation import expected
from ppprof.report.text.advice import read_catalogue
from ppprof.schemas.config import docstrings
from ppprof.units import format_value
from tools import doc_sessions, doc_trainings

DOCS = Path(__file__).parents[1] / "docs"
CONFIG_MARKER = "<!-- written by python -m tools.docs -->\n"
TRANSLATIONS = Path(__file__).with_name("docs.zh.yaml")
_RULES_HEADERS = {"en": "| rule | says |\n", "zh": "| 规则 | 结论 |\n"}

_USUAL_THRESHOLD = {
    "en": " Reported from {least_ratio} of a step.",
    "zh": "达到一步的 {least_ratio} 时给出。",
}
_SAID_ABOVE = {
    "en": (
        " Median rank, mean over steps.",
        " Mean over typical steps of an average rank.",
        " Needs Profiler.profile_memory.",
        " Needs Profiler.python_stacks.",
        " Needs Profiler.record_shapes.",
        " Needs recorded shapes.",
        " Without device events only.",
    ),
    "zh": (
        "取中位 rank，对各步取平均。",
        "按平均 rank 的典型步取平均。",
        "取各 rank 典型步的平均。",
        "需要 Profiler.profile_memory。",
        "需要 Profiler.python_stacks。",
        "需要 Profiler.record_shapes。",
        "需要记录形状。",
        "仅用于没有设备事件的情形。",
    ),
}
"""Sentences of many definitions; the page says them once, above the list."""

_ARGUMENT = re.compile(r"^  \S.*\n(?: {3,}.*\n)*", re.MULTILINE)
"""An argument in a help, with the lines that explain it."""
_SHARED_BY = 3
_EMPTY = re.compile(r"\n[\w ]+:\n(?=\n|$)")
"""The heading of a group of arguments without arguments."""

Translate = Callable[[str], str]
"""Returns an English text of the tables in the page's language."""


@cache
def chinese_texts() -> dict[str, str]:
    """Return the Chinese for each English text of the config tables."""
    pairs = yaml.safe_load(TRANSLATIONS.read_text(encoding="utf-8"))
    return {pair["en"]: pair["zh"] for pair in pairs}


def to_chinese(text: str) -> str:
    """Return the Chinese for an English text of the config tables.

    Raises:
        LookupError: the text has no Chinese.
    """
    if text not in chinese_texts():
        raise LookupError(f"{TRANSLATIONS.name} has no Chinese for {text!r}: add it")
    return chinese_texts()[text]


def config_tables(translate: Translate = str) -> str:
    """Return a section for each block that ppprof itself reads, with a row for each key."""
    sections = []
    blocks: dict[str, type[Any]] = {"Profiler": ProfilerConfig, "Global": BLOCKS["Global"]}
    for name, block in blocks.items():
        about = docstrings(block)[""]
        lines = [f"## {name}\n", f"{translate(about)}\n", *_table(block, "", translate)]
        unused = [f"`{key}`" for key in getattr(block, "UNUSED", ())]
        if unused:
            sentence = translate("Known from FleetX, without effect here: {names}.")
            lines.append("\n" + sentence.format(names=", ".join(unused)))
        if block is ProfilerConfig:
            lines.append("\n" + translate("`scheduler` as a mapping:") + "\n")
            lines += _table(WindowSchedule, "scheduler.", translate)
        sections.append("\n".join(lines))
    return "\n\n".join(sections) + "\n"


def rules_table(language: str = "en") -> str:
    """Return the table of all rules with their titles."""
    catalogue = read_catalogue(language)["rules"]
    rows = [f"| `{rule.name}` | {catalogue[rule.name]['title']} |\n" for rule in RULES]
    return _RULES_HEADERS[language] + "|---|---|\n" + "".join(rows)


def definitions_of_rules(language: str = "en") -> str:
    """Return the list of all rules with the definitions of their numbers."""
    catalogue = read_catalogue(language)["rules"]
    items = []
    for rule in RULES:
        thresholds = {name: format_value(name, value) for name, value in rule.thresholds.items()}
        how = catalogue[rule.name]["how"]
        if rule.thresholds.get("least_ratio") == LEAST_RATIO:
            how = how.removesuffix(_USUAL_THRESHOLD[language])
        for sentence in _SAID_ABOVE[language]:
            how = how.replace(sentence, "")
        items.append(f"- `{rule.name}`: {how.format_map(thresholds)}\n")
    return "".join(items)


def updated_config_page(page: str, translate: Translate = str) -> str:
    """Return ``docs/config.md``, or its Chinese page, with new tables below its marker."""
    text, _, _ = page.partition(CONFIG_MARKER)
    return f"{text}{CONFIG_MARKER}\n{config_tables(translate)}"


def updated_advice_page(page: str, language: str = "en") -> str:
    """Return ``docs/advice.md``, or its Chinese page, with a new table of rules, and their definitions at its end."""
    before, _, rest = page.partition(_RULES_HEADERS[language])
    _, _, after = rest.partition("\n\n")
    after, _, _ = after.partition(f"- `{RULES[0].name}`: ")
    return f"{before}{rules_table(language)}\n{after}{definitions_of_rules(language)}"


def updated_commands_page(page: str) -> str:
    """Return ``docs/commands.md``, or its Chinese page, with new usages and arguments.

    A block of text that begins with a usage is that command's; the other one has shared arguments.
    Links get the titles of the pages that they lead to.
    """
    usages = usages_and_arguments()

    def block(old: re.Match[str]) -> str:
        return f"```text\n{usages[old[1] or '']}```"

    def link(old: re.Match[str]) -> str:
        title, _, _ = (DOCS / old[1]).read_text(encoding="utf-8").partition("\n")
        return f"[{title.removeprefix('# ')}]({old[1]})"

    page = re.sub(
        r"^```text\n(?:usage: ppprof (\w+))?.*?^```$", block, page, flags=re.MULTILINE | re.DOTALL
    )
    return re.sub(r"^\[[^\]]+\]\(([\w.-]+\.md)\)$", link, page, flags=re.MULTILINE)


def usages_and_arguments() -> dict[str, str]:
    """Return the usage of each command, what it does, and its own arguments, from ``--help``.

    The key "" has the arguments that at least three commands explain in the same words.
    """
    with doc_sessions.runs_folder():
        helps = {name: doc_sessions.output(f"ppprof {name} --help") for name in COMMANDS}
    arguments = [entry for text in helps.values() for entry in _ARGUMENT.findall(text)]
    counts = Counter(map(_words, arguments))
    shared: dict[str, str] = {}
    for entry in arguments:
        if counts[_words(entry)] >= _SHARED_BY:
            shared.setdefault(_words(entry), entry)
    own = {name: _usage_and_own_arguments(name, text, shared) for name, text in helps.items()}
    return {"": "".join(shared.values()), **own}


def _usage_and_own_arguments(name: str, text: str, shared: Collection[str]) -> str:
    """Return the parts of a help; of shared arguments, the names alone."""
    usage, _, explained = text.partition("\n\n")
    usage = re.sub(r"(\[-[^\]]*\] ?)+", "[options] ", " ".join(usage.split()), count=1)
    explained, _, _ = explained.partition("Examples:")
    _, explained = re.split(r"^(?=[a-z ]+:$)", explained, maxsplit=1, flags=re.MULTILINE)
    names = []

    def own(entry: re.Match[str]) -> str:
        if _words(entry[0]) not in shared:
            return entry[0]
        names.append(entry[0].split()[0].rstrip(","))
        return ""

    explained = _EMPTY.sub("", _ARGUMENT.sub(own, f"\n{explained.rstrip()}\n"))
    names.remove("-h")  # of every command
    last = f"\nshared arguments: {', '.join(names)}\n" if names else ""
    about = COMMANDS[name]
    return f"{usage}\n\n{about[0].upper()}{about[1:]}.\n{explained}{last}"


def _words(entry: str) -> str:
    """Return an argument and its explanation on one line: the columns differ between commands."""
    return " ".join(entry.split())


UPDATES: dict[str, Callable[[str], str]] = {
    "config.md": updated_config_page,
    "config.zh-CN.md": partial(updated_config_page, translate=to_chinese),
    "advice.md": updated_advice_page,
    "advice.zh-CN.md": partial(updated_advice_page, language="zh"),
    "commands.md": updated_commands_page,
    "commands.zh-CN.md": updated_commands_page,
}
"""The pages with generated parts beside sessions, and the function that updates each."""


def _table(block: type[Any], prefix: str, translate: Translate) -> list[str]:
    header = " | ".join(map(translate, ("key", "default", "expected", "meaning")))
    return [f"| {header} |", "|---|---|---|---|", *_rows(block, prefix, translate)]


def _rows(block: type[Any], prefix: str, translate: Translate) -> Iterator[str]:
    hints, docs = get_type_hints(block), docstrings(block)
    for item in dataclasses.fields(block):
        hint, inner = hints[item.name], _inner(hints[item.name])
        if inner in (None, WindowSchedule) or item.default is None:
            yield _row(item, hint, prefix, docs[item.name], translate)
        if inner not in (None, WindowSchedule):
            yield from _rows(inner, f"{prefix}{item.name}.", translate)


def _row(
    item: dataclasses.Field[Any], hint: Any, prefix: str, meaning: str, translate: Translate
) -> str:
    kind = ""
    if hint is not bool:  # whose default says what it is
        kind = translate("ranks" if hint is Any else expected(hint)) + _bounds(item, translate)
    default = translate("blank") if item.default is None else f"`{_plain(item.default)}`"
    if (prefix, item.name) == ("scheduler.", "record"):
        default = translate("required")
    return f"| `{prefix}{item.name}` | {default} | {kind} | {translate(meaning)} |"


def _inner(hint: Any) -> type[Any] | None:
    """Return the dataclass in a type hint, if any."""
    for choice in (hint, *get_args(hint)):
        if isinstance(choice, type) and dataclasses.is_dataclass(choice):
            return choice
    return None


def _plain(value: Any) -> str:
    return str(list(value) if isinstance(value, tuple) else value).replace("'", "")


def _bounds(item: dataclasses.Field[Any], translate: Translate) -> str:
    words = {"minimum": ", at least {}", "above": ", more than {}", "maximum": ", at most {}"}
    bounds = ((word, item.metadata.get(name)) for name, word in words.items())
    return "".join(translate(word).format(bound) for word, bound in bounds if bound is not None)


def main(argv: Sequence[str] | None = None) -> int:
    """Update all pages, or compare the output of their trainings; return the exit code."""
    parser = argparse.ArgumentParser(description="Write the generated parts of the pages.")
    add = parser.add_argument
    add("--trainings", action="store_true", help="run the trainings in pages; compare the words")
    add("--write", action="store_true", help="with --trainings: write what differs")
    options = parser.parse_args(argv)
    if options.trainings:
        return doc_trainings.compare(write=options.write)
    for name, update in UPDATES.items():
        path = DOCS / name
        path.write_text(update(path.read_text(encoding="utf-8")), encoding="utf-8")
    with doc_sessions.runs_folder():
        for path in (*DOCS.rglob("*.md"), *DOCS.parent.glob("README*.md")):
            page = path.read_text(encoding="utf-8")
            path.write_text(doc_sessions.updated(page), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

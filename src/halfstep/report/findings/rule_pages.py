"""Rules as text for a terminal and as pages of the docs."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

from halfstep.records.rule_text import RuleText

_READERS = {
    "LG": "linter and guard",
    "L": "linter",
    "G": "guard",
}
_FIXES = {
    "safe": "`--fix`",
    "unsafe": "`--unsafe-fixes`",
    None: "by hand",
}


def explanation(rule: RuleText) -> str:
    """All that there is to say about a rule, for a terminal."""
    fix = _FIXES[rule.fixes].replace("`", "")
    return "\n".join(
        [
            f"{rule.code} {rule.name} ({rule.severity}; {_READERS[rule.readers]}; fix: {fix})",
            "",
            rule.summary,
            "",
            *_wrapped(_sentences(rule.text.partition("\n\n")[2])),
            *_wrapped([f"Finding: {_plain(rule.message)}", f"Remedy: {_plain(rule.remedy)}"]),
            "Wrong:",
            *_indented(rule.bad),
            "",
            "Right:",
            *_indented(rule.good),
        ]
    )


def _wrapped(paragraphs: list[str]) -> list[str]:
    return [f"{textwrap.fill(text, 96)}\n" for text in paragraphs]


def _indented(script: str) -> list[str]:
    return [f"    {line}".rstrip() for line in script.strip().splitlines()]


def rule_line(rule: RuleText) -> str:
    """One line of the list."""
    return f"{rule.code}  {rule.severity:<7}  {rule.readers:<2}  {rule.name:<36}  {rule.summary}"


def page(rule: RuleText) -> str:
    """The page of a rule in Markdown."""
    summary, _, rest = rule.text.partition("\n\n")
    parts = [
        f"# {rule.code} {rule.name}",
        summary,
        f"*Severity:* {rule.severity}. *Seen by:* {_READERS[rule.readers]}."
        f" *Put right by:* {_FIXES[rule.fixes]}.",
        *[_headed(text) for text in _sentences(rest)],
        f"**Finding.** {_capital(_plain(rule.message))}",
        f"**Remedy.** {_capital(_plain(rule.remedy))}",
        "## Wrong",
        f"```python\n{rule.bad.strip()}\n```",
        "## Right",
        f"```python\n{rule.good.strip()}\n```",
        f"Silence one line with `# halfstep: ignore[{rule.code}]`; see [linting](../linting.md).",
    ]
    return "\n\n".join(parts) + "\n"


def _sentences(text: str) -> list[str]:
    """What, why and source as paragraphs of their own."""
    flat = " ".join(text.replace("``", "`").split())
    return [part for part in re.split(r"\s*\b(?=(?:What|Why|Source): )", flat) if part]


def _headed(paragraph: str) -> str:
    """With its first word as a heading."""
    head, _, text = paragraph.partition(": ")
    return f"**{head}.** {text if head == 'Source' else _capital(text)}" if text else paragraph


def _capital(text: str) -> str:
    """A sentence that begins with a capital, unless it begins with code."""
    first = text.split(" ", 1)[0]
    return text if set(first) & set("`_.({") else text[:1].upper() + text[1:]


def _plain(text: str) -> str:
    """A message with the names of its fields in it."""
    return re.sub(r"\{(\w+)\}", r"\1", text)


def index_page(rules: Sequence[RuleText]) -> str:
    """The list of all rules in Markdown."""
    rows = [
        f"| [{r.code}]({r.code.lower()}.md) | {r.name} | {r.severity} | {_READERS[r.readers]}"
        f" | {_FIXES[r.fixes]} | {r.summary} |"
        for r in rules
    ]
    return "\n".join(
        [
            "# Rules",
            "",
            "One page per rule, written from the rules themselves by `make docs`. An *error* makes"
            " the result wrong or stops the run, a *warning* costs quality, time or a later resume,"
            " a *note* is harmless in most runs and shown with `--strict`.",
            "",
            "| code | name | severity | seen by | put right by | |",
            "|---|---|---|---|---|---|",
            *rows,
            "",
        ]
    )

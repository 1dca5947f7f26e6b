"""What a rule says of itself as a record."""

from __future__ import annotations

import inspect

from halfstep.records.rule_text import RuleText
from halfstep.rules.rule import Rule


def rule_text(rule: type[Rule]) -> RuleText:
    """The record of a rule.

    Example:
        >>> from halfstep.rules.registry import load
        >>> rule_text(load("HS101")).name
        'clip-before-unscale'
    """
    text = inspect.cleandoc(rule.__doc__ or "")
    return RuleText(
        code=rule.code,
        name=rule.name,
        severity=rule.severity,
        readers=rule.readers,
        fixes=rule.fixes,
        summary=text.splitlines()[0],
        text=text,
        message=rule.message,
        remedy=rule.remedy,
        bad=rule.bad,
        good=rule.good,
    )

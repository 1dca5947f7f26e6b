"""GitLab's code quality report, which stands beside the lines of a merge request.

```yaml
halfstep:
  script:
    - pip install halfstep
    - halfstep check --format gitlab . > halfstep.json
  artifacts:
    when: always
    reports:
      codequality: halfstep.json
```
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

from halfstep.records.source_finding import SourceFinding
from halfstep.report.findings.checked import Checked

_SEVERITIES = {"error": "critical", "warning": "major", "note": "info"}


def render(checked: Checked) -> Iterator[str]:
    """A list with one object per finding, indented."""
    seen: Counter[tuple[str, ...]] = Counter()
    issues = []
    for source in checked.found:
        what = _identity(source)
        issues.append(_issue(source, _fingerprint(*what, str(seen[what]))))
        seen[what] += 1
    yield json.dumps(issues, indent=2)


def _identity(source: SourceFinding) -> tuple[str, ...]:
    """What stays the same when lines are put in elsewhere, so that a finding is not a new one."""
    return source.finding.code, _path(source), source.source.strip()


def _fingerprint(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:40]


def _issue(source: SourceFinding, fingerprint: str) -> dict[str, Any]:
    finding = source.finding
    where = ""
    lines = {"begin": finding.line, "end": source.end_line}
    if finding.cell:  # the lines of a cell are not those of the file
        where = f"Cell {finding.cell}, line {finding.line}: "
        lines = {"begin": 1, "end": 1}
    return {
        "description": f"{where}{finding.message} Remedy: {finding.remedy}",
        "check_name": f"{finding.code} {finding.name}",
        "fingerprint": fingerprint,
        "severity": _SEVERITIES[finding.severity],
        "location": {"path": _path(source), "lines": lines},
    }


def _path(source: SourceFinding) -> str:
    """As the repository writes it: relative, with slashes, without a leading ``./``."""
    return source.finding.path.replace("\\", "/").removeprefix("./")

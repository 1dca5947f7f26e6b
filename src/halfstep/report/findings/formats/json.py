"""One JSON object: `{"findings": [...], "num_files": ..., "problems": [...], "checklist": {...}}`.

Each finding is the record that `halfstep.Finding.from_dict` reads. `--json` is short for it;
`--statistics` adds the number of findings by code.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from halfstep.report.findings.checked import Checked


def render(checked: Checked) -> Iterator[str]:
    """The object, indented."""
    findings = [source.finding for source in checked.found]
    codes = [finding.code for finding in findings]
    data: dict[str, object] = {
        "findings": [finding.to_dict() for finding in findings],
        "num_files": checked.num_files,
        "problems": [{"path": path, "message": reason} for path, reason in checked.problems],
        "checklist": dict(checked.checklist()),
    }
    if checked.statistics:
        data["statistics"] = {code: codes.count(code) for code in sorted(set(codes))}
    yield json.dumps(data, indent=2)

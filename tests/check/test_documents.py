"""Notebooks and Markdown: where findings are, and what stays as it is after a repair."""

from __future__ import annotations

import json
from typing import Any

import pytest

from halfstep.check.documents.document import open_document
from halfstep.check.documents.files import Unreadable
from halfstep.check.linter import check_source
from halfstep.check.repair.fix import fix_data
from halfstep.rules import registry

RULES = registry.select()
BAD = registry.load("HS101").bad
SETUP, LOOP = BAD[: BAD.index("for x, y")], BAD[BAD.index("for x, y") :]
OLD = "import torch\nwith torch.cuda.amp.autocast():\n    pass\n"


def cell(source: str, kind: str = "code") -> dict[str, Any]:
    return {"cell_type": kind, "metadata": {}, "source": source.splitlines(keepends=True)}


def notebook(*sources: str, **options: Any) -> bytes:
    cells = [cell("# autocast, in words", "markdown"), *map(cell, sources)]
    data = {"cells": cells, "metadata": {"é": 1.50}, "nbformat": 4, "nbformat_minor": 5}
    return (json.dumps(data, **{"indent": 1, "ensure_ascii": False, **options}) + "\n").encode()


def places(path: str, data: bytes) -> list[tuple[str, int | None, int]]:
    return [(f.code, f.cell, f.line) for f in check_source(path, data, RULES).findings]


def test_finding_in_a_notebook_names_cell_and_line() -> None:
    data = notebook("%matplotlib inline\n!pip install torch\n" + SETUP, "x = 1\n" + LOOP.rstrip())
    (finding,) = check_source("train.ipynb", data, RULES).findings
    assert (finding.code, finding.cell, finding.line, finding.column) == ("HS101", 3, 4, 5)
    assert [(r.cell, r.line) for r in finding.related] == [(3, 3)]
    assert str(finding).startswith("train.ipynb:cell 3:4:5: HS101")


@pytest.mark.parametrize(
    "magic",
    [
        "%%time\n",
        "%load_ext tensorboard\nfiles = !ls \\\n  -l\nmodel?\n",
        "if True:\n    %time x = 1\n",
        "a = (7\n% 2)\n",
    ],
)
def test_lines_of_ipython_are_no_syntax_error(magic: str) -> None:
    data = notebook(magic + SETUP, LOOP)
    report = check_source("train.ipynb", data, RULES)
    assert (report.problems, [f.code for f in report.findings]) == ([], ["HS101"])


def test_cell_in_another_language_is_skipped() -> None:
    assert places("a.ipynb", notebook("%%bash\nfor (", SETUP, LOOP)) == [("HS101", 4, 3)]


def test_cell_that_is_no_python_is_one_line_and_the_rest_is_checked() -> None:
    report = check_source("a.ipynb", notebook("x = = scaler", SETUP, LOOP), RULES)
    assert report.problems == [("a.ipynb", "cell 2: invalid syntax", True)]
    assert [f.code for f in report.findings] == ["HS101"]


@pytest.mark.parametrize(
    "data", [b"scaler", b"[1, 'scaler']", b'{"cells": {"scaler": 1}}', b'{"cells": [{"scaler']
)
def test_file_that_is_no_notebook_is_one_line(data: bytes) -> None:
    report = check_source("a.ipynb", data, RULES)
    assert report.problems == [("a.ipynb", "not a notebook", True)]


@pytest.mark.parametrize(
    "options",
    [{}, {"indent": None}, {"indent": 4, "ensure_ascii": True}, {"separators": (",", ":")}],
    ids=["jupyter", "one line", "escaped", "tight"],
)
def test_repair_in_a_notebook_changes_its_line_alone(options: dict[str, Any]) -> None:
    before = notebook("%time x = 'ä'", OLD.rstrip(), "y = 2\n", **options)
    fixed = fix_data("a.ipynb", before, RULES)
    new, old = "torch.amp.autocast(", "torch.cuda.amp.autocast("
    quote = '\\"cuda\\"'
    assert fixed.new == before.replace(f"{old})".encode(), f"{new}{quote})".encode())
    assert fixed.counts == {"HS303": 1}


def test_repair_that_adds_a_line_adds_it_to_the_list_of_its_cell() -> None:
    fixed = fix_data("a.ipynb", notebook(SETUP, LOOP), RULES, unsafe=True)
    cells = json.loads(fixed.new)["cells"]
    assert cells[1] == cell(SETUP)
    added = LOOP.replace("    nn.utils", "    scaler.unscale_(optimizer)\n    nn.utils")
    assert cells[2] == cell(added)
    assert places("a.ipynb", fixed.new) == []


def test_source_as_one_string_stays_one() -> None:
    data = json.loads(notebook(OLD))
    data["cells"][1]["source"] = OLD
    fixed = fix_data("a.ipynb", json.dumps(data).encode(), RULES)
    assert json.loads(fixed.new)["cells"][1]["source"] == OLD.replace(
        "torch.cuda.amp.autocast()", 'torch.amp.autocast("cuda")'
    )


MARKDOWN = f"""\
# autocast

- a list:

  ```python title="train.py"
  import torch
  with torch.cuda.amp.autocast():
      pass
  ```

```bash
python train.py
```

~~~py
{OLD}~~~

````md
```python
not = python
```
````
"""


def test_findings_in_markdown_have_the_lines_and_columns_of_the_file() -> None:
    found = check_source("guide.md", MARKDOWN.encode(), RULES).findings
    assert [(f.code, f.line, f.column) for f in found] == [("HS303", 7, 8), ("HS303", 17, 6)]


def test_code_block_that_is_no_python_is_one_line() -> None:
    text = MARKDOWN + "```python\nscaler = (\n```\n"
    report = check_source("guide.md", text.encode(), RULES)
    assert [(p, reason) for p, reason, _ in report.problems] == [
        ("guide.md", "line 27: '(' was never closed")
    ]
    assert len(report.findings) == 2


def test_session_of_an_interpreter_in_markdown_is_passed_over() -> None:
    text = MARKDOWN + "```python\n>>> scaler = 3\n>>> scaler\n3\n```\n"
    report = check_source("guide.md", text.encode(), RULES)
    assert (len(report.findings), report.problems) == (2, [])


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_repair_in_markdown_leaves_all_else(end: str) -> None:
    before = MARKDOWN.replace("\n", end).encode()
    after = before.replace(b"torch.cuda.amp.autocast()", b'torch.amp.autocast("cuda")')
    assert fix_data("guide.md", before, RULES).new == after


def test_document_of_version_three_says_how_to_convert() -> None:
    with pytest.raises(Unreadable, match="version 3; convert it with: jupyter nbconvert"):
        open_document("a.ipynb", b'{"worksheets": [{"cell_type": "code"}]}')

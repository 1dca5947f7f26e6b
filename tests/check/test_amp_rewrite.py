"""HS303 rewrites `torch.cuda.amp`: the new text says what the table says, and means the same."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest
import torch

from halfstep.check.linter import check_text
from halfstep.check.source.facts import Facts
from halfstep.check.source.module import Module
from halfstep.rules import registry
from halfstep.rules.rule import Edit, SourceRule

RULE = registry.load("HS303")


def hits(text: str, path: str = "train.py") -> list[tuple[Edit, ...]]:
    assert issubclass(RULE, SourceRule)
    return [hit.edits for hit in RULE().check(Facts(Module(path, text)))]


def rewritten(text: str) -> str:
    """`text` with all edits made, each once; no two may touch the same place."""
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))
    data = text.encode()
    edits = {edit for group in hits(text) for edit in group}
    spans = sorted(
        (starts[e.place.line - 1] + e.place.column - 1, _end(starts, e), e.text) for e in edits
    )
    assert all(a[1] <= b[0] and a[:2] != b[:2] for a, b in itertools.pairwise(spans))
    for start, end, new in reversed(spans):
        data = data[:start] + new.encode() + data[end:]
    return data.decode()


def _end(starts: list[int], edit: Edit) -> int:
    return starts[edit.place.end_line - 1] + edit.place.end_column - 1


TABLE = [
    # calls by the whole name
    ("torch.cuda.amp.GradScaler()", 'torch.amp.GradScaler("cuda")'),
    ("torch.cuda.amp.GradScaler(2.0**10)", 'torch.amp.GradScaler("cuda", 2.0**10)'),
    ("torch.cuda.amp.GradScaler(enabled=amp)", 'torch.amp.GradScaler("cuda", enabled=amp)'),
    ("torch.cuda.amp.GradScaler(**options)", 'torch.amp.GradScaler("cuda", **options)'),
    ("torch.cuda.amp.grad_scaler.GradScaler()", 'torch.amp.GradScaler("cuda")'),
    ("torch.cpu.amp.GradScaler()", 'torch.amp.GradScaler("cpu")'),
    ("torch.cuda.amp.autocast()", 'torch.amp.autocast("cuda")'),
    ("torch.cuda.amp.autocast(amp)", 'torch.amp.autocast("cuda", enabled=amp)'),
    ("torch.cuda.amp.autocast( amp )", 'torch.amp.autocast( "cuda", enabled=amp )'),
    ("torch.cuda.amp.autocast((amp))", 'torch.amp.autocast("cuda", enabled=(amp))'),
    ("(torch.cuda.amp.autocast)(amp)", '(torch.amp.autocast)("cuda", enabled=amp)'),
    ("torch.cuda.amp.GradScaler( )", 'torch.amp.GradScaler("cuda" )'),
    (
        "torch.cuda.amp.autocast(amp, torch.float16, False)",
        'torch.amp.autocast("cuda", enabled=amp, dtype=torch.float16, cache_enabled=False)',
    ),
    ("torch.cuda.amp.autocast (enabled=amp)", 'torch.amp.autocast ("cuda", enabled=amp)'),
    ("torch.cpu.amp.autocast(amp)", 'torch.amp.autocast("cpu", enabled=amp)'),
    (
        "torch.cuda.amp.autocast(  # mixed\n    amp)",
        'torch.amp.autocast("cuda", enabled=  # mixed\n    amp)',
    ),
    (
        "torch.cuda.amp.autocast(\n    enabled=amp,  # by a flag\n)",
        'torch.amp.autocast(\n    "cuda", enabled=amp,  # by a flag\n)',
    ),
]
HEAD = "import torch\n\namp, options = True, {}\n"
WHOLE = [
    (
        "import torch as t\nscaler = t.cuda.amp.GradScaler()\n",
        'import torch as t\nscaler = t.amp.GradScaler("cuda")\n',
    ),
    (
        "from torch.cuda.amp import GradScaler, autocast as ac\n\n"
        "scaler: GradScaler = GradScaler()\nwith ac(enabled=False):\n    pass\n",
        "from torch.amp import GradScaler, autocast as ac\n\n"
        'scaler: GradScaler = GradScaler("cuda")\nwith ac("cuda", enabled=False):\n    pass\n',
    ),
    (
        "from torch.cuda import amp\n\nwith amp.autocast(False):\n    pass\n",
        'from torch import amp\n\nwith amp.autocast("cuda", enabled=False):\n    pass\n',
    ),
    (
        "import torch.cuda.amp as amp\n\nscaler = amp.GradScaler()\n",
        'import torch.amp as amp\n\nscaler = amp.GradScaler("cuda")\n',
    ),
    (
        "from torch.cuda.amp import (\n    custom_bwd,  # backward\n    custom_fwd,\n)\n\n"
        "@custom_fwd\ndef f(ctx): ...\n\n@custom_fwd(cast_inputs=None)\ndef g(ctx): ...\n\n"
        "@custom_bwd\ndef h(ctx): ...\n",
        "from torch.amp import (\n    custom_bwd,  # backward\n    custom_fwd,\n)\n\n"
        '@custom_fwd(device_type="cuda")\ndef f(ctx): ...\n\n'
        '@custom_fwd(device_type="cuda", cast_inputs=None)\ndef g(ctx): ...\n\n'
        '@custom_bwd(device_type="cuda")\ndef h(ctx): ...\n',
    ),
    (
        "import torch\n\n@torch.cuda.amp.autocast()\ndef café(x): return '∞'\n",
        "import torch\n\n@torch.amp.autocast(\"cuda\")\ndef café(x): return '∞'\n",
    ),
    (
        "import torch\n\né = 'ü'; s = torch.cuda.amp.GradScaler(); f = torch.cuda.amp.autocast()\n",
        "import torch\n\né = 'ü'; s = torch.amp.GradScaler(\"cuda\"); "
        'f = torch.amp.autocast("cuda")\n',
    ),
    (
        "import torch\n\nlow = torch.bfloat16\ncontext = torch.cuda.amp.autocast(enabled=True)\n",
        "import torch\n\nlow = torch.bfloat16\n"
        'context = torch.amp.autocast("cuda", dtype=torch.float16, enabled=True)\n',
    ),
    (
        "import torch\n\ndef f(g):\n    return torch.cuda.amp.custom_bwd(g)\n",
        'import torch\n\ndef f(g):\n    return torch.amp.custom_bwd(g, device_type="cuda")\n',
    ),
]


@pytest.mark.parametrize(("old", "new"), TABLE)
def test_call_is_rewritten_as_in_the_table(old: str, new: str) -> None:
    assert rewritten(f"{HEAD}made = {old}\n") == f"{HEAD}made = {new}\n"


@pytest.mark.parametrize(("old", "new"), WHOLE)
def test_file_is_rewritten_as_in_the_table(old: str, new: str) -> None:
    assert rewritten(old) == new
    assert check_text("train.py", new, [RULE]) == []


def state(made: Any) -> Any:
    """What distinguishes two contexts or scalers."""
    if isinstance(made, torch.amp.GradScaler):
        values = (made._init_scale, made._growth_factor, made._growth_interval)
        return (made._device, made._enabled, *values)
    return (made.device, made.fast_dtype, made._enabled, made._cache_enabled)


@pytest.mark.parametrize("old", [old for old, _ in TABLE])
def test_rewritten_call_makes_the_same_object(old: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # a scaler without CUDA turns itself off and forgets its arguments
    monkeypatch.setattr("torch.cuda.amp.common.amp_definitely_not_available", lambda: False)
    made = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the old names warn, and there is no CUDA here
        for text in (old, rewritten(f"{HEAD}made = {old}\n")):
            names: dict[str, Any] = {}
            exec(text if text.startswith("import") else f"{HEAD}made = {text}\n", names)
            made.append(names["made"])
    assert state(made[0]) == state(made[1])
    assert type(made[1]).__module__.startswith("torch.amp")


REFUSED = {
    "a name that is passed on": (
        "from torch.cuda.amp import autocast\n\nmake = autocast\nautocast()\n"
    ),
    "parentheses around a later argument": (
        "import torch\n\ntorch.cuda.amp.autocast(True, (torch.float16))\n"
    ),
    "two meanings": (
        "try:\n    from torch.cuda.amp import GradScaler\nexcept ImportError:\n"
        "    class GradScaler: ...\nscaler = GradScaler()\n"
    ),
    "a subclass": (
        "from torch.cuda.amp import GradScaler\n\nclass Mine(GradScaler): ...\n\nGradScaler()\n"
    ),
    "positions unknown": "import torch\n\na = (True,)\ntorch.cuda.amp.autocast(*a)\n",
    "keywords unknown": "import torch\n\nd = {}\ntorch.cuda.amp.autocast(**d)\n",
    "something else from there": (
        "from torch.cuda.amp import GradScaler, common\n\nGradScaler()\ncommon\n"
    ),
    "exported": (
        "from torch.cuda.amp import GradScaler\n\n__all__ = ['GradScaler']\nGradScaler()\n"
    ),
    "asked for elsewhere": (
        "import torch\n\ns = torch.cuda.amp.GradScaler()\n"
        "print(isinstance(s, torch.cuda.amp.GradScaler))\n"
    ),
    "no name to write torch with": ("from torch import cuda\n\nscaler = cuda.amp.GradScaler()\n"),
    "a default that may differ": (
        "from torch import bfloat16\nfrom torch.cuda.amp import autocast\n\nautocast()\n"
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_certain_is_found_and_not_rewritten(name: str) -> None:
    found = hits(REFUSED[name])
    assert found
    assert set(found) == {()}

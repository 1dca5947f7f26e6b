"""Programs that save an optimizer without its scaler, by what a repair may do with them.

They stand in ``checkpoint_programs.txt``: ``kind: name`` begins a kind, ``=== name`` a program.
Of *whole* ones the state of the scaler can be saved and restored for certain, of *saved* ones it
can be saved, and the *left* ones take a person. Each defines ``main(args, model, optimizer,
loader)``; ``args.amp`` is on or off, and ``args.path`` may hold the checkpoint of a run before.
``MADE`` stands for a new scaler, ``SWITCHED`` for one that ``args.amp`` enables, ``TRAIN scaler``
for an epoch that steps through it where ``args.amp`` is on, ``ALWAYS scaler`` for one that always
does.
"""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import indent

_MADE = 'torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1)'
_HEAD = "import os\n\nimport torch\nfrom torch import nn\n\n\n"
_FORWARD = """\
for x, y in loader:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16, enabled=args.amp):
        loss = nn.functional.mse_loss(model(x), y)
"""
_SCALED = """\
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
"""
_CHOSEN = f"""\
    if args.amp:
{indent(_SCALED, "    ")}\
    else:
        loss.backward()
        optimizer.step()
"""


def programs() -> dict[str, str]:
    """Whole programs by ``kind: name``."""
    found: dict[str, str] = {}
    text = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
    for part in text.split("kind: ")[1:]:
        kind, rest = part.split("\n", 1)
        for member in rest.split("=== ")[1:]:
            name, body = member.split("\n", 1)
            found[f"{kind}: {name}"] = _HEAD + _written_out(body)
    return found


def _written_out(text: str) -> str:
    def epoch(match: re.Match[str]) -> str:
        loop = _FORWARD + (_CHOSEN if match[2] == "TRAIN" else _SCALED)
        return indent(loop.replace("scaler", match[3]), match[1])

    text = re.sub(r"^( *)(TRAIN|ALWAYS) ([\w.]+)\n", epoch, text, flags=re.MULTILINE)
    return text.replace("SWITCHED", _MADE[:-1] + ", enabled=args.amp)").replace("MADE", _MADE)

"""Uses of `torch.cuda.amp` and `torch.cpu.amp`, which torch has deprecated."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfstep.rules.amp_names import Uses, is_annotation, stands_for
from halfstep.rules.amp_rewrite import edits_of
from halfstep.rules.examples import SETUP
from halfstep.rules.rule import Hit, SourceRule
from halfstep.rules.source import Source


class DeprecatedCudaAmp(SourceRule):
    """Uses of `torch.cuda.amp` and `torch.cpu.amp`, which torch has deprecated.

    What: their `autocast` and `GradScaler`, and CUDA's `custom_fwd` and `custom_bwd`, under
    whatever name they were imported. Why: they warn since torch 2.4 and are to be removed; the new
    ones take the device. Code that chooses between both by version or by `try` is left alone.
    Source: ``torch/cuda/amp/autocast_mode.py``, ``torch/cuda/amp/grad_scaler.py``.
    """

    severity = "warning"
    fixes = "safe"
    words = (
        ("cuda.amp", "cpu.amp", "import amp"),
        ("autocast", "GradScaler", "custom_fwd", "custom_bwd"),
    )
    message = "{name} is deprecated and will be removed."
    remedy = "write {new}."
    bad = (
        SETUP.replace('torch.amp.GradScaler("cpu", ', "torch.cuda.amp.GradScaler(").replace(
            "init_scale=1024.0)", "init_scale=1024.0)  # <- HS303"
        )
        + """\
with torch.cuda.amp.autocast():  # <- HS303
    print(nn.functional.mse_loss(model(batches[0][0]), batches[0][1]))
"""
    )
    good = (
        SETUP
        + """\
with torch.amp.autocast("cuda"):
    print(nn.functional.mse_loss(model(batches[0][0]), batches[0][1]))
"""
    )

    def check(self, source: Source) -> Iterator[Hit]:
        uses = Uses(source)
        for use in uses.all():
            if is_annotation(source, use.node) or uses.has_both(use):
                continue
            where: ast.AST = use.call or use.node
            yield Hit(
                source.place(where),
                edits=edits_of(source, uses, use),
                name=stands_for(use),
                new=_new(use.last, use.device),
            )


def _new(last: str, device: str) -> str:
    if last.startswith("custom"):
        return f'torch.amp.{last}(device_type="{device}", ...)'
    return f'torch.amp.{last}("{device}", ...)'

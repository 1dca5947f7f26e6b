"""A model in FP16 under a gradient scaler."""

from __future__ import annotations

from collections.abc import Iterator

from halfstep.rules.examples import SETUP
from halfstep.rules.low_weights import low_weights
from halfstep.rules.rule import Hit, SourceRule
from halfstep.rules.source import Source

_LOOP = """\
for x, y in batches:
    scaler.scale(loss_of(x, y)).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""


class HalfUnderAutocast(SourceRule):
    """A model in FP16 under a gradient scaler.

    What: `half()` on a model that is then trained with autocast and a scaler. Why: autocast wants
    FP32 parameters and casts them itself; with FP16 ones the gradients are FP16 too, and the
    scaler raises "Attempting to unscale FP16 gradients" at the first step. Live, the parameters of
    a scaled backward are seen to be FP16. Source: ``torch/amp/grad_scaler.py``; pytorch issue
    127176; torch, "Automatic Mixed Precision package": no `half()` on models under autocast.
    """

    readers = "LG"
    words = ((".half(", "float16"), (".parameters(",), ("GradScaler(",))
    message = "{model} becomes FP16 here; the scaler refuses FP16 gradients and the run will stop."
    remedy = "leave the parameters in FP32: autocast casts them for each forward."
    bad = SETUP.replace("nn.Linear(4, 1)", "nn.Linear(4, 1).half()  # <- HS201") + _LOOP
    good = SETUP + _LOOP

    def check(self, source: Source) -> Iterator[Hit]:
        if not any(made.enabled for made in source.scalers()):
            return
        for found in low_weights(source):
            if found.dtype == "float16" and found.sure:
                owner = source.place(found.optimizer)
                yield Hit(source.place(found.cast), (owner, "its optimizer"), model=found.model)

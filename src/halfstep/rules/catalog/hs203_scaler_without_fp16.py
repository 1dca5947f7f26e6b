"""A gradient scaler in a program that is not FP16."""

from __future__ import annotations

from collections.abc import Iterator

from halfstep.rules.examples import SETUP
from halfstep.rules.rule import Hit, SourceRule
from halfstep.rules.source import ScalerMade, Source

_LOOP = """\
for x, y in batches:
    scaler.scale(loss_of(x, y)).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""


class ScalerWithoutFp16(SourceRule):
    """A gradient scaler in a program that is not FP16.

    What: an enabled scaler where every autocast of the file is BF16 or off. Why: BF16 has the
    range of FP32, so nothing needs scaling; the scaler costs a pass over the gradients and hides
    real overflows behind skipped steps. Live, a scale is applied and no FP16 op was seen. Source:
    torch, "Automatic Mixed Precision package".
    """

    severity = "note"
    readers = "LG"
    words = (("GradScaler(",), ("autocast",))
    message = "no autocast of this file casts to FP16, so that the scaler has nothing to protect."
    remedy = "leave the scaler out, or give it enabled=False where the format is BF16."
    bad = SETUP.replace("float16", "bfloat16").replace("=1024.0)", "=1024.0)  # <- HS203") + _LOOP
    good = SETUP + _LOOP

    def check(self, source: Source) -> Iterator[Hit]:
        autocasts = source.autocasts()
        if not autocasts or "half(" in source.text or "fp16" in source.text.lower():
            return
        if any(a.enabled is not False and a.dtypes != {"bfloat16"} for a in autocasts):
            return
        flags = {a.flag for a in autocasts if a.enabled is not False}
        for made in source.scalers():
            if _is_on(made, flags):
                autocast = source.place(autocasts[0].node)
                yield Hit(source.place(made.call), (autocast, "autocast"))


def _is_on(made: ScalerMade, flags: set[str]) -> bool:
    """Whether it is enabled whenever the autocasts are."""
    return bool(made.enabled) or (made.enabled is None and flags == {made.flag})

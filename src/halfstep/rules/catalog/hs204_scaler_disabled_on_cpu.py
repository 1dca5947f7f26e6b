"""A scaler for CUDA in a program for the CPU."""

from __future__ import annotations

from collections.abc import Iterator

from halfstep.rules.examples import SETUP
from halfstep.rules.rule import Hit, SourceRule
from halfstep.rules.source import Source

_LOOP = """\
for x, y in batches:
    scaler.scale(loss_of(x, y)).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""


class ScalerDisabledOnCpu(SourceRule):
    """A scaler for CUDA in a program for the CPU.

    What: `GradScaler()`, whose device is "cuda" unless told otherwise, beside FP16 autocast for
    "cpu". Why: without CUDA the scaler warns once and turns itself off, and FP16 trains unscaled.
    The linter speaks only where the program says "cpu" and nothing else; live, a scaler is seen
    that is off although FP16 ops run. Source: ``torch/amp/grad_scaler.py``, `__init__`.
    """

    readers = "LG"
    words = (("GradScaler(",), ("autocast",), ("cpu",))
    message = "this scaler is for CUDA and turns itself off on a CPU: FP16 then trains unscaled."
    remedy = 'write torch.amp.GradScaler("cpu").'
    bad = SETUP.replace('GradScaler("cpu", init_scale=1024.0)', "GradScaler()  # <- HS204") + _LOOP
    good = SETUP + _LOOP

    def check(self, source: Source) -> Iterator[Hit]:
        running = [a for a in source.autocasts() if a.enabled is not False]
        if any(a.devices != {"cpu"} for a in running) or "cuda" in _without_scalers(source):
            return
        fp16 = next((a for a in running if a.dtypes == {"float16"}), None)
        for made in source.scalers() if fp16 else ():
            if made.enabled and made.devices == {"cuda"}:
                assert fp16 is not None
                yield Hit(source.place(made.call), (source.place(fp16.node), "for the CPU"))


def _without_scalers(source: Source) -> str:
    """The text, less the lines that make a scaler: any other word of CUDA makes it a choice."""
    made = {made.call.lineno for made in source.scalers()}
    lines = enumerate(source.text.splitlines(), 1)
    return "\n".join(line for number, line in lines if number not in made)

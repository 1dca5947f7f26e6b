"""Parameters in FP16 or BF16 that the optimizer steps directly."""

from __future__ import annotations

from collections.abc import Iterator

from halfstep.rules.low_weights import low_weights
from halfstep.rules.rule import Hit, SourceRule
from halfstep.rules.source import Source

_SETUP = """\
import torch
from torch import nn

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
batches = [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(4)]
"""


class LowPrecisionWeights(SourceRule):
    """Parameters in FP16 or BF16 that the optimizer steps directly.

    What: a model cast as a whole, then given to a stock optimizer. Why: BF16 has 8 bits of
    precision, so an update smaller than 1/512 of a weight is rounded away: 1.0 minus 1e-4 stays
    1.0 a hundred times over. Live, the parameters of a step are seen in that format. Source:
    torchtune issue 2254; Micikevicius et al., "Mixed Precision Training", section 3.1.
    """

    severity = "warning"
    readers = "LG"
    words = ((".half(", "float16"), (".parameters(",), (".backward(",), ("optim",))
    message = (
        "{model} becomes {dtype} here and the optimizer steps it so; updates much smaller than a"
        " weight are rounded away."
    )
    remedy = "keep the parameters in FP32 and put the forward under torch.autocast."
    bad = (
        _SETUP.replace("nn.Linear(4, 1)", "nn.Linear(4, 1).to(torch.bfloat16)  # <- HS211")
        + """\
for x, y in batches:
    nn.functional.mse_loss(model(x.bfloat16()), y.bfloat16()).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    )
    good = (
        _SETUP
        + """\
for x, y in batches:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    )

    def check(self, source: Source) -> Iterator[Hit]:
        if source.has_scaler() or ".backward(" not in source.text:
            return
        for found in low_weights(source):
            owner = source.place(found.optimizer)
            where = source.place(found.cast)
            yield Hit(where, (owner, "its optimizer"), model=found.model, dtype=found.dtype)

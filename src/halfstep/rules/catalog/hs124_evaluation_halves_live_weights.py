"""An evaluation that casts the weights which training goes on with."""

from __future__ import annotations

from collections.abc import Iterator

from halfstep.rules.events import CAST, OPTIMIZER, STEP, Event
from halfstep.rules.examples import SETUP
from halfstep.rules.ledger import Ledger
from halfstep.rules.rule import Hit, OrderRule

_LOW = frozenset(["float16", "half", "bfloat16"])


class EvaluationHalvesLiveWeights(OrderRule):
    """An evaluation that casts the weights which training goes on with.

    What: `model.half()` on the model in training, or on its moving average, between two updates.
    Why: `half` works in place; `float()` afterwards does not bring back what was rounded, and a
    weight beyond 65504 is infinite from then on. Source: yolov5, ``val.py``; ultralytics pull
    request 24731.
    """

    severity = "error"
    listens = (CAST, STEP, OPTIMIZER)
    message = "this rounds the live weights to {dtype} in place; training goes on with the result."
    remedy = "evaluate under torch.autocast, or cast a copy: copy.deepcopy(model).half()."
    bad = (
        SETUP
        + """\
def evaluate(net):
    net.half()  # <- HS124
    with torch.no_grad():
        total = sum(float(net(x.half()).sum()) for x, _ in batches)
    net.float()
    return total


for epoch in range(2):
    for x, y in batches:
        scaler.scale(loss_of(x, y)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    evaluate(model)
"""
    )
    good = bad.replace("net.half()  # <- HS124", "net = copy.deepcopy(net).half()").replace(
        "import torch\n", "import copy\n\nimport torch\n", 1
    )

    def __init__(self) -> None:
        self._cast: dict[object, Event] = {}

    def on_event(self, event: Event, ledger: Ledger) -> Iterator[Hit]:
        if event.kind == OPTIMIZER:  # another training begins
            self._cast = {}
        elif event.kind == CAST:
            if (
                event.fact("live")
                and event.fact("dtype") in _LOW
                and any(ledger.num_steps.values())
            ):
                self._cast[event.where] = event
        else:
            for cast in self._cast.values():
                dtype = cast.fact("dtype").replace("half", "float16")
                yield Hit(cast, (event, "training goes on"), dtype=dtype)
            self._cast = {}

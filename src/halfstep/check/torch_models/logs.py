"""What a program shows to people: norms and histograms of gradients among it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from halfstep.check.torch_models.gradients import Grad
from halfstep.check.torch_models.norms import Norm, measured
from halfstep.check.torch_models.table import watches
from halfstep.check.values.base import External, Unknown, Value
from halfstep.check.values.call import Call
from halfstep.check.values.containers import Mapping, flat
from halfstep.check.values.run import Run
from halfstep.rules import events as e

_SHOWS_WORDS = """
    print log log_metric log_metrics add_scalar add_scalars add_histogram info debug warning write
    set_postfix set_postfix_str report
"""
_SHOWS = frozenset(_SHOWS_WORDS.split())
_METERS = re.compile(r"meter|logger|metric|monitor|stats|history|writer")


@watches
def _function(function: External, call: Call, run: Run) -> None:
    if function.last in _SHOWS:
        _show(call, run)


def show_method(owner: Unknown, name: str, call: Call, run: Run) -> None:
    """``logger.info(norm)``, ``meter.update(norm)``."""
    kept = name in ("update", "append", "add") and _METERS.search(owner.name.lower())
    if name in _SHOWS or kept:
        _show(call, run)


def _show(call: Call, run: Run) -> None:
    for value in _shown(call.all()):
        if isinstance(value, Grad):
            value = measured(value.of, call.node, run)
        if isinstance(value, Norm) and value.measure and not value.unscaled:
            run.emit(e.LOGGED, call.node, model=value.measure)
            return


def _shown(values: Iterable[Value]) -> Iterator[Value]:
    for value in flat(values):
        if isinstance(value, Mapping):
            yield from _shown(value.items.values())
        else:
            yield value

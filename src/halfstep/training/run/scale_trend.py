"""A falling loss scale, told apart from the search at the start."""

from __future__ import annotations

from halfstep.records import StepRecord

_ENOUGH = 4


class ScaleTrend:
    """Watches step records for several skips in a row.

    A dynamic scale starts high and is meant to skip until it fits: skips before the first update
    are the search. The same number later says that something broke.
    """

    def __init__(self) -> None:
        self._skips = 0
        self._falls = 0
        self._started = False

    def note(self, record: StepRecord) -> str | None:
        """What to tell the user about this step, if anything.

        Said once per row of skips, at the fourth.
        """
        if record.updated:
            self._started, self._skips, self._falls = True, 0, 0
            return None
        if record.reason != "non_finite":
            return None
        self._skips += 1
        self._falls += record.next_loss_scale < record.loss_scale
        if self._skips != _ENOUGH:
            return None
        at = f"step {record.step}: {_ENOUGH}"
        if not self._falls:
            return (
                f"{at} non-finite windows in a row at a loss scale that does not fall"
                f" ({record.loss_scale:g}); the model makes inf or NaN by itself. Check the batch"
                " first, then the same batch in FP32"
            )
        if not self._started:
            return (
                f"{at} skips in a row while the loss scale searches from above; usual at the start"
                " of FP16, worth a look if it does not stop"
            )
        return (
            f"step {record.step}: the loss scale has fallen {self._falls} times in a row, to"
            f" {record.next_loss_scale:g}; gradients overflow again and again. Check this batch for"
            " inf or NaN first, then the model's largest activations in FP32"
        )

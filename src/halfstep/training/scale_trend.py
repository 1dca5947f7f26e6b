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
        self._in_a_row = 0
        self._started = False

    def note(self, record: StepRecord) -> str | None:
        """What to tell the user about this step, if anything.

        Said once per row of skips, at the fourth.
        """
        if record.updated:
            self._started, self._in_a_row = True, 0
            return None
        if record.reason != "non_finite":
            return None
        self._in_a_row += 1
        if self._in_a_row != _ENOUGH or record.next_loss_scale >= record.loss_scale:
            return self._not_falling(record)
        if not self._started:
            return (
                f"step {record.step}: {_ENOUGH} skips in a row while the loss scale searches from"
                " above; usual at the start of FP16, worth a look if it does not stop"
            )
        return (
            f"step {record.step}: the loss scale has fallen {_ENOUGH} times in a row, to"
            f" {record.next_loss_scale:g}; gradients overflow again and again. Check this batch"
            " for inf or NaN first, then the model's largest activations in FP32"
        )

    def _not_falling(self, record: StepRecord) -> str | None:
        if self._in_a_row != _ENOUGH:
            return None
        return (
            f"step {record.step}: {_ENOUGH} non-finite windows in a row at a loss scale that does"
            f" not fall ({record.loss_scale:g}); the model makes inf or NaN by itself. Check the"
            " batch first, then the same batch in FP32"
        )

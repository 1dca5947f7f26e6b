"""`KindsOfLoss`: what the ranks agree on in the first backward of a run.

In FP16 the losses of a window are divided by a power of two before backward, the same one in the
whole run; it comes from the first divisor of the run, and each rank has another. So the first
backward exchanges the largest, whatever the loss is: a rank that stayed away would leave the others
waiting.
"""

from __future__ import annotations

from collections.abc import Sequence

from halfstep.records import BadValueError, CallOrderError
from halfstep.update.ranks.ranks import Ranks


class KindsOfLoss:
    """Means or sums, by the optimizers that learn from them, and the divisor of sums."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, ...], bool] = {}
        self._open: set[tuple[str, ...]] = set()

    def agree(self, ranks: Ranks, names: Sequence[str], is_sum: bool, nominal: float) -> float:
        """The power of two by which sums are divided in backward; asked at a window's start.

        Args:
            ranks: Several.
            names: Of the optimizers.
            is_sum: Whether the loss is a `LossSum` on this rank.
            nominal: What this rank would take; 0 where it cannot say.

        Returns:
            0 where no rank can say yet; asked again at the next window.

        Raises:
            BadValueError: Sums on some ranks, means on others; on all of them.
            CallOrderError: Another kind than before.

        Syncs: yes, in the first window of these optimizers.
        """
        key = tuple(names)
        before = self._sums.get(key)
        if before is not None and before != is_sum:
            raise CallOrderError(
                "the kind of the loss changed within the run, from"
                f" {_KIND[before]} to {_KIND[is_sum]}: with several processes each optimizer keeps"
                " one kind, so that the others know what to wait for. Return hs.LossSum(total,"
                " divisor) from the start."
            )
        if before is not None and key not in self._open:
            return nominal
        largest, sums, means = ranks.largest([nominal, float(is_sum), float(not is_sum)])
        if sums and means:
            raise BadValueError(
                "this loss is a LossSum on some processes and a mean on others; return the same"
                " kind on all of them."
            )
        self._sums[key] = is_sum
        if is_sum and not largest:
            self._open.add(key)
        else:
            self._open.discard(key)
        return largest


_KIND = {False: "means", True: "LossSums"}

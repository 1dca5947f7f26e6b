"""What can be read from an engine: its parts by name, and its counters."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel

from halfstep.training.followers import Followers
from halfstep.training.named import the_only
from halfstep.update import Counters, LossScale, Update


class EngineViews:
    """The read-only half of `Engine`.

    The singular properties are for engines with one of the thing, or where all share one.
    """

    models: Mapping[str, nn.Module]
    optimizers: Mapping[str, Optimizer]
    _update: Update
    _followers: Followers

    @property
    def model(self) -> nn.Module:
        """The model, where there is one; else see `models`."""
        return the_only("model", "models", self.models.values(), self.models)

    @property
    def optimizer(self) -> Optimizer:
        """The optimizer, where there is one; else see `optimizers`."""
        return the_only("optimizer", "optimizers", self.optimizers.values(), self.optimizers)

    @property
    def loss_scale(self) -> LossScale:
        """The loss scale object; ``engine.loss_scale.value`` is the current factor."""
        scales = self.loss_scales
        return the_only("loss_scale", "loss_scales", scales.values(), scales)

    @property
    def loss_scales(self) -> dict[str, LossScale]:
        """Optimizer name to its loss scale; the same object where they share one."""
        return {lane.name: lane.loss_scale for lane in self._update.lanes}

    @property
    def ema(self) -> AveragedModel | None:
        """The averaged weights, ``None`` without."""
        return the_only("ema", "emas", self.emas.values(), self.emas)

    @property
    def emas(self) -> dict[str, AveragedModel | None]:
        """Model name to its averaged weights."""
        return dict(self._followers.emas)

    @property
    def num_updates(self) -> int:
        """Steps that moved parameters."""
        return self._settled_counters().num_updates

    @property
    def num_skipped(self) -> int:
        """Steps that moved nothing."""
        return self._settled_counters().num_skipped

    @property
    def consumed(self) -> float:
        """The token clock: sum of the divisors of all committed updates."""
        return self._settled_counters().consumed

    @property
    def counters(self) -> dict[str, Counters]:
        """Optimizer name to its own attempts, updates and consumed tokens."""
        self._update.settle()
        return {lane.name: lane.counters for lane in self._update.lanes}

    def _settled_counters(self) -> Counters:
        self._update.settle()
        return self._update.counters

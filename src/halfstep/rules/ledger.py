"""The ledger: in what state gradients, scalers and optimizers are at a point of a program path.

It follows torch's own bookkeeping (stages per scaler and optimizer, reset by ``update``) and what
torch does not keep: which backward passes are in ``.grad``, under which scale, and whether they
were unscaled and stepped. After a mistake it goes on as if the mistake had been put right, so that
one mistake makes one finding.
"""

from __future__ import annotations

from collections.abc import Iterator

from halfstep.rules import events as e
from halfstep.rules.events import Event

READY, UNSCALED, STEPPED = "ready", "unscaled", "stepped"


class Part:
    """The gradients of one backward pass inside ``.grad``.

    Attributes:
        event: The backward.
        scaler: Whose scale they carry or carried; ``None`` if the loss was not scaled.
        epoch: How many updates the scaler had made by then.
        unscaled: The event that divided them by the scale.
        stepped: The step that used them.
        under: The step that had used what was there before, and nothing has cleared.
        after_skip: Whether that step may have been skipped.
        num_clips: Of the window before it.
    """

    __slots__ = (
        *("after_skip", "epoch", "event", "num_clips", "scaler", "stepped", "under"),
        "unscaled",
    )

    def __init__(self, event: Event, epoch: int, num_clips: int) -> None:
        self.event = event
        self.num_clips = num_clips
        self.under: Event | None = None
        self.after_skip = False
        self.scaler = event.scaler
        self.epoch = epoch
        self.unscaled: Event | None = None
        self.stepped: Event | None = None

    def mixes(self) -> bool:
        """Whether it was added to gradients that a step has used, and a scale is in either."""
        return self.under is not None and bool(self.scaler or self.under.scaler)


class Window:
    """One optimizer's gradients since they were last cleared.

    Attributes:
        optimizer: Its name.
        parts: One per backward pass, oldest first.
        clips: Clips of them so far.
        known: Whether `parts` is all there is; ``False`` after a call nobody could look into.
        cleared: What cleared the gradients last, if there were any.
        dropped: The parts that this threw away before any step used them; until the next
            backward.
        skip_known: Whether the program has asked, since the step, if it was skipped.
        skipped: Whether the last step was skipped; ``None`` if the reader cannot know.
        born: Whether the optimizer was made on this path.
    """

    __slots__ = (
        *("born", "cleared", "clips", "dropped", "known", "optimizer", "parts", "skip_known"),
        "skipped",
    )

    def __init__(self, optimizer: str, born: bool) -> None:
        self.optimizer = optimizer
        self.parts: list[Part] = []
        self.clips: list[Event] = []
        self.known = True
        self.cleared: Event | None = None
        self.dropped: list[Part] = []
        self.skip_known = False
        self.skipped: bool | None = None
        self.born = born

    def scaled(self) -> list[Part]:
        """Parts that carry a scale now."""
        return [p for p in self.parts if p.scaler and not p.unscaled and not p.stepped]

    def unscaled(self) -> list[Part]:
        """Parts that were divided by the scale and wait for the step."""
        return [p for p in self.parts if p.unscaled and not p.stepped]

    def waiting(self) -> list[Part]:
        """Parts that no step has used yet."""
        return [p for p in self.parts if not p.stepped]

    def spent(self) -> list[Part]:
        """Parts that a step has used and nothing has cleared."""
        return [p for p in self.parts if p.stepped]

    def may_be_skipped(self) -> bool:
        """Whether the path goes on from a skip, or from a test that may have found one."""
        return self.skip_known if self.skipped is None else self.skipped


class Scale:
    """One scaler.

    Attributes:
        born: Whether it was made on this path.
        epoch: Number of updates so far.
        update: The last of them.
        used: The first ``scale`` of a loss; before it the scaler has no scale at all.
        checks: Unscales and steps since the last update that looked at gradients.
        stages: Optimizer to stage and the event that brought it there, as torch keeps it.
        abandoned: Optimizer to what cleared its gradients while it was unscaled.
        left: Optimizer to the way out of a branch that was taken while it was unscaled.
        early: Optimizers whose gradients carried the scale at the last update.
        idle: Optimizers that were unscaled while nothing waited for a step.
        known: ``False`` after a call nobody could look into, until the next update.
    """

    __slots__ = (
        "abandoned",
        "born",
        "checks",
        "early",
        "epoch",
        "idle",
        "known",
        "left",
        "stages",
        "update",
        "used",
    )

    def __init__(self, born: bool) -> None:
        self.born = born
        self.epoch = 0
        self.update: Event | None = None
        self.used: Event | None = None
        self.checks: list[Event] = []
        self.stages: dict[str, tuple[str, Event]] = {}
        self.abandoned: dict[str, Event] = {}
        self.left: dict[str, Event] = {}
        self.early: set[str] = set()
        self.idle: set[str] = set()
        self.known = True

    def stage(self, optimizer: str) -> str:
        """``"ready"``, ``"unscaled"`` or ``"stepped"``; ready where nobody can know."""
        return self.stages[optimizer][0] if optimizer in self.stages and self.known else READY

    def has_raised(self, optimizer: str) -> bool:
        """Whether an exception left the window of `optimizer` unscaled."""
        left = self.left.get(optimizer)
        return left is not None and bool(left.fact("raised"))

    def reached(self, optimizer: str) -> Event:
        """What brought `optimizer` to its stage."""
        return self.stages[optimizer][1]


class Ledger:
    """State of one program path before the next event.

    Attributes:
        autocast: Enters that have not been left, outermost first.
        num_steps: Steps of each optimizer so far.
        opaque: Whether some call could not be looked into.
        is_cut: Whether the program goes on where the path ends.
    """

    def __init__(self) -> None:
        self.autocast: list[Event] = []
        self.num_steps: dict[str, int] = {}
        self.opaque = False
        self.is_cut = False
        self._only_backward = False  # since the last step or zero_grad of any optimizer
        self._windows: dict[str, Window] = {}
        self._scales: dict[str, Scale] = {}
        self._apply = {
            e.SCALER: self._scaler,
            e.OPTIMIZER: self._optimizer,
            e.AUTOCAST_ENTER: self._enter,
            e.AUTOCAST_EXIT: self._exit,
            e.SCALE: self._scale,
            e.BACKWARD: self._backward,
            e.UNSCALE: self._unscale,
            e.CLIP: self._clip,
            e.EDIT: self._edit,
            e.STEP: self._step,
            e.OUTCOME: self._outcome,
            e.UPDATE: self._update,
            e.ZERO_GRAD: self._zero_grad,
            e.SKIP_TEST: self._skip_test,
            e.OPAQUE: self._opaque,
            e.LEFT: self._left,
        }

    def window(self, optimizer: str) -> Window:
        """The window of `optimizer`."""
        if optimizer not in self._windows:
            self._windows[optimizer] = Window(optimizer, born=False)
        return self._windows[optimizer]

    def scale(self, scaler: str) -> Scale:
        """The state of `scaler`."""
        if scaler not in self._scales:
            self._scales[scaler] = Scale(born=False)
        return self._scales[scaler]

    def windows(self, event: Event) -> Iterator[Window]:
        """The windows that `event` surely concerns and whose content is known."""
        for optimizer in event.optimizers:
            window = self.window(optimizer)
            if window.known:
                yield window

    def early(self, scaler: str) -> set[str]:
        """Optimizers whose gradients wait for a step and are not unscaled yet."""
        return {
            window.optimizer
            for window in self._windows.values()
            if any(part.scaler == scaler for part in window.scaled())
        }

    def apply(self, event: Event) -> None:
        """Take over what `event` does."""
        if event.kind in (e.BACKWARD, e.STEP, e.ZERO_GRAD):
            self._only_backward = event.kind == e.BACKWARD
        change = self._apply.get(event.kind)
        if change is not None:
            change(event)
        for optimizer in event.maybe:
            if event.kind != e.ZERO_GRAD and change is not None:
                self.window(optimizer).known = False

    def _scaler(self, event: Event) -> None:
        if event.scaler:
            self._scales[event.scaler] = Scale(born=True)

    def _optimizer(self, event: Event) -> None:
        for optimizer in event.optimizers:
            made = Window(optimizer, born=True)
            if self._only_backward:  # it may be made after a backward, with its gradients
                made.parts = self.window(optimizer).waiting()
                made.known = self.window(optimizer).known
            self._windows[optimizer] = made

    def _enter(self, event: Event) -> None:
        self.autocast.append(event)

    def _exit(self, event: Event) -> None:
        if self.autocast:
            self.autocast.pop()

    def _scale(self, event: Event) -> None:
        if event.scaler:
            scale = self.scale(event.scaler)
            scale.used = scale.used or event

    def _backward(self, event: Event) -> None:
        epoch = self.scale(event.scaler).epoch if event.scaler else 0
        for optimizer in event.optimizers:
            window = self.window(optimizer)
            part = Part(event, epoch, len(window.clips))
            if window.spent():
                part.under, part.after_skip = window.spent()[-1].stepped, window.may_be_skipped()
                window.parts = window.waiting()  # as if they had been cleared
            window.parts.append(part)
            window.dropped = []
            window.skip_known = False
            window.skipped = None

    def _unscale(self, event: Event) -> None:
        assert event.scaler
        scale = self.scale(event.scaler)
        for optimizer in event.optimizers:
            window = self.window(optimizer)
            if window.known and not window.waiting():
                scale.idle.add(optimizer)
            for part in window.waiting():
                part.unscaled = part.unscaled or event
            if window.parts or not window.known:
                scale.checks.append(event)
            if scale.stage(optimizer) != STEPPED or window.waiting():
                scale.stages[optimizer] = (UNSCALED, event)
            scale.abandoned.pop(optimizer, None)

    def _clip(self, event: Event) -> None:
        for optimizer in event.optimizers:
            self.window(optimizer).clips.append(event)

    def _edit(self, event: Event) -> None:
        for optimizer in event.optimizers:
            if event.fact("how") in ("unscale", "set", "zero"):
                self.window(optimizer).known = False

    def _step(self, event: Event) -> None:
        for optimizer in event.optimizers:
            window = self.window(optimizer)
            if event.scaler:
                self._scaler_step(event, event.scaler, optimizer)
            for part in window.waiting():
                if part.scaler and not event.scaler:  # as if it had gone through the scaler
                    self.scale(part.scaler).checks.append(event)
                part.unscaled = part.unscaled or event
                part.stepped = event
            window.skip_known = False
            self.num_steps[optimizer] = self.num_steps.get(optimizer, 0) + 1

    def _outcome(self, event: Event) -> None:
        for optimizer in event.optimizers:
            self.window(optimizer).skipped = event.fact("skipped")

    def _scaler_step(self, event: Event, scaler: str, optimizer: str) -> None:
        scale = self.scale(scaler)
        scale.checks.append(event)
        if optimizer in scale.early:  # as if the update came now
            scale.stages.pop(optimizer, None)
        else:
            scale.stages[optimizer] = (STEPPED, event)
        scale.early.discard(optimizer)
        scale.abandoned.pop(optimizer, None)

    def _update(self, event: Event) -> None:
        assert event.scaler
        scale = self.scale(event.scaler)
        scale.epoch += 1
        scale.update = event
        scale.checks = []
        scale.early = self.early(event.scaler)
        scale.stages = {}
        scale.abandoned = {}
        scale.left = {}
        scale.idle = set()
        scale.known = True

    def _zero_grad(self, event: Event) -> None:
        for optimizer in (*event.optimizers, *event.maybe):
            window = self.window(optimizer)
            if window.parts or not window.known:
                window.dropped, window.cleared = window.waiting() if window.known else [], event
            window.parts = []
            window.clips = []
            window.known = optimizer in event.optimizers
            for scale in self._scales.values():
                if scale.stage(optimizer) == UNSCALED:
                    scale.abandoned[optimizer] = event

    def _skip_test(self, event: Event) -> None:
        for window in self._windows.values():
            window.skip_known = True

    def _left(self, event: Event) -> None:
        for scale in self._scales.values():
            for optimizer in scale.stages:
                known = scale.left.get(optimizer)
                is_first = known is None or known.fact("raised")
                if scale.stage(optimizer) == UNSCALED and is_first:
                    scale.left[optimizer] = event

    def _opaque(self, event: Event) -> None:
        self.opaque = True
        for optimizer in (*event.optimizers, *event.maybe):
            self.window(optimizer).known = False
        if event.scaler:
            self.scale(event.scaler).known = False

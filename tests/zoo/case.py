"""What a case is, and the registry of all cases."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import halfstep as hs
from zoo.halves import HEALTHY, HELD_OUT, PLANTED
from zoo.torchvision_operators import declare

FP16 = frozenset({"fp16", "fp16 scaled"})
HALVES = FP16 | {"bf16"}
EVERY = HALVES | {"fp32"}
_FILES = {
    "healthy": (
        "adapters",
        "decoders",
        "detection",
        "diffusion",
        "encoders",
        "gans",
        "graphs",
        "image_and_text",
        "recurrent",
        "segmentation",
        "sequences",
        "speech",
        "trained",
        "vision",
    ),
    "planted": (
        "attention",
        "gradients",
        "inputs",
        "losses",
        "normalisation",
        "positions",
        "state",
    ),
}


@dataclass(frozen=True)
class Truth:
    """What is wrong with a planted case, written down before the doctor sees it.

    Attributes:
        kinds: Kinds of cause that are right; more than one where their words overlap, ``"*"``
            where the subject alone decides.
        modules: Patterns of the module's path without the class of the model, as
            ``blocks.1.attn``; ``""`` is the loss function or the model's own forward.
        ops: Names of ops that are right, without ``aten.``; empty where no op is to blame.
        phase: ``"forward"``, ``"backward"`` or empty where no op is to blame.
        passes: In which passes the fault can show; those named must be among them.
        is_precision: Whether FP32 is free of it; ``None`` where both can be said.
        subject: Name of the weight, buffer or part of the batch; empty where none is to blame.
        why: The fault in a sentence, with the sizes that make it one.
    """

    kinds: tuple[str, ...]
    modules: tuple[str, ...]
    ops: tuple[str, ...]
    phase: str
    passes: frozenset[str]
    is_precision: bool | None = True
    subject: str = ""
    why: str = ""


@dataclass(frozen=True)
class Case:
    """A recipe with what is known of it.

    Attributes:
        name: Of the function that makes the recipe.
        kind: The stratum in `halves`.
        build: Makes the recipe; call `recipe` for it.
        needs: Packages beyond torch.
        truth: ``None`` for a healthy case.
        steps: For `halfstep.diagnose`, where the fault shows over steps only.
    """

    name: str
    kind: str
    build: Callable[[], hs.Recipe]
    needs: tuple[str, ...] = ()
    truth: Truth | None = field(default=None, repr=False)
    steps: int = 0

    def recipe(self) -> hs.Recipe:
        """The recipe; its model may import the packages that the case needs."""
        if self.needs:
            declare()
        return self.build()

    @property
    def half(self) -> str:
        """``"held-out"`` or ``"development"``."""
        return "held-out" if self.name in HELD_OUT else "development"

    @property
    def missing(self) -> tuple[str, ...]:
        """Packages that are not installed."""
        return tuple(name for name in self.needs if importlib.util.find_spec(name) is None)


_cases: dict[str, Case] = {}
Build = Callable[[], hs.Recipe]


def healthy(*needs: str) -> Callable[[Build], Build]:
    """Register a function that makes the recipe of a healthy architecture.

    Args:
        needs: Packages beyond torch.
    """

    def register(build: Build) -> Build:
        _add(Case(build.__name__, _kind(HEALTHY, build.__name__), build, needs))
        return build

    return register


def planted(truth: Truth, *needs: str, steps: int = 0) -> Callable[[Build], Build]:
    """Register a function that makes the recipe of a model with a fault.

    Args:
        truth: What is wrong.
        needs: Packages beyond torch.
        steps: For `halfstep.diagnose`.
    """

    def register(build: Build) -> Build:
        _add(Case(build.__name__, _kind(PLANTED, build.__name__), build, needs, truth, steps))
        return build

    return register


def _kind(names: Mapping[str, object], name: str) -> str:
    kinds = [kind for kind, cases in names.items() if name in cases]  # type: ignore[operator]
    if len(kinds) != 1:
        raise ValueError(
            f"the case {name!r} must stand under one kind in zoo/halves.py, found {kinds};"
            " add it there."
        )
    return kinds[0]


def _add(case: Case) -> None:
    if case.name in _cases:
        raise ValueError(f"two cases of the zoo have the name {case.name!r}; rename one.")
    _cases[case.name] = case


def all_cases() -> dict[str, Case]:
    """Every case by name; healthy ones first, then by kind and name."""
    for folder, files in _FILES.items():
        for name in files:
            importlib.import_module(f"zoo.{folder}.{name}")
    order = [*HEALTHY, *PLANTED]
    found = sorted(_cases.values(), key=lambda c: (order.index(c.kind), c.name))
    return {case.name: case for case in found}

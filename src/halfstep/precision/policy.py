"""`Policy`: which op and which module of a run is computed in which precision."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from torch import nn

from halfstep.numerics import FORMATS, Format
from halfstep.precision import policy_file
from halfstep.precision.actions import actions_for, check_ops
from halfstep.precision.context import PolicyContext
from halfstep.precision.device_formats import refuse_format
from halfstep.precision.dispatch import Frame, compile_rules
from halfstep.precision.islands import Island, check_island, make_island, remove_island
from halfstep.precision.nearest import did_you_mean
from halfstep.precision.patterns import check_patterns, modules_named
from halfstep.records import BadTypeError, BadValueError, CallOrderError

if TYPE_CHECKING:
    from halfstep.precision.audit import Audit

FORMATS_TO_TRAIN_IN: Final = ("fp32", "bf16", "fp16")
BASES: Final = ("device", "cuda")
_OTHER_NAMES = {
    **{name: name for name in FORMATS_TO_TRAIN_IN},
    **dict.fromkeys(("float16", "half", "16", "16-mixed"), "fp16"),
    **dict.fromkeys(("bfloat16", "bf16-mixed"), "bf16"),
    **dict.fromkeys(("float32", "float", "32", "no"), "fp32"),
}
_attached: set[tuple[str, ...]] = set()  # patterns that were put on a model in this process


@dataclass(frozen=True, repr=False)
class Policy:
    """Which format a run uses, and which ops and modules are exceptions.

    A policy changes nothing outside of its `autocast` context. It is plain, immutable data that
    can be compared, hashed, copied and pickled.

    Args:
        format: ``"fp32"``, ``"bf16"`` or ``"fp16"``: what matrix products and convolutions run in.
        base: ``"device"`` for torch's own op list of the device, or ``"cuda"`` for CUDA's list on
            any device, so that a failure on a GPU shows on a laptop too.
        ops: Exceptions by op, such as ``{"softmax": "fp32"}``. An op runs in ``"fp32"``, in
            ``"low"`` (the policy's format), in ``"fp16"`` or ``"bf16"``, in the widest dtype of
            its inputs (``"promote"``), or as its inputs come (``"inputs"``). ``softmax.int`` means
            one overload, ``library::op`` an op of an extension.
        modules: Exceptions by name pattern, such as ``{"blocks.*.norm1": "fp32"}``; ``*`` matches
            dots too. Matching modules are FP32 islands. Needs `attach`, which `Engine` calls.
        init_scale: First loss scale of an FP16 run, unless the user gives one.
        reason: Why this policy, for the log.

    Raises:
        BadValueError: An unknown format, base, op or rule, or two rules for one op.

    Example:
        >>> import torch, halfstep as hs
        >>> policy = hs.Policy("fp16", ops={"softmax": "fp32"})
        >>> hidden = torch.ones(2, 4).half()
        >>> with policy.autocast("cpu"):
        ...     torch.softmax(hidden, -1).dtype
        torch.float32
    """

    format: str
    base: str = "device"
    ops: Mapping[str, str] = field(default_factory=dict)
    modules: Mapping[str, str] = field(default_factory=dict)
    init_scale: float | None = None
    reason: str = field(default="asked for", compare=False)

    def __post_init__(self) -> None:
        if self.format not in FORMATS_TO_TRAIN_IN:
            meant = _OTHER_NAMES.get(str(self.format).lower().removeprefix("torch."))
            hint = f"; did you mean {meant!r}?" if meant else "."
            raise BadValueError(
                f"precision must be 'auto', 'fp32', 'bf16' or 'fp16', got {self.format!r}{hint}"
            )
        if self.base not in BASES:
            raise BadValueError(
                f"base must be 'device' or 'cuda', got {self.base!r}"
                f"{did_you_mean(self.base, BASES)}"
            )
        check_ops(self.ops)
        check_patterns(self.modules)
        _check_init_scale(self.init_scale)
        object.__setattr__(self, "ops", MappingProxyType(dict(self.ops)))
        object.__setattr__(self, "modules", MappingProxyType(dict(self.modules)))
        object.__setattr__(self, "_contexts", {})

    @property
    def row(self) -> Format:
        """The format's numbers."""
        return FORMATS[self.format]

    @property
    def exceptions(self) -> list[str]:
        """Ops and modules that are exceptions, in words."""
        islands = [f"islands {' '.join(self.modules)}"] if self.modules else []
        return [*(f"{op} in {rule}" for op, rule in self.ops.items()), *islands]

    def autocast(self, device_type: str) -> PolicyContext:
        """The context for forward and loss, on one kind of device.

        It can be entered any number of times, nested and from several threads. Inside of it,
        `torch.autocast` changes the format (or switches all off); the rules of the policy stay.

        Args:
            device_type: ``"cpu"``, ``"cuda"``.

        Raises:
            BadValueError: torch has no autocast there, or not in this format.
            CallOrderError: The policy has module patterns and was never attached to a model.
        """
        return self._context(device_type, recomputes=False)

    def recompute(self, device_type: str) -> PolicyContext:
        """The context for backward, where activation checkpointing is used.

        `torch.utils.checkpoint` runs parts of the forward again in backward, under torch's autocast
        and without a policy: other dtypes, so an error or silently other gradients. This context
        keeps the rules for it and leaves backward itself outside of autocast. `Engine.backward`
        uses it; in a loop of your own write ``with policy.recompute("cuda"): loss.backward()``.

        Args:
            device_type: As for `autocast`.
        """
        return self._context(device_type, recomputes=True)

    def attach(self, model: nn.Module) -> list[str]:
        """Put the module patterns on a model; calling it again changes nothing.

        The modules get hooks that do nothing unless this policy is active. They stay there, for
        copies and checkpoints of the model too, until `detach`.

        Args:
            model: Its submodules are matched by their dotted names.

        Returns:
            Names of the modules that are islands.

        Raises:
            BadValueError: A pattern matches no module, or a module has FP16 or BF16 weights.
        """
        found = modules_named(model, self.modules)
        for name, module in found.items():
            check_island(module, name)
        for module in found.values():
            make_island(module, Island(tuple(self.modules)))
        _attached.add(tuple(self.modules))
        return list(found)

    def detach(self, model: nn.Module) -> None:
        """Take the hooks that `attach` put on a model away again.

        Seldom needed: torch takes its fused path for attention layers in inference only where
        there are no hooks at all.

        Args:
            model: Also one that was never attached to.
        """
        for module in model.modules():
            remove_island(module, Island(tuple(self.modules)))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Policy:
        """Read a ``precision.toml``.

        Args:
            path: The file.

        Raises:
            BadValueError: The file is missing, is no TOML, is of a newer version, or has an
                unknown key, op or rule; the nearest valid name is in the message.
        """
        values = policy_file.read(Path(path))
        try:
            return cls(**values)
        except BadValueError as error:
            raise BadValueError(f"{os.fspath(path)}: {error}") from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a ``precision.toml``; comments of a file that is there already are kept.

        Args:
            path: The file.

        Raises:
            BadValueError: The file is there and is not a policy, or has comments and tomlkit is
                not installed, which keeps them.
        """
        policy_file.write(Path(path), self.to_dict())

    def to_dict(self) -> dict[str, Any]:
        """The fields that are not defaults, as plain data."""
        values = {
            "format": self.format,
            "base": self.base,
            "init_scale": self.init_scale,
            "reason": self.reason if self.reason != "asked for" else "",
            "ops": dict(self.ops),
            "modules": dict(self.modules),
        }
        return {k: v for k, v in values.items() if v or k in ("format", "base")}

    def audit(self, model: nn.Module, batch: Any) -> Audit:
        """Find what the policy cannot reach: run the model once and list it.

        Custom ops and `autograd.Function` classes without an autocast rule, parameters and inputs
        that were halved by hand, islands that were never called, and torch's own ops that ran in
        16 bits because no list names them.

        Args:
            model: Run once, forward only, in its present mode; its buffers and the random number
                generators are put back.
            batch: A tuple is passed as positional arguments, a mapping as named ones, anything
                else as the only one.
        """
        from halfstep.precision.audit import audit

        return audit(self, model, batch)

    def __str__(self) -> str:
        whose = ["CUDA's op list"] if self.base == "cuda" else []
        return ", ".join([self.format, *whose, *self.exceptions])

    def __repr__(self) -> str:
        rest = [f"{k}={v!r}" for k, v in self.to_dict().items() if k != "format"]
        return f"Policy({', '.join([repr(self.format), *rest])})"

    def __hash__(self) -> int:
        return hash((self.format, self.base, tuple(self.ops.items()), tuple(self.modules.items())))

    def __reduce__(self) -> tuple[Any, ...]:
        plain = (self.format, self.base, dict(self.ops), dict(self.modules))
        return type(self), (*plain, self.init_scale, self.reason)

    def _context(self, device_type: str, *, recomputes: bool) -> PolicyContext:
        contexts: dict[Any, PolicyContext] = self._contexts  # type: ignore[attr-defined]
        found = contexts.get((device_type, recomputes))
        if found is None:
            found = self._make_context(device_type, recomputes)
            contexts[device_type, recomputes] = found
        return found

    def _make_context(self, device_type: str, recomputes: bool) -> PolicyContext:
        refuse_format(self.format, device_type)
        if self.format == "fp32":
            return PolicyContext(device_type, None, None, recomputes)
        if self.modules and tuple(self.modules) not in _attached:
            raise CallOrderError(
                f"the policy makes islands of {', '.join(self.modules)}, but of no model yet: call"
                " policy.attach(model), or give the policy to Engine, first."
            )
        rules = compile_rules(actions_for(self.base, self.ops, device_type), device_type)
        islands = tuple(self.modules)
        frame = Frame({device_type: rules}, islands) if rules or islands else None
        return PolicyContext(device_type, self.row.dtype, frame, recomputes)


def _check_init_scale(value: object) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise BadTypeError(f"init_scale must be a number, got {type(value).__name__}.")
    if not 0 < value < float("inf"):
        raise BadValueError(f"init_scale must be > 0 and finite, got {value}.")

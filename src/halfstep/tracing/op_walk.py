"""Every op of a forward and backward pass, with its place: the base of all tracers here."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

from halfstep.tracing.module_paths import Models, ModulePaths, OnResult, models_in
from halfstep.tracing.source_lines import Line, user_line

# They hand out memory as it is; looking at it would find what lies there by chance.
_UNINITIALISED = ("empty", "new_empty", "empty_like", "empty_strided", "empty_permuted",
                  "new_empty_strided")  # fmt: skip
_PLAIN = (Tensor, torch.nn.Parameter)
_MEASURABLE = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
_FLOATING = frozenset(d for d in vars(torch).values()
                      if isinstance(d, torch.dtype) and d.is_floating_point)  # fmt: skip

_sequence_number = torch.autograd._get_sequence_nr  # type: ignore[attr-defined]


class Place(NamedTuple):
    """Where an op belongs.

    Attributes:
        phase, module: As in `OpRecord`.
        line: File and line of the user's code.
        gradient_of: Autograd node of a backward op.
    """

    phase: str
    module: str
    line: Line | None
    gradient_of: str


@dataclass(slots=True)
class OpKind:
    """What is known about an op before it runs.

    Attributes:
        name: As ``aten.mul``.
        is_view: Its result is its input.
        is_silent: No record: views and uninitialised memory.
    """

    name: str
    is_view: bool
    is_silent: bool


class Seen(NamedTuple):
    """One floating-point result.

    Attributes:
        kind: Of the op.
        place: Of the op.
        inputs: Dtypes of its floating-point inputs.
        dtype: Of the result.
        shape: Of the result.
        output: Which of the op's results.
        first: Index in `OpWalk.seen` of the op's first result.
    """

    kind: OpKind
    place: Place
    inputs: tuple[torch.dtype, ...]
    dtype: torch.dtype
    shape: torch.Size
    output: int
    first: int


class OpWalk(TorchDispatchMode):
    """Follows a pass below autocast and autograd: ops appear with the dtypes they really run in.

    A backward op finds its place through the number that autograd gave to the forward op's node,
    so that it has the module and the line of the forward op.

    Subclasses say what to do with a result in `look`, and with the inputs before it in `prepare`.

    Args:
        model: Whose modules are named.
        on_result: As for `ModulePaths`.

    Attributes:
        seen: One entry per floating-point result, in order.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()  # type: ignore[no-untyped-call]

    def __init__(self, model: Models = None, on_result: OnResult | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[Seen] = []
        self._paths = ModulePaths(model, on_result)
        self._parameter_of: dict[int, str] = {}
        for one in models_in(model):
            root = type(one).__name__
            self._parameter_of |= {id(p): f"{root}.{name}" for name, p in one.named_parameters()}
        self._places: list[Place] = []  # by autograd's sequence number
        self._first_number = 0
        self._dtypes: dict[tuple[torch.dtype, ...], tuple[torch.dtype, ...]] = {}

    def __enter__(self) -> OpWalk:
        self._first_number = _sequence_number()
        self._paths.attach()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)  # type: ignore[no-untyped-call]
        self._paths.detach()
        self._places.clear()

    def prepare(self, kind: OpKind, place: Place, args: Any, kwargs: Any) -> None:
        """Called before an op that is not silent runs."""

    def look(self, position: int, result: Tensor) -> None:
        """Called with a floating-point result and its index in `seen`; never on a wait."""

    def passed(self, func: Any, args: Any, kwargs: Any, result: Any, positions: range) -> None:
        """Called after every op with the positions of its results; silent ones have none."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        kind = _kinds.get(func) or _kind_of(func)
        place = self._place()
        if kind.is_silent:
            result = func(*args, **kwargs)
            if not kind.is_view:
                self.passed(func, args, kwargs, result, range(0))
            return result
        self.prepare(kind, place, args, kwargs)
        inputs = self._input_dtypes(args)
        result = func(*args, **kwargs)
        first = len(self.seen)
        results = result if isinstance(result, (tuple, list)) else (result,)
        for output, tensor in enumerate(results):
            if isinstance(tensor, Tensor) and is_measurable(tensor):
                self.seen.append(
                    Seen(kind, place, inputs, tensor.dtype, tensor.shape, output, first)
                )
                self.look(len(self.seen) - 1, tensor)
        self.passed(func, args, kwargs, result, range(first, len(self.seen)))
        return result

    def _place(self) -> Place:
        module = self._paths.current
        if torch._C._current_graph_task_id() != -1 and not module:
            return self._backward_place()
        place = Place("forward", module, user_line(sys._getframe(2)), "")
        self._note(place)
        return place

    def _note(self, place: Place) -> None:
        """Remember the place under every autograd node made since the last op."""
        missing = _sequence_number() - self._first_number - len(self._places)
        if missing > 0:
            self._places.extend([place] * missing)

    def _backward_place(self) -> Place:
        node = torch._C._current_autograd_node()
        if node is None:
            return Place("backward", "", None, "")
        name = sys.intern(node.name().rpartition("::")[2])
        number = node._sequence_nr() - self._first_number
        if 0 <= number < len(self._places):
            forward = self._places[number]
            return Place("backward", forward.module, forward.line, name)
        variable = getattr(node, "variable", None)
        owner = self._parameter_of.get(id(variable), "").rpartition(".")[0]
        return Place("backward", owner, None, name)

    def _input_dtypes(self, args: tuple[Any, ...]) -> tuple[torch.dtype, ...]:
        found = []
        for argument in args:
            if isinstance(argument, Tensor):
                if argument.dtype in _FLOATING:
                    found.append(argument.dtype)
            elif isinstance(argument, (list, tuple)):
                found += [
                    a.dtype for a in argument if isinstance(a, Tensor) and a.dtype in _FLOATING
                ]
        key = tuple(found)
        return self._dtypes.setdefault(key, key)  # one tuple for all ops alike


_kinds: dict[Any, OpKind] = {}


def _kind_of(func: Any) -> OpKind:
    name = str(func).rsplit(".", 1)[0]
    plain = name.rpartition(".")[2]
    _kinds[func] = OpKind(name, bool(func.is_view), func.is_view or plain in _UNINITIALISED)
    return _kinds[func]


def is_measurable(tensor: Tensor) -> bool:
    """Whether a result has values that can be looked at.

    A tensor that wraps others (an FP8 tensor and its scale) has none of its own, and does not
    support the ops that look.
    """
    return (
        tensor.dtype in _MEASURABLE
        and tensor.layout is torch.strided
        and tensor.device.type != "meta"
        and tensor.numel() > 0
        and (type(tensor) in _PLAIN or not is_traceable_wrapper_subclass(tensor))
    )


def tensors_in(tree: Any) -> list[Tensor]:
    """All measurable tensors of nested arguments, in order."""
    leaves = pytree.tree_leaves(tree)
    return [t for t in leaves if isinstance(t, Tensor) and is_measurable(t)]

"""From the name that a user writes to the ops that torch dispatches."""

from __future__ import annotations

import functools

import torch
from torch._ops import OpOverload

from halfstep.precision.nearest import did_you_mean
from halfstep.precision.torch_internals import torch_internal
from halfstep.records import BadValueError

# Python names of ops that are called something else, or arrive at something else, below.
_ARRIVE_AT = {
    "multiply": ("mul",),
    "subtract": ("sub",),
    "divide": ("div",),
    "true_divide": ("div",),
    "cross_entropy": ("cross_entropy_loss",),
    "grid_sample": ("grid_sampler",),
    "multi_dot": ("linalg_multi_dot",),
    "norm": ("norm", "linalg_vector_norm", "linalg_matrix_norm"),
    "vector_norm": ("linalg_vector_norm",),
    "matrix_norm": ("linalg_matrix_norm",),
    "sdpa": ("scaled_dot_product_attention",),
}
# A rule for these would be none: they are what the user, or a rule, converts with.
_CONVERSIONS = frozenset({"to", "_to_copy", "type_as", "copy", "clone", "detach", "alias"})
_has_kernel = torch_internal("_dispatch_has_kernel")
_PREFIXES = ("aten::", "torch.nn.functional.", "torch.ops.aten.", "torch.", "F.")


@functools.cache
def overloads_named(name: str) -> tuple[str, ...]:
    """The overloads that autocast may cast and that `name` stands for.

    Args:
        name: ``"softmax"``, ``"softmax.int"``, ``"aten::softmax"``, ``"F.softmax"``, or
            ``"library::op"`` for an op of an extension.

    Returns:
        Names as in `op_lists`: ``("softmax.int",)``; ops of an extension keep their library.

    Raises:
        BadValueError: torch has no such op, or it works in place only.
    """
    bare = _without_prefix(name)
    found = [overload for target in _ARRIVE_AT.get(bare, (bare,)) for overload in _castable(target)]
    if found:
        return tuple(found)
    packet = bare.partition(".")[0]
    if "." in bare and (overloads := _castable(packet)):
        raise BadValueError(f"torch has no op {name!r}{did_you_mean(bare, [packet, *overloads])}")
    if _exists(bare):
        raise BadValueError(
            f"op {name!r} works in place, converts, or takes no tensor to cast; autocast never"
            f" touches such ops{did_you_mean(bare.rstrip('_'), _all_names())}"
        )
    raise BadValueError(f"torch has no op {name!r}{did_you_mean(bare, _all_names())}")


def find_overload(name: str) -> OpOverload | None:
    """The op object of a name with overload, ``None`` if torch has no such op."""
    library, _, rest = name.rpartition("::")
    packet, _, overload = rest.partition(".")
    namespace = getattr(torch.ops, library or "aten")
    found = getattr(getattr(namespace, packet, None), overload or "default", None)
    return found if isinstance(found, OpOverload) else None


def _without_prefix(name: str) -> str:
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return name


def _castable(bare: str) -> list[str]:
    if "." in bare:
        op = find_overload(bare)
        usable = op is not None and _takes_tensors_and_writes_none(op)
        return [bare.removesuffix(".default")] if usable else []
    if bare in _CONVERSIONS or not _exists(bare):
        return []
    library, _, packet_name = bare.rpartition("::")
    packet = getattr(getattr(torch.ops, library or "aten"), packet_name)
    names = [bare if o == "default" else f"{bare}.{o}" for o in packet.overloads()]
    return [n for n in names if (op := find_overload(n)) and _takes_tensors_and_writes_none(op)]


def _exists(bare: str) -> bool:
    library, _, packet = bare.partition(".")[0].rpartition("::")
    return packet.isidentifier() and hasattr(getattr(torch.ops, library or "aten"), packet)


def _takes_tensors_and_writes_none(op: OpOverload) -> bool:
    if not _has_kernel(op._name):
        return False  # known to the scripting front end only
    arguments = op._schema.arguments
    writes = any(a.alias_info is not None and a.alias_info.is_write for a in arguments)
    return not writes and any("Tensor" in str(a.type) for a in arguments)


@functools.cache
def _all_names() -> list[str]:
    names = {full.partition(".")[0] for full in torch_internal("_dispatch_get_all_op_names")()}
    aten = {n.removeprefix("aten::") for n in names if n.startswith("aten::")}
    return sorted({*(n for n in aten if not n.endswith("_")), *_ARRIVE_AT})

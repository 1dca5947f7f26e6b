"""torch's autocast lists as data: which op runs in which precision on which device."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

import torch

from halfstep.precision.nearest import did_you_mean
from halfstep.precision.recorded import RECORDED
from halfstep.precision.torch_internals import torch_internal
from halfstep.records import BadValueError

# category -> what it means; the order is the one in which lists are shown
CATEGORIES: Final = {
    "low": "run in the format of the policy (FP16 or BF16)",
    "fp32": "run in FP32",
    "promote": "run in the widest dtype among their inputs",
    "refused": "raise an error",
}
LISTED_DEVICES: Final = ("cpu", "cuda")

_HEADER = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
_MACROS = {
    "AT_FORALL_LOWER_PRECISION_FP": "low",
    "AT_FORALL_FP32": "fp32",
    "AT_FORALL_FP32_SET_OPT_DTYPE": "fp32",
    "AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE": "fp32",
    "AT_FORALL_PROMOTE": "promote",
}
# On CUDA's list, but known to torch only where it was built with cuDNN. It casts everything, the
# weights in one flat copy.
_WITH_CUDNN = "_cudnn_rnn"


def op_list(device_type: str) -> Mapping[str, str]:
    """The autocast list of a device in the installed torch.

    Ops that are not in it run in the dtype of their inputs.

    Args:
        device_type: ``"cpu"`` or ``"cuda"`` (known without a CUDA device too).

    Returns:
        Op name with overload, such as ``softmax.int``, to its category: ``"low"``, ``"fp32"``,
        ``"promote"`` or ``"refused"``. A list that torch extended since it was recorded has
        ``"unknown"`` for its new ops.
    """
    if device_type not in LISTED_DEVICES:
        raise BadValueError(
            f"autocast's op list is known for 'cpu' and 'cuda', got"
            f" {device_type!r}{did_you_mean(device_type, LISTED_DEVICES)}"
        )
    return _op_list(device_type)


@functools.cache
def _op_list(device_type: str) -> Mapping[str, str]:
    found, names = recorded_list(device_type), registered_ops(device_type)
    if device_type == "cuda":
        names = sorted({*names, _WITH_CUDNN})
        if _HEADER.exists():
            found |= parse_header(_HEADER.read_text(encoding="utf-8"))
    return MappingProxyType({name: found.get(name, "unknown") for name in names})


def parse_header(text: str) -> dict[str, str]:
    """Op to category, from the macros in the text of ``autocast_mode.h``."""
    found: dict[str, str] = {}
    for macro, category in _MACROS.items():
        definition = re.search(rf"#define {macro}\(_\)((?:.*\\\n)*.*)", text)
        if definition is None:
            raise BadValueError(
                f"{_HEADER} has no macro {macro}; this torch writes its lists in another way."
            )
        body = definition.group(1)
        named = re.findall(r'"(\w+\.\w+)"', body)  # ADD_NS(norm), "norm.Scalar", ...
        plain = re.findall(r"\b_\((\w+)(?:, (\w+))?\)", body)
        for name in [*named, *(f"{op}.{o}" if o else op for op, o in plain)]:
            found[name] = category
    return found


def recorded_list(device_type: str) -> dict[str, str]:
    """Op to category, of every op that some supported torch lists."""
    return {
        name: category
        for category, names in RECORDED[device_type].items()
        for name in names.split()
    }


def registered_ops(device_type: str) -> list[str]:
    """Ops for which torch has an autocast kernel on a device.

    After a policy with rules was used, halfstep's own are among them; `op_list` therefore looks
    only once, and `dispatch` makes it look before.
    """
    key = f"Autocast{device_type.upper()}"
    names = torch_internal("_dispatch_get_registrations_for_dispatch_key")(key)
    return sorted(name.removeprefix("aten::") for name in names if name.startswith("aten::"))

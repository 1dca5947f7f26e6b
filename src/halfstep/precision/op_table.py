"""The op lists as rows, for whoever shows them."""

from __future__ import annotations

from dataclasses import dataclass

from halfstep.precision.op_lists import LISTED_DEVICES, op_list
from halfstep.precision.op_names import overloads_named


@dataclass(frozen=True)
class ListedOp:
    """One op and what autocast does with it.

    Attributes:
        name: With overload.
        cpu, cuda: ``"low"``, ``"fp32"``, ``"promote"``, ``"refused"``, or ``"inputs"`` for an op
            that is not listed and runs in the dtype of its inputs.
    """

    name: str
    cpu: str
    cuda: str

    @property
    def differs(self) -> bool:
        """Whether CPU and CUDA treat it differently."""
        return self.cpu != self.cuda

    def to_dict(self) -> dict[str, str | bool]:
        """Plain data."""
        return {"op": self.name, "cpu": self.cpu, "cuda": self.cuda, "differs": self.differs}


def listed_ops(device_type: str | None = None, op: str | None = None) -> list[ListedOp]:
    """The ops on the list of a device, in alphabetical order.

    Args:
        device_type: ``"cpu"`` or ``"cuda"``; ``None`` for what is on either list.
        op: One op only, all its overloads; it need not be listed.

    Raises:
        BadValueError: An unknown device or op, with the nearest name.
    """
    devices = LISTED_DEVICES if device_type is None else (device_type,)
    names = {name for device in devices for name in op_list(device)}
    if op is not None:
        overloads = set(overloads_named(op))
        names = names & overloads or overloads
    cpu, cuda = op_list("cpu"), op_list("cuda")
    return [
        ListedOp(name, cpu.get(name, "inputs"), cuda.get(name, "inputs")) for name in sorted(names)
    ]

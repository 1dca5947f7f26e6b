"""From a base list and the user's exceptions to one action per op."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from halfstep.precision.nearest import did_you_mean
from halfstep.precision.op_lists import LISTED_DEVICES, op_list
from halfstep.precision.op_names import overloads_named
from halfstep.records import BadTypeError, BadValueError

ACTIONS: Final = ("fp32", "low", "promote", "inputs", "fp16", "bf16")

# cuDNN's recurrent nets cast everything to 16 bits on CUDA. A CPU has no such kernel to list, and
# for an FP16 LSTM often no kernel at all.
_RECURRENT = {
    **dict.fromkeys(("lstm.input", "lstm.data"), "emulated low"),
    **dict.fromkeys(("gru.input", "gru.data"), "low"),
    **dict.fromkeys(("rnn_tanh.input", "rnn_tanh.data"), "low"),
    **dict.fromkeys(("rnn_relu.input", "rnn_relu.data"), "low"),
}
# Not on CUDA's list, but on a CPU without a kernel for FP16 inputs: FFTs keep the CPU's FP32 rule.
_NO_CPU_KERNEL = {"avg_pool3d": "emulated inputs"}
_KEPT_ON_CPU = ("fft_", "stft")


def check_ops(ops: Mapping[str, str]) -> None:
    """Refuse unknown ops and rules, and two rules for one op.

    Raises:
        BadTypeError: Not a mapping.
        BadValueError: With the nearest valid name.
    """
    if not isinstance(ops, Mapping):
        raise BadTypeError(f"ops must be a mapping of op to rule, got {type(ops).__name__}.")
    named_by: dict[str, str] = {}
    for name, action in ops.items():
        if action not in ACTIONS:
            raise BadValueError(
                f"the rule for op {name!r} must be one of {', '.join(ACTIONS)}, got"
                f" {action!r}{did_you_mean(action, ACTIONS)}"
            )
        for overload in overloads_named(name):
            other = named_by.setdefault(overload, name)
            if other != name:
                raise BadValueError(
                    f"two rules for one op: {other!r} and {name!r} both stand for {overload!r}."
                    " Keep one."
                )


def actions_for(base: str, ops: Mapping[str, str], device_type: str) -> dict[str, str]:
    """Op (with overload) to action, only where something else than torch's own kernel has to run.

    Args:
        base: ``"device"`` or ``"cuda"``.
        ops: The user's exceptions, checked.
        device_type: Where the policy runs.
    """
    emulates = base == "cuda" and device_type != "cuda"
    if (ops or emulates) and device_type not in LISTED_DEVICES:
        raise BadValueError(
            f"op rules and base='cuda' work on 'cpu' and 'cuda', got {device_type!r}. Use"
            " Policy(format) alone, and islands, there."
        )
    found = dict(_cuda_on_cpu()) if emulates else {}
    for name, action in ops.items():
        found.update(dict.fromkeys(overloads_named(name), action))
    return found


def _cuda_on_cpu() -> dict[str, str]:
    """CUDA's list where it differs from the CPU's."""
    cpu, cuda = op_list("cpu"), op_list("cuda")
    found = {
        name: cuda.get(name, "unlisted")
        for name in (*cuda, *cpu)
        if cuda.get(name) != cpu.get(name)
        and "unknown" not in (cpu.get(name), cuda.get(name))
        and not (name not in cuda and name.startswith(_KEPT_ON_CPU))
    }
    return {**found, **_RECURRENT, **_NO_CPU_KERNEL}

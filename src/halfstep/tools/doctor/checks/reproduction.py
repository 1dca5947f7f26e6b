"""The failing op with its inputs, as a script that needs torch alone."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from halfstep.records import BadValueError, Cause
from halfstep.tools.doctor.examination import Examination
from halfstep.tools.doctor.runs.passes import capture
from halfstep.tracing.against import format_of

_SCRIPT = '''"""{title}

{explanation}

    python repro.py        # needs torch {torch} or near, and inputs.pt beside it
"""

from pathlib import Path

import torch

inputs = torch.load(Path(__file__).with_name("inputs.pt"), weights_only=True)


def op(t, dtype):
    return {call}


def as_(dtype):
    return {{k: v.to(dtype) if v.is_floating_point() else v.clone() for k, v in inputs.items()}}


low = op({low}, torch.{dtype}){output}
exact = op(as_(torch.float64), torch.float64){output}
error = ((low.double() - exact).norm() / exact.norm()).item()
for name, x in (("{dtype}", low), ("float64", exact)):
    print(f"{{name:9}} finite {{x.isfinite().double().mean():.1%}}, largest {{x.abs().max():.6g}}")
print(f"relative error {{error:.3g}}")
assert low.isfinite().all() and error < {limit:g}, "{title}"
'''


def write_reproduction(found: Examination, causes: tuple[Cause, ...], folder: Path) -> bool:
    """Write ``repro.py`` and ``inputs.pt`` for the first cause that an op is to blame for.

    Args:
        found: Model, batch and passes.
        causes: In order.
        folder: Made where it is missing.

    Returns:
        Whether there was such a cause; nothing is written otherwise.

    Raises:
        BadValueError: The folder cannot be written.
    """
    for cause in causes:
        if cause.op is None or cause.severity != "error":
            continue
        arguments = _arguments(found, cause)
        if arguments is None:
            continue
        call, inputs, is_wide = arguments
        try:
            folder.mkdir(parents=True, exist_ok=True)
            torch.save(inputs, folder / "inputs.pt")
            (folder / "repro.py").write_text(_script(cause, call, is_wide), encoding="utf-8")
        except OSError as error:
            raise BadValueError(f"cannot write to {str(folder)!r}: {error.strerror}.") from error
        return True
    return False


def _arguments(found: Examination, cause: Cause) -> tuple[str, dict[str, Tensor], bool] | None:
    """The call in words, its tensors, and whether these are those of the FP32 pass."""
    op = cause.shown_by or cause.op
    assert op is not None
    low = found.passes[cause.passes[0]]
    position, is_wide = op.index, False
    if cause.mechanism in ("rounding", "underflow") and low.name in found.beside:
        partner = found.beside[low.name].partner.get(position)
        if partner is not None:
            low, position, is_wide = found.passes["fp32"], partner, True
    call = capture(found.subject, low, position)
    if call is None:
        return None
    inputs: dict[str, Tensor] = {}
    words = [_literal(a, inputs) for a in call.args]
    words += [f"{name}={_literal(a, inputs)}" for name, a in call.kwargs.items()]
    return f"torch.ops.{call.func}({', '.join(words)})", inputs, is_wide


def _literal(value: Any, inputs: dict[str, Tensor]) -> str:
    """An argument as source text; tensors are put into `inputs`."""
    if isinstance(value, Tensor):
        name = f"x{len(inputs)}"
        inputs[name] = value.detach().cpu().contiguous().clone()
        return f't["{name}"]'
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_literal(v, inputs) for v in value)}]"
    if isinstance(value, torch.dtype) and value.is_floating_point:
        return "dtype"
    if isinstance(value, torch.device):
        return 'torch.device("cpu")'
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(value)


def _script(cause: Cause, call: str, is_wide: bool) -> str:
    op = cause.shown_by or cause.op
    assert op is not None
    format = format_of(op.dtype)
    title = f"{cause.kind.replace('_', ' ')}: {op.place}".replace('"', "'").replace("\\", "/")
    explanation = cause.explanation.replace('"""', "'''").replace("\\", "/")
    dtype = op.dtype
    if is_wide and op.dtype == "float32":  # the loss of digits came with its 16-bit inputs
        dtype = next((d for d in op.inputs if d != "float32"), op.dtype)
    return _SCRIPT.format(
        title=title,
        explanation=explanation,
        torch=str(torch.__version__).partition("+")[0],
        call=call,
        low=f"as_(torch.{dtype})" if is_wide else "inputs",
        dtype=dtype,
        output=f"[{op.output}]" if "(" in call and _has_several(call) else "",
        limit=16 * (format.eps if format is not None else 0.0),
    )


def _has_several(call: str) -> bool:
    """Whether an op returns several results, by its schema."""
    packet, overload = call.partition("(")[0].removeprefix("torch.ops.").rsplit(".", 1)
    namespace, name = packet.split(".", 1)
    op = getattr(getattr(getattr(torch.ops, namespace), name), overload)
    return len(op._schema.returns) > 1

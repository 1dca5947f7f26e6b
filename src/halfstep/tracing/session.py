"""`trace`: every op of a forward and backward pass as a context."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from torch import nn

from halfstep.numerics import FP16, Format, format_named
from halfstep.records import BadValueError, CallOrderError, TraceRecord
from halfstep.tracing.op_trace import OpTrace


class Trace:
    """The context that `trace` returns; `record` is there when it is over."""

    def __init__(self, tracer: OpTrace, path: Path | None) -> None:
        self._tracer: OpTrace | None = tracer
        self._path = path
        self._record: TraceRecord | None = None

    @property
    def record(self) -> TraceRecord:
        """All ops so far.

        Syncs: yes, the first time.
        """
        if self._record is not None:
            return self._record
        assert self._tracer is not None
        return self._tracer.read()

    def __enter__(self) -> Trace:
        if self._tracer is None:
            raise CallOrderError("this trace is over; call hs.trace(model) for another one.")
        self._tracer.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        assert self._tracer is not None
        self._tracer.__exit__(*exception)
        self._record = self._tracer.read()
        self._tracer = None  # its notes take as much memory again
        if self._path is not None:
            self._record.save(self._path)


def trace(
    model: nn.Module,
    *,
    level: Literal["standard", "full"] = "standard",
    format: Format | str = FP16,
    path: str | Path | None = None,
) -> Trace:
    """Record every op inside the context: phase, module, line, dtypes, shape, largest magnitude.

    Ops appear with the dtypes they really run in: the casts of autocast are ops of their own.
    Views are left out. Code inside `torch.compile` runs as usual and is not seen.

    Args:
        model: Its modules are named.
        level: ``"standard"`` reads each result once (about 1.1 times the plain time of a large
            model); ``"full"`` adds shares of zeros, subnormals, underflow and a histogram of
            exponents.
        format: Which format level "full" asks about.
        path: Write the ops there as JSON Lines when the context ends.

    Returns:
        The context; its `record` is a `TraceRecord`.

    Raises:
        BadValueError: An unknown level or format.

    Syncs: once, at the end.

    Example:
        >>> import torch, halfstep as hs
        >>> model, x = torch.nn.Linear(2, 1), torch.ones(3, 2)
        >>> with hs.trace(model) as traced:
        ...     model(x).sum().backward()
        >>> [(op.op, op.phase, op.module) for op in traced.record.ops][:2]
        [('aten.addmm', 'forward', 'Linear'), ('aten.sum', 'forward', '')]
    """
    if level not in ("standard", "full"):
        raise BadValueError(f"level must be 'standard' or 'full', got {level!r}.")
    row = format_named(format) if isinstance(format, str) else format
    tracer = OpTrace(model, row if level == "full" else None)
    return Trace(tracer, Path(path) if path is not None else None)

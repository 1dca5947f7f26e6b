"""The dtype of everything on its way through a step: input, layers, loss, gradients, update."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor
from torch.utils import _pytree as pytree

from halfstep.records import DtypeRow
from halfstep.tools.doctor.runs.one_batch import OneBatch
from halfstep.tools.doctor.runs.passes import Pass
from halfstep.tracing.op_trace import dtype_name


def dtype_rows(
    subject: OneBatch, passes: Mapping[str, Pass], state: Mapping[str, str]
) -> tuple[DtypeRow, ...]:
    """The picture of the user's own model.

    Args:
        subject: Model and batch.
        passes: Finished passes by name.
        state: Dtype of each parameter's optimizer state; empty where it is not known.
    """
    rows = [
        DtypeRow("input", name, _same(passes, dtype_name(t.dtype)), tuple(t.shape))
        for name, t in _inputs(subject)
    ]
    parameters = subject.parameters
    rows += [
        DtypeRow("weights", name, _same(passes, dtype_name(p.dtype)), tuple(p.shape))
        for name, p in parameters.items()
    ]
    rows += _layers("layer", "forward", passes)
    rows.append(DtypeRow("loss", "loss", _each(passes, lambda p: dtype_name(p.loss_dtype)), ()))
    rows += _layers("activation gradient", "backward", passes)
    for name, p in parameters.items():
        dtypes = {n: _gradient_dtype(found, name) for n, found in passes.items()}
        rows.append(DtypeRow("gradient", name, dtypes, tuple(p.shape)))
    for name, p in parameters.items():
        if state.get(name):
            rows.append(
                DtypeRow("optimizer state", name, _same(passes, state[name]), tuple(p.shape))
            )
    rows += [
        DtypeRow("update", name, _same(passes, dtype_name(p.dtype)), tuple(p.shape))
        for name, p in parameters.items()
    ]
    return tuple(rows)


def _inputs(subject: OneBatch) -> list[tuple[str, Tensor]]:
    parts, _ = pytree.tree_flatten_with_path(subject.batch)
    return [(f"batch{pytree.keystr(k)}", leaf) for k, leaf in parts if isinstance(leaf, Tensor)]


def _layers(stage: str, phase: str, passes: Mapping[str, Pass]) -> list[DtypeRow]:
    """One row per module, in the order of the first pass."""
    rows: dict[str, DtypeRow] = {}
    for name, found in passes.items():
        for layer in found.layers:
            if layer.phase == phase:
                row = rows.setdefault(layer.module, DtypeRow(stage, layer.module, {}, layer.shape))
                row.dtypes.setdefault(name, layer.dtype)
    return list(rows.values())


def _gradient_dtype(found: Pass, name: str) -> str:
    gradient = found.gradients[name]
    return "none" if gradient is None else dtype_name(gradient.dtype)


def _each(passes: Mapping[str, Pass], of: Callable[[Pass], str]) -> dict[str, str]:
    return {name: of(found) for name, found in passes.items()}


def _same(passes: Mapping[str, Pass], dtype: str) -> dict[str, str]:
    return dict.fromkeys(passes, dtype)

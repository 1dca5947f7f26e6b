"""Module names by pattern."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

from torch import nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from halfstep.precision.nearest import did_you_mean
from halfstep.records import BadTypeError, BadValueError


def check_patterns(modules: Mapping[str, str]) -> None:
    """Refuse a rule for modules other than ``"fp32"``."""
    if not isinstance(modules, Mapping):
        raise BadTypeError(
            f"modules must be a mapping of pattern to 'fp32', got {type(modules).__name__}."
        )
    for pattern, rule in modules.items():
        if rule != "fp32":
            raise BadValueError(
                f"the rule for modules {pattern!r} must be 'fp32' (an FP32 island), got {rule!r}."
                " A 16-bit format for a single module is no policy; set `format` for the rest."
            )


# Names that wrappers put before those of the model itself.
_WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.", "_fsdp_wrapped_module.")


def modules_named(model: nn.Module, patterns: Iterable[str]) -> dict[str, nn.Module]:
    """The modules that match, by their first name.

    Names are those of the model before it was compiled, checkpointed or made parallel.

    Raises:
        BadTypeError: Not a model.
        BadValueError: A pattern matches none; the nearest name is in the message.
    """
    if not isinstance(model, nn.Module):
        raise BadTypeError(f"model must be a torch.nn.Module, got {type(model).__name__}.")
    if isinstance(model, (DataParallel, DistributedDataParallel)):
        model = model.module
    # all names, since a shared module can be meant by any of them
    every = model.named_modules(remove_duplicate=False)
    named = {plain: m for n, m in every if (plain := _without_wrappers(n))}
    found: dict[int, tuple[str, nn.Module]] = {}
    for pattern in patterns:
        matches = {n: m for n, m in named.items() if fnmatchcase(n, pattern)}
        if not matches:
            raise BadValueError(
                f"module pattern {pattern!r} matches no module of {type(model).__name__}"
                f"{did_you_mean(pattern, named)} Is the policy for another model?"
            )
        for name, module in matches.items():
            found.setdefault(id(module), (name, module))
    return dict(found.values())


def _without_wrappers(name: str) -> str:
    name += "."
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name.removesuffix(".")

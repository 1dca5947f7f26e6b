"""From a setting (a name, a file, a `Policy`) to the policy of a run."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from halfstep.precision.device_formats import choose_format, refuse_format
from halfstep.precision.policy import Policy
from halfstep.records import BadTypeError, BadValueError

logger = logging.getLogger("halfstep")

PrecisionSetting = str | os.PathLike[str] | Policy


def as_policy(
    precision: PrecisionSetting, device: torch.device, models: Mapping[str, nn.Module] | None = None
) -> Policy:
    """The policy that a setting asks for, checked against device and model.

    Args:
        precision: ``"auto"`` asks the hardware; a format; a path that ends in ``.toml``, or any
            path object; a `Policy`.
        device: Where the run takes place.
        models: By name; they get the policy's islands. With several, patterns begin with the name
            of the model.

    Raises:
        BadValueError: An unknown name, or a policy that does not fit device or model.
        BadTypeError: None of these.
    """
    policy = _named(precision, device)
    refuse_format(policy.format, device.type)
    if policy.modules and models:
        policy.attach(next(iter(models.values())) if len(models) == 1 else nn.ModuleDict(models))
    if precision == "auto" or policy.base == "cuda" or policy.ops or policy.modules:
        logger.info("precision: %s (%s)", policy, policy.reason)
    return policy


def policy_from(setting: str, precision: str = "auto") -> Policy:
    """The policy of ``--policy`` and ``--precision`` together.

    Args:
        setting: ``"device"``, ``"cuda"`` or a path of a ``precision.toml``.
        precision: A format wins over that of the file. With ``"auto"`` and ``"cuda"`` it is
            fp16, CUDA's own default, since the list means nothing in FP32.
    """
    if setting not in ("device", "cuda"):
        if not setting.endswith(".toml") and not Path(setting).is_file():
            raise BadValueError(
                f"--policy must be 'cuda', 'device' or the path of a precision.toml, got"
                f" {setting!r}."
            )
        policy = Policy.load(setting)
        if precision in ("auto", policy.format):
            return policy
        logger.warning("--precision %s wins over %s of %s", precision, policy.format, setting)
        return replace(policy, format=precision)
    if precision == "auto":
        return Policy("fp16", setting, reason="the default format of autocast on CUDA")
    return Policy(precision, setting)


def _named(precision: PrecisionSetting, device: torch.device) -> Policy:
    if isinstance(precision, Policy):
        return precision
    if isinstance(precision, torch.dtype):
        return Policy(str(precision))  # refused, with the name that was meant
    if isinstance(precision, os.PathLike) or str(precision).endswith(".toml"):
        return Policy.load(precision)
    if not isinstance(precision, str):
        raise BadTypeError(
            "precision must be 'auto', 'fp32', 'bf16', 'fp16', a path or a Policy, got"
            f" {type(precision).__name__}."
        )
    if precision == "auto":
        name, reason = choose_format(device)
        return Policy(name, reason=reason)
    return Policy(precision)

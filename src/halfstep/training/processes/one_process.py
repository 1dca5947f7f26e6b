"""What only a process of its own may do."""

from __future__ import annotations

import os

import torch

from halfstep.records import BadValueError
from halfstep.update.ranks.find import num_processes


def check_one_process() -> None:
    """Refuse a run of `fit` in one of several processes.

    Raises:
        BadValueError: The process group, or else ``WORLD_SIZE`` (which torchrun sets), says that
            there are several: each would make the same run and write to the same files.
    """
    started = num_processes()
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        setting = os.environ.get("WORLD_SIZE", "1")
        started = int(setting) if setting.isdecimal() else 1
    if started > 1:
        raise BadValueError(
            f"fit and `halfstep train` run in one process, and this is one of {started}"
            " (torchrun, WORLD_SIZE): each would make the same whole run and write to the same"
            " files. Start it without torchrun, or train by hs.Engine under"
            " DistributedDataParallel in a loop of your own."
        )

"""Saves twice; the process dies at its Nth write of the second save.

``python killed_save.py RANK PORT FOLDER WHO N``: two ranks, of which WHO dies.
``python killed_save.py FOLDER``: one process, and a child for each N until one is through.
"""

from __future__ import annotations

import datetime
import os
import signal
import sys
from pathlib import Path
from typing import Any

import agreement_cases as cases
import torch
import torch.distributed as dist

import halfstep as hs
from halfstep.training.checkpoint.file import read_checkpoint
from halfstep.training.checkpoint.several_ranks import save_folder
from halfstep.update.ranks.ranks import ONE


def die_at(number: int, written: list[str]) -> None:
    """Kill this process before its write with that number: a sync, a rename, a removal."""
    left = [number]

    def watched(name: str, original: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
            written.append(name)
            return original(*args, **options)

        return call

    for module, name in ((os, "fsync"), (os, "rename"), (os, "replace"), (os, "rmdir")):
        setattr(module, name, watched(name, getattr(module, name)))


def main(rank: int, port: int, folder: Path, who: int, number: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        store=dist.TCPStore("localhost", port, is_master=False),
        rank=rank,
        world_size=2,
        timeout=datetime.timedelta(seconds=12),
    )
    engine = cases.engine_of(cases.fsdp())
    engine.train_step([cases.rows(rank, 4)], cases.mean_loss)
    hs.save_checkpoint(folder / "run", engine, extra={"save": 1})
    engine.train_step([cases.rows(rank, 4)], cases.mean_loss)
    written: list[str] = []
    if rank == who:
        die_at(number, written)
    try:
        hs.save_checkpoint(folder / "run", engine, extra={"save": 2})
    except hs.HalfstepError:
        sys.exit(3)  # the other one is gone
    if rank == who:
        (folder / "ended").write_text(" ".join(written))


def alone(folder: Path) -> None:
    """For each number of writes a child that dies there, in a folder of its own."""
    torch.set_num_threads(1)
    engine = cases.engine_of(cases.mlp())
    engine.train_step([cases.rows(0, 4)], cases.mean_loss)
    hs.save_checkpoint(folder / "first.pt", engine, extra={"save": 1})
    first = read_checkpoint(folder / "first.pt")
    engine.train_step([cases.rows(0, 4)], cases.mean_loss)
    hs.save_checkpoint(folder / "second.pt", engine, extra={"save": 2})
    second = read_checkpoint(folder / "second.pt")
    for number in range(100):
        path = folder / f"{number:02d}"
        save_folder(path, first, ONE)
        child = os.fork()
        if not child:
            die_at(number, [])
            save_folder(path, second, ONE)
            os._exit(0)
        if os.waitpid(child, 0)[1] == 0:
            return


if __name__ == "__main__" and len(sys.argv) == 2:
    alone(Path(sys.argv[1]))
elif __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))

"""Saving a checkpoint against `torch.save` and fsync of the same content, interleaved.

python benchmarks/checkpoint.py            # about half a minute
python benchmarks/checkpoint.py --quick    # few rounds, nothing written
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

import torch
from torch import Tensor, nn

import halfstep as hs

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.update import machine, quartiles


def loss_fn(model: nn.Module, batch: Tensor) -> Tensor:
    return model(batch).square().mean()  # type: ignore[no-any-return]


def plain_save(content: object, path: Path) -> None:
    """What a careful user writes: bytes that are on the disk afterwards."""
    with path.open("wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="few rounds, nothing written")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(12)])
    engine = hs.Engine(model, torch.optim.AdamW(model.parameters()), precision="fp32")
    engine.train_step([torch.randn(4, 1024)], loss_fn)
    ours, plain = [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        hs.save_checkpoint(folder / "ours.pt", engine)
        content = torch.load(folder / "ours.pt", weights_only=True)
        for _ in range(4 if options.quick else 25):
            start = time.perf_counter()
            plain_save(content, folder / "plain.pt")
            middle = time.perf_counter()
            hs.save_checkpoint(folder / "ours.pt", engine)
            plain.append(middle - start)
            ours.append(time.perf_counter() - middle)
        size = (folder / "ours.pt").stat().st_size
    results = {
        "date": date.today().isoformat(),
        **machine(),
        "command": "python benchmarks/checkpoint.py",
        "checkpoint_bytes": size,
        "save_checkpoint_over_plain": quartiles(ours, plain),
    }
    low, median, high = quartiles(ours, plain)
    print(f"save_checkpoint over torch.save + fsync, {size / 1e6:.0f} MB: {median} [{low}, {high}]")
    if not options.quick:
        path = options.out / f"{results['date']}-checkpoint.json"
        path.write_text(json.dumps(results, indent=1) + "\n")
        print(f"written to {path}")


if __name__ == "__main__":
    main()

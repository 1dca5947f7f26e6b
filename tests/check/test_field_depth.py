"""What was missed in public training code: deep programs and roundabout ways, in own words."""

from __future__ import annotations

from pathlib import Path

import pytest

from halfstep.check.linter import check_paths
from halfstep.rules import registry

SETUP = registry.load("HS101").bad.split("for x, y in batches:\n")[0]
LOOP = """\
for x, y in batches:
    scaler.scale(loss_of(x, y)).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""
# An evaluation as they are: loops in loops, counters, early ends, sums in place, nothing trained.
MEASURE = """\
def overlap(one, other):
    area = (one - other).clamp_(0)
    return area / (one + other)


def kept(boxes, limit=0.5, most=300):
    out = []
    for box in boxes:
        if box.sum() == 0:
            continue
        found = 0
        for other in boxes:
            part = overlap(box, other)
            if part > limit:
                continue
            found = 1
            if part == 0:
                break
        out.append(box)
    return out


def curves(pairs, names=()):
    total = 0
    for pair in pairs:
        for name in names:
            if pair == name:
                total = 1
                continue
            for k in range(9):
                total += overlap(pair, k)
    return total


def evaluate(model, batches, half=True):
    if half:
        model.half()
    seen = 0
    for x, y in batches:
        for row in kept(model(x)):
            seen += 1
            for target in y:
                if len(target) == 0:
                    continue
                for part in kept(target):
                    seen += overlap(row, part)
                    curves(part)
            curves(row)
        for name in ("a", "b", "c"):
            curves(y, name)
            for i in range(3):
                for j in range(3):
                    if overlap(i, j):
                        continue
                    seen += curves(kept(y), name)
    model.float()
    return seen
"""
DEEP = """\
import copy
import os

import torch
from measure import curves, evaluate, kept, overlap


class Average:
    def __init__(self, model):
        self.ema = copy.deepcopy(model)

    def update(self, model):
        for mine, new in zip(self.ema.parameters(), model.parameters()):
            mine.data.lerp_(new.data, 0.1)


def train(options, model, batches, held_out):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    ema = Average(model)
    step = 0
    for epoch in range(options.epochs):
        for i, (x, y) in enumerate(batches):
            if step < options.warm:
                rate = 1
                if options.slow:
                    rate = 2
            with torch.autocast("cuda"):
                loss = model(x).sub(y).square().mean()
            scaler.scale(loss).backward()
            if step % options.accumulate == 0:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                ema.update(model)
            if options.draw:
                curves(kept(x), "x")
                overlap(x, y)
            step += 1
        score = evaluate(ema.ema, held_out)
        if options.save:
            state = {"epoch": epoch, "optimizer": optimizer.state_dict()}
            torch.save(state, options.path)
            if epoch % options.period == 0:
                torch.save(state, options.other)


if __name__ == "__main__":
    train(get_options(), get_model(), get_batches(), get_batches())
"""


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def found(files: dict[str, str], *codes: str) -> set[tuple[str, str, int]]:
    for name, text in files.items():
        Path(name).write_text(text)
    rules = registry.select(list(codes))
    return {(f.code, f.path, f.line) for f in check_paths(["train.py"], rules).findings}


def line(text: str, part: str) -> int:
    return next(n for n, found in enumerate(text.splitlines(), 1) if part in found)


def test_training_with_a_long_evaluation_is_read_to_its_end() -> None:
    expected = {
        ("HS117", "train.py", line(DEEP, "torch.save(state, options.path)")),
        ("HS124", "measure.py", line(MEASURE, "model.half()")),
        ("HS109", "train.py", line(DEEP, "ema.update(model)")),
    }
    files = {"measure.py": MEASURE, "train.py": DEEP.replace("Average", "ModelEMA")}
    assert found(files, "HS1") == expected


def test_same_training_done_right_is_silent() -> None:
    right = (
        DEEP.replace("Average", "ModelEMA")
        .replace('"optimizer": optimizer', '"scaler": scaler.state_dict(), "optimizer": optimizer')
        .replace("evaluate(ema.ema,", "evaluate(copy.deepcopy(ema.ema),")
        .replace(
            "                scaler.update()",
            "                before = scaler.get_scale()\n                scaler.update()",
        )
        .replace(
            "                ema.update",
            "                if scaler.get_scale() >= before:\n                    ema.update",
        )
    )
    assert found({"measure.py": MEASURE, "train.py": right}, "HS1") == set()


ABSTRACT = """\
import torch


class Base:
    def __init__(self, model):
        self.model = model
        self.scaler = torch.amp.GradScaler("cuda")
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def batches(self):
        \"\"\"Of a subclass.\"\"\"
        raise NotImplementedError("batches")

    def run(self):
        for x in self.batches():
            self.optimizer.zero_grad()
            with torch.autocast("cuda"):
                loss = self.model(x).square().mean()
            self.scaler.scale(loss).backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.scaler.step(self.optimizer)
            self.scaler.update()
"""


@pytest.mark.parametrize("right", [False, True], ids=["wrong", "right"])
def test_method_that_a_subclass_overrides_does_not_end_the_path(right: bool) -> None:
    clip = "            torch.nn.utils"
    text = ABSTRACT
    if right:
        text = text.replace(clip, f"            self.scaler.unscale_(self.optimizer)\n{clip}")
    expected = set() if right else {("HS101", "train.py", line(text, "clip_grad_norm_"))}
    assert found({"train.py": text}, "HS101") == expected


OWN = """\
class Slow(torch.optim.SGD):
    def __init__(self, net, rate):
        super().__init__(net.parameters(), lr=rate)

    def step(self, closure=None):
        for group in self.param_groups:
            group["lr"] *= 0.99
        return super().step(closure)


optimizer = Slow(model, 0.1)
"""


@pytest.mark.parametrize("saved", ["", ', "scaler": scaler.state_dict()'], ids=["wrong", "right"])
def test_optimizer_of_a_class_of_the_project_is_one(saved: str) -> None:
    state = 'state = {"optimizer": optimizer.state_dict()' + saved + "}\n"
    text = SETUP + OWN + LOOP + state + 'torch.save(state, "a.pt")\n'
    expected = set() if saved else {("HS117", "train.py", line(text, "torch.save"))}
    assert found({"train.py": text}, "HS117") == expected


TRAINER = """\
import torch
from built import build


class Still:
    def __init__(self, model):
        self.model = model


class Trainer:
    def __init__(self, options, model):
        self.model = model
        if options.kind == "still":
            self.optimizer = Still(model)
        else:
            self.optimizer = self.make(options)
        self.scaler = torch.amp.GradScaler("cuda")

    def make(self, options):
        return build(self.model, options)

    def step(self, x):
        with torch.autocast("cuda"):
            loss = self.model(x).square().mean()
        self.scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()


def main(options, model, batches):
    trainer = Trainer(options, model)
    for x in batches:
        trainer.step(x)


if __name__ == "__main__":
    main(get_options(), get_model(), get_batches())
"""
BUILT = """\
import torch


def build(model, options):
    groups = []
    for part in model.modules():
        if hasattr(part, "weight"):
            groups.append(part.weight)
    return torch.optim.SGD(groups, lr=options.rate)
"""


@pytest.mark.parametrize("right", [False, True], ids=["wrong", "right"])
def test_branch_that_acts_through_an_imported_function_is_taken(right: bool) -> None:
    clip = "        torch.nn.utils"
    text = TRAINER
    if right:
        text = text.replace(clip, f"        self.scaler.unscale_(self.optimizer)\n{clip}")
    expected = set() if right else {("HS101", "train.py", line(text, "clip_grad_norm_"))}
    assert found({"train.py": text, "built.py": BUILT}, "HS101") == expected


SWITCHED_OFF = """\
class Check:
    def __init__(self, half=True):
        self.half = half

    def prepare(self, model):
        model.half() if self.half else model.float()
        return model


def check(model, device, half={half}):
    half = device.type != "cpu" and half
    return Check(half).prepare(model)
"""


@pytest.mark.parametrize(("half", "count"), [("False", 0), ("True", 1)])
def test_evaluation_switched_off_for_certain_is_silent(half: str, count: int) -> None:
    train = SETUP + "import evaluation\n\n" + LOOP + "    if x is y:\n        print()\n"
    train += "        evaluation.check(model, x.device)\n"
    files = {"train.py": train, "evaluation.py": SWITCHED_OFF.format(half=half)}
    assert len(found(files, "HS124")) == count


LOW = """\
import os

import torch


def main(rank, batches):
    os.environ["MASTER_ADDR"] = "localhost"
    model = torch.nn.Linear(4, 1).to(rank)
    model = model.to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for x in batches:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize("extra", ["", "master_weights = copy_of(model)\n"], ids=["wrong", "right"])
def test_master_is_a_process_or_a_weight(extra: str) -> None:
    assert len(found({"train.py": LOW + extra}, "HS211")) == (not extra)


def test_files_that_import_each_other_are_read() -> None:
    other = "from train import LIMIT, again\n\n\ndef clip(ps):\n    return again(ps, LIMIT)\n"
    text = "from other import LIMIT, again, clip\n" + SETUP + LOOP
    text += "    clip(model.parameters())\n"
    assert found({"train.py": text, "other.py": other + "\n\nscaler = None\n"}, "HS1") == set()


def test_import_that_leads_to_another_import_moves_no_events() -> None:
    """The second import runs inside of the first, in the middle of a step."""
    files = {
        "far.py": "import torch\n\nEXTRA = torch.optim.SGD([torch.zeros(1)], lr=0.1)\n",
        "near.py": "from far import EXTRA\n\nNAMES = [EXTRA]\nCOUNT = len(NAMES)\n",
        "train.py": "from near import COUNT\n\n"
        + SETUP
        + LOOP.replace(
            "    optimizer.zero_grad()\n", "    print(COUNT)\n    optimizer.zero_grad()\n"
        ),
    }
    assert found(files, "HS1") == set()

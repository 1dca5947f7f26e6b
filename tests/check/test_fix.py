"""Repairs: what changes, what stays, and that the result trains as it should."""

from __future__ import annotations

import os
import random
import re
import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from halfstep.check.linter import check_paths, check_text
from halfstep.check.repair.edits import apply
from halfstep.check.repair.fix import fix_data, fix_report, write_whole
from halfstep.check.settings import Settings
from halfstep.rules import registry
from halfstep.rules.events import Place
from halfstep.rules.rule import Edit, Rule

RULES = registry.select()
UNSAFE = [rule for rule in RULES if rule.fixes == "unsafe"]
FIXED = [rule for rule in RULES if rule.fixes]


def fix(text: str, unsafe: bool = True) -> str:
    return fix_data("train.py", text.encode(), RULES, unsafe=unsafe).new.decode()


def weights_after(script: str) -> list[torch.Tensor]:
    torch.manual_seed(7)
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(script, "train.py", "exec"), names)
    return [p.detach().clone() for p in names["model"].parameters()]


@pytest.mark.parametrize("rule", FIXED, ids=lambda rule: rule.code)
def test_bad_example_that_is_repaired_has_no_such_finding(rule: type[Rule]) -> None:
    safe = rule.fixes == "safe"
    fixed = fix(rule.bad, unsafe=not safe)
    assert fixed != rule.bad
    assert rule.code not in {f.code for f in check_text("train.py", fixed, RULES)}
    assert fix(fixed, unsafe=not safe) == fixed  # nothing is left to do


@pytest.mark.parametrize("rule", UNSAFE, ids=lambda rule: rule.code)
def test_bad_example_that_is_repaired_trains_as_the_good_one(rule: type[Rule]) -> None:
    assert rule.fixes == "unsafe"
    expected = weights_after(rule.good)
    assert all(map(torch.equal, weights_after(fix(rule.bad)), expected))


PLAIN_CLIP = "    nn.utils.clip_grad_norm_(model.parameters(), 1.0)"
LATE_UNSCALE = "    scaler.unscale_(optimizer)"


def clip_with(*lines: str) -> str:
    bad = registry.load("HS101").bad.replace("  # <- HS101", "")
    assert PLAIN_CLIP in bad
    return bad.replace(PLAIN_CLIP, "\n".join(lines))


def test_clip_ahead_of_an_unscale_goes_behind_it() -> None:
    fixed = fix(clip_with(PLAIN_CLIP, LATE_UNSCALE))
    assert fixed == clip_with(LATE_UNSCALE, PLAIN_CLIP)
    expected = weights_after(registry.load("HS101").good)
    assert all(map(torch.equal, weights_after(fixed), expected))


@pytest.mark.parametrize(
    "lines",
    [
        (PLAIN_CLIP.replace("nn.", "norm = nn."), "    print(norm)", LATE_UNSCALE),
        (PLAIN_CLIP, "    if True:", "    " + LATE_UNSCALE),
        ("    if True:", "    " + PLAIN_CLIP, LATE_UNSCALE),
        (PLAIN_CLIP, "    for each in [optimizer]:", "        scaler.unscale_(each)"),
    ],
    ids=["its result is used between", "in a branch", "from a branch", "in a loop"],
)
def test_clip_ahead_of_an_unscale_that_takes_a_person_is_left_alone(lines: tuple[str, ...]) -> None:
    assert fix(clip_with(*lines)) == clip_with(*lines)


def test_repair_of_a_clip_changes_how_it_trains() -> None:
    rule = registry.load("HS101")
    assert not all(map(torch.equal, weights_after(rule.bad), weights_after(rule.good)))


@pytest.mark.parametrize("rule", UNSAFE, ids=lambda rule: rule.code)
def test_unsafe_repair_needs_its_option(rule: type[Rule]) -> None:
    assert fix(rule.bad, unsafe=False) == rule.bad


OLD = "torch.cuda.amp.autocast()"
NEW = 'torch.amp.autocast("cuda")'


@pytest.mark.parametrize(
    "template",
    [
        "import torch\r\nwith {}:\r\n\tpass\r\n",
        "import torch\nwith {}:\n\tx = 'ä' ; y = {}\n",
        "import torch\nname = 'ä€😀'; context = {}  # ä\n",
        "\ufeffimport torch\ncontext = {}",
        "import torch\rcontext = {}\r",
        "import torch\n\x0ccontext = ({},\n   {})\n",
    ],
    ids=["crlf", "tabs", "wide characters", "byte order mark", "cr", "form feed"],
)
def test_repair_keeps_every_other_byte(template: str) -> None:
    assert fix(template.replace("{}", OLD), unsafe=False) == template.replace("{}", NEW)


def test_repair_keeps_the_declared_encoding() -> None:
    text = f"# coding: latin-1\nimport torch\nx = 'é'; context = {OLD}\n"
    fixed = fix_data("train.py", text.encode("latin-1"), RULES)
    assert fixed.new == text.replace(OLD, NEW).encode("latin-1")


def test_repair_inside_a_repair_is_made_too() -> None:
    text = f"import torch\ncontext = torch.cuda.amp.autocast(f({OLD}))\n"
    assert fix(text) == f'import torch\ncontext = torch.amp.autocast("cuda", enabled=f({NEW}))\n'


def test_silenced_finding_is_not_repaired() -> None:
    text = f"import torch\ncontext = {OLD}  # halfstep: ignore\n"
    assert fix(text) == text


NAMED = "from torch.cuda.amp import autocast\n\nwith autocast():\n    pass\n"
TAKES = [
    "from tools import autocast\n",
    "from .tools import autocast as cast\n",
    "from tools import *\n",
    "import tools\n\ncontext = tools.autocast()\n",
    "import package.tools\n\ncontext = package.tools.autocast()\n",
    "from tools import (autocast  # no Python\n",
]
TAKES_NOT = ["from tools import other\n", "from torch.cuda.amp import autocast\n", "tools = 1\n"]


@pytest.mark.parametrize(
    ("other", "changed"), [(t, 0) for t in TAKES] + [(t, 1) for t in TAKES_NOT]
)
def test_import_that_another_file_takes_over_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str, changed: int
) -> None:
    """``autocast()`` in the other file would lack its device."""
    monkeypatch.chdir(tmp_path)
    Path("tools.py").write_text(NAMED)
    Path("train.py").write_text(other)
    report = check_paths(["tools.py"], RULES)
    assert len(list(fix_report(report, RULES, Settings()))) == changed


SETUP, LOOP = registry.load("HS101").bad.split("for x, y in batches:\n")
CLIP = "    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # <- HS101\n"


@pytest.mark.parametrize(
    ("clip", "expected"),
    [
        (
            "    if True:\n        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n",
            "    if True:\n        scaler.unscale_(optimizer)\n        norm = nn",
        ),
        ("    x; nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n", None),
        ("    if True: nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n", None),
        ("    for _ in [0]:\n        nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n", None),
    ],
    ids=["in a condition", "behind a semicolon", "on the condition's line", "in a loop"],
)
def test_unscale_is_put_in_only_where_the_shape_is_plain(clip: str, expected: str | None) -> None:
    text = SETUP + "for x, y in batches:\n" + LOOP.replace(CLIP, clip)
    assert "HS101" in {f.code for f in check_text("train.py", text, RULES)}
    fixed = fix(text)
    assert (expected in fixed) if expected else (fixed == text)


def test_unscale_of_one_of_two_optimizers_is_left_to_a_person() -> None:
    setup = SETUP + "second = torch.optim.SGD(model.parameters(), lr=0.1)\n"
    loop = LOOP.replace("scaler.step(optimizer)", "scaler.step(optimizer)\n    scaler.step(second)")
    text = setup + "for x, y in batches:\n" + loop
    assert fix(text) == text


TRAINER = """\
import torch


class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        self.scaler = torch.amp.GradScaler("cuda")

    def step(self, loss):
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def save(self, path):
        torch.save({"optimizer": self.optimizer.state_dict()}, path)


def main(model, batches):
    trainer = Trainer(model)
    for x in batches:
        trainer.step(model(x).sum())
    trainer.save("a.pt")


main(torch.nn.Linear(2, 1), [])
"""


def test_attribute_of_the_same_object_is_put_into_the_checkpoint() -> None:
    assert "HS117" in {f.code for f in check_text("train.py", TRAINER, RULES)}
    fixed = fix(TRAINER)
    assert '"scaler": self.scaler.state_dict()}, path)' in fixed


RESUMED = """\
import copy

import torch


def run(model, path, batches, resume=False):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=1)
    if resume:
        saved = torch.load(path)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])  # as it was
    for x in batches:
        optimizer.zero_grad()
        scaler.scale(model(x).square().mean()).backward()
        scaler.step(optimizer)
        scaler.update()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
    return scaler.get_scale()


def main(model, path):
    run(model, path, [])


if __name__ == "__main__":
    main(torch.nn.Linear(2, 1), "a.pt")
"""


def test_load_beside_that_of_the_optimizer_gets_the_scaler_too(tmp_path: Path) -> None:
    fixed = fix(RESUMED)
    place = {"model": torch.nn.Linear(2, 1), "path": tmp_path / "a.pt"}
    old: dict[str, Any] = {"__name__": "old"}
    new: dict[str, Any] = {"__name__": "new"}
    exec(RESUMED, old)
    exec(fixed, new)
    batches = [torch.ones(1, 2)] * 3
    assert old["run"](**place, batches=batches) == 2.0**13
    assert old["run"](**place, batches=batches, resume=True) == 2.0**13  # lost
    assert new["run"](**place, batches=batches, resume=True) == 2.0**13  # an old file still loads
    assert new["run"](**place, batches=batches, resume=True) == 2.0**16
    assert fix(fixed) == fixed


def test_load_of_a_file_from_a_disabled_scaler_still_works(tmp_path: Path) -> None:
    off = fix(RESUMED).replace('"cpu", ', '"cpu", enabled=False, ')
    for text, resume in ((off, False), (fix(RESUMED), True)):
        names: dict[str, Any] = {"__name__": "here"}
        exec(text, names)
        names["run"](torch.nn.Linear(2, 1), tmp_path / "a.pt", [], resume=resume)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('saved["optimizer"]', 'saved["other"]'),
        ("optimizer.load_state_dict", "twin.load_state_dict"),
        ('optimizer.load_state_dict(saved["optimizer"])', 'restore(optimizer, saved["optimizer"])'),
        ("  # as it was", "; print()"),
    ],
    ids=["other entry", "other optimizer", "through a helper", "not alone on its line"],
)
def test_load_that_is_not_found_leaves_the_save_alone_repaired(old: str, new: str) -> None:
    fixed = fix(RESUMED.replace(old, new))
    assert '"scaler": scaler.state_dict()' in fixed
    assert "scaler.load_state_dict" not in fixed


def test_scaler_made_after_the_load_is_not_loaded_before_it() -> None:
    made = next(line for line in RESUMED.splitlines() if "GradScaler" in line) + "\n"
    late = RESUMED.replace(made, "").replace("    for x in", made + "    for x in")
    fixed = fix(late)
    assert '"scaler": scaler.state_dict()' in fixed
    assert "scaler.load_state_dict" not in fixed


def test_name_that_a_helper_does_not_know_is_not_written_into_it() -> None:
    bad = registry.load("HS117").bad
    setup, loop = bad.split("\n\n\nfor x, y")
    save = "torch.save(state, io.BytesIO())  # <- HS117\n"
    state = re.search(r"state = \{.*\}\n", loop)
    assert state is not None
    helper = f"\n\n\ndef save(model, optimizer):\n    {state.group(0)}    {save}"
    loop = loop.replace(state.group(0), "").replace(save, "    save(model, optimizer)\n")
    # inside of a function, so that `scaler` is no name of the file
    body = "".join(f"    {line}\n" if line else "\n" for line in f"for x, y{loop}".splitlines())
    scaler = next(line for line in setup.splitlines() if line.startswith("scaler = "))
    text = (
        setup.replace(scaler + "\n", "")
        + helper
        + f"\n\ndef main():\n    {scaler}\n{body}\n\nmain()\n"
    )
    assert "HS117" in {f.code for f in check_text("train.py", text, RULES)}
    assert fix(text) == text


def test_schedule_moves_with_its_comment_and_line_ends() -> None:
    bad = registry.load("HS110").bad.replace("\n", "\r\n")
    fixed = fix(bad)
    assert "scaler.update()\r\n    scheduler.step()  # <- HS110\r\n" in fixed
    assert not re.search(r"[^\r]\n", fixed)


def place(line: int, column: int, end_line: int, end_column: int) -> Place:
    return Place("a.py", line, column, end_line, end_column)


def test_overlapping_edits_wait() -> None:
    first = (Edit(place(1, 1, 1, 2), "one"), Edit(place(1, 9, 1, 10), "2"))
    second = (Edit(place(1, 5, 1, 10), "xx"),)
    third = (Edit(place(1, 5, 1, 6), "two"),)
    expected = ("one + two + 2", [True, False, True])
    assert apply("a + b + 1", [first, second, third]) == expected


def test_insertions_at_one_place_wait_for_each_other() -> None:
    point = (Edit(place(1, 5, 1, 5), "-"),)
    assert apply("a + b", [point, point]) == ("a + -b", [True, False])


def test_edit_after_which_the_text_is_no_python_is_left_out() -> None:
    broken, fine = (Edit(place(1, 1, 1, 2), "("),), (Edit(place(1, 5, 1, 6), "2"),)
    assert apply("a = 1\n", [broken, fine]) == ("a = 2\n", [False, True])


@given(
    words=st.lists(st.sampled_from(["a", "ä", "😀x", "zz"]), min_size=1, max_size=8),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    seed=st.integers(0, 99),
)
def test_edits_of_strings_equal_the_text_built_anew(words: list[str], end: str, seed: int) -> None:
    rng = random.Random(seed)
    new = [rng.choice([None, "", "neu", "ö"]) for _ in words]
    lines = [f"x = '{word}'{end}" for word in words]
    groups = [
        (Edit(place(n, 6, n, 6 + len(word.encode())), text),)
        for n, (word, text) in enumerate(zip(words, new, strict=True), 1)
        if text is not None
    ]
    rng.shuffle(groups)
    expected = [w if t is None else t for w, t in zip(words, new, strict=True)]
    assert apply("".join(lines), groups)[0] == "".join(f"x = '{w}'{end}" for w in expected)


def test_file_is_replaced_at_once_and_keeps_its_mode_and_link(tmp_path: Path) -> None:
    path, link = tmp_path / "train.py", tmp_path / "link.py"
    path.write_bytes(b"old")
    path.chmod(0o751)
    link.symlink_to(path)
    inode = path.stat().st_ino
    write_whole(str(link), b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_ino != inode  # a reader of the old file keeps all of it
    assert stat.S_IMODE(path.stat().st_mode) == 0o751
    assert link.is_symlink()
    assert sorted(os.listdir(tmp_path)) == ["link.py", "train.py"]


def test_failed_write_leaves_the_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "train.py"
    path.write_bytes(b"old")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space left"):
        write_whole(str(path), b"new")
    assert (path.read_bytes(), os.listdir(tmp_path)) == (b"old", ["train.py"])

"""Correct programs that ask how long a loop is: last batches, windows left over, resumed epochs."""

SETUP = """\
import torch
from torch import nn

model = nn.Linear(6, 6).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cuda")
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
batches = torch.utils.data.DataLoader(torch.randn(900, 6), batch_size=16)
SIZE = 4
total = len(batches)
"""
BACKWARD = """\
with torch.autocast("cuda"):
    loss = model(x.cuda()).square().mean() / SIZE
scaler.scale(loss).backward()
"""
STEP = """\
CLIP
scaler.step(optimizer)
scaler.update()
"""
CLEAR = "optimizer.zero_grad()\n"
EPOCHS = "for epoch in range(8):\n"
BATCHES = "    for i, x in enumerate(batches):\n"
END = "    schedule.step()\n"


def under(depth: int, *texts: str) -> str:
    """Lines, indented."""
    lines = "".join(texts).splitlines()
    return "".join("    " * depth + line + "\n" for line in lines)


def cleared_first(top: str, last: str) -> str:
    """A window that is cleared at its beginning; `last` is the test at its end."""
    begin = f"if {top}:\n" + under(1, CLEAR)
    end = f"{last}:\n" + under(1, STEP)
    return SETUP + EPOCHS + BATCHES + under(2, begin, BACKWARD, end) + END


def left_over(test: str, full: str = "(i + 1) % SIZE == 0", before: str = "") -> str:
    """A step behind the loop for the batches that fill no window."""
    end = f"if {full}:\n" + under(1, STEP, CLEAR)
    rest = f"if {test}:\n" + under(1, STEP, CLEAR)
    return SETUP + before + EPOCHS + BATCHES + under(2, BACKWARD, end) + under(1, rest) + END


def filled(begin: str, count: str, test: str, empty: str, rest: str) -> str:
    """A window that a variable counts."""
    full = f"if {test}:\n" + under(1, STEP, CLEAR, empty)
    after = f"if {rest}:\n" + under(1, STEP, CLEAR)
    loop = "    for x in batches:\n" + under(2, BACKWARD, count, full)
    return SETUP + EPOCHS + under(1, begin) + loop + under(1, after) + END


LAST_BATCH = {
    text: cleared_first("i % SIZE == 0", text)
    for text in (
        "if (i + 1) % SIZE == 0 or i + 1 == len(batches)",
        "if i == len(batches) - 1 or (i + 1) % SIZE == 0",
        "if i % SIZE == SIZE - 1 or i + 1 >= total",
        "if not (i + 1) % SIZE or total - i == 1",
        "if 0 == (i + 1) % SIZE or not i + 1 < len(batches)",
        "if (i + 1) % 4 == 0 or len(x) < 16",
        "if (i + 1) % SIZE == 0 or i in (total - 1,)",
        "whole, last = (i + 1) % SIZE == 0, i + 1 == total\nif whole or last",
        "size = min(SIZE, total - i // SIZE * SIZE)\nif i % SIZE + 1 == size",
        "begin = i - i % SIZE\nsize = min(total - begin, SIZE)\nif i - begin + 1 == size",
        "if (i + 1) % SIZE and i + 1 != total:\n    continue\nif True",
    )
} | {
    "three to a window": cleared_first("i % 3 == 0", "if i % 3 == 2 or i + 1 == total"),
    "counted from one": cleared_first("i % SIZE == 1", "if i % SIZE == 0 or i == total").replace(
        "enumerate(batches)", "enumerate(batches, start=1)"
    ),
    "by a range": cleared_first("i % SIZE < 1", "if (i + 1) % SIZE < 1 or i == n - 1")
    .replace(BATCHES, "    n, turn = len(batches), iter(batches)\n    for i in range(n):\n")
    .replace("x.cuda()", "next(turn).cuda()"),
    "two sets at once": cleared_first(
        "i % SIZE == 0", "if (i + 1) % SIZE == 0 or i + 1 == len(batches)"
    ).replace("i, x in enumerate(batches)", "i, (x, y) in enumerate(zip(batches, batches))"),
    "number of batches from outside": SETUP
    + "def train(model, batches, num_batches):\n"
    + BATCHES
    + under(2, "if i % SIZE == 0:\n    optimizer.zero_grad()\n", BACKWARD)
    + "        if (i + 1) % SIZE == 0 or i + 1 == num_batches:\n"
    + under(3, STEP),
}
LEFT_OVER = {
    text: left_over(text)
    for text in (
        "len(batches) % SIZE != 0",
        "len(batches) % SIZE",
        "total % SIZE > 0",
        "(i + 1) % SIZE",
        "not total % 4 == 0",
    )
} | {
    "kept rest": left_over("rest", before="rest = total % SIZE\n"),
    "divmod": left_over("rest > 0", before="whole, rest = divmod(len(batches), SIZE)\n"),
    "flag": left_over("waits", "(i + 1) % SIZE == 0")
    .replace(EPOCHS, EPOCHS + "    waits = False\n")
    .replace("    scaler.scale(loss)", "    waits = True\n        scaler.scale(loss)")
    .replace(under(3, CLEAR), under(3, CLEAR, "waits = False\n"), 1),
    "counter": filled("k = 0\n", "k += 1\n", "k == SIZE", "k = 0\n", "k"),
    "counter, the other way round": filled("k = 0\n", "k = k + 1\n", "4 <= k", "k = 0\n", "k > 0"),
    "list": filled("seen = []\n", "seen.append(1)\n", "len(seen) == 4", "seen.clear()\n", "seen"),
}
ONCE_PER_EPOCH = {
    text: SETUP
    + EPOCHS
    + BATCHES
    + under(2, BACKWARD, f"if {text}:\n", under(1, STEP, CLEAR))
    + END
    for text in ("i + 1 == len(batches)", "i >= total - 1", "not i < total - 1")
}
RESUMED = {
    text: SETUP
    + f"begin, done = 3, 40\nfor epoch in range(begin, 9):\n{BATCHES}        if {text}:\n"
    + under(2, "    continue\n", BACKWARD, STEP, CLEAR)
    + END
    for text in (
        "epoch == begin and i < done",
        "i <= done and epoch == begin",
        "epoch == begin and done > i",
        "epoch == 3 and i < 17",
    )
}
WINDOWS = {**LAST_BATCH, **LEFT_OVER, **ONCE_PER_EPOCH, **RESUMED}

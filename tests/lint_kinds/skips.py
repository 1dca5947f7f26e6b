"""Windows that are left on purpose: cleared before the step, or stepped where a gradient is."""

from __future__ import annotations

_TOP = "import torch\nfrom torch import nn\n"
_HEAD = (
    _TOP
    + """

def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
"""
)
_WINDOW = (
    _HEAD
    + """\
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
"""
)
_STEP = "        scaler.step(optimizer)\n        scaler.update()\n"
_GUARDED = (
    _HEAD
    + """\
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y) / 4
        if torch.isfinite(loss):
            scaler.scale(loss).backward()
"""
)
_BODY = """\
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad(set_to_none=True)
"""


def _where(condition: str, above: str = "") -> str:
    before = "".join(f"            {line}\n" for line in above.splitlines())
    return (
        _GUARDED + "        if (i + 1) % 4 == 0:\n" + before + f"            if {condition}:\n"
    ) + _BODY


KINDS: dict[str, dict[str, str]] = {
    "step of cleared gradients as a skip": {
        "if and continue": _WINDOW
        + """\
        if norm > 50:
            optimizer.zero_grad()
            scaler.step(optimizer)
            scaler.update()
            continue
"""
        + _STEP,
        "if and else": _WINDOW
        + """\
        if norm > 50:
            optimizer.zero_grad(set_to_none=False)
            scaler.step(optimizer)
        else:
            scaler.step(optimizer)
        scaler.update()
""",
        "cleared and stepped by the common line": _WINDOW
        + """\
        if not torch.isfinite(norm):
            optimizer.zero_grad()
"""
        + _STEP,
        "update alone": _WINDOW
        + """\
        if norm > 50:
            optimizer.zero_grad()
            scaler.update()
            continue
"""
        + _STEP,
        "set to None over groups": _WINDOW
        + """\
        if norm > 50:
            for group in optimizer.param_groups:
                for p in group["params"]:
                    p.grad = None
"""
        + _STEP,
        "model's own": _WINDOW
        + """\
        if bool(norm > 50):
            model.zero_grad()
"""
        + _STEP,
        "counted": _WINDOW.replace("    for x", "    num_bad = 0\n    for x")
        + """\
        num_bad = num_bad + 1 if norm > 50 else 0
        if num_bad:
            optimizer.zero_grad()
        if num_bad > 3:
            raise RuntimeError("no step of the last four was of use")
"""
        + _STEP,
        "in a trainer": _TOP
        + """

class Trainer:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer
        self.scaler = torch.amp.GradScaler("cuda")

    def is_bad(self, norm):
        return norm > 50

    def move(self):
        self.scaler.unscale_(self.optimizer)
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        if self.is_bad(norm):
            self.optimizer.zero_grad()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def fit(self, loader):
        for x, y in loader:
            self.optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = nn.functional.mse_loss(self.model(x), y)
            self.scaler.scale(loss).backward()
            self.move()
""",
        "always cleared": _WINDOW + "        optimizer.zero_grad()  # <- HS126\n" + _STEP,
        "cleared on both ways": _WINDOW
        + """\
        if norm > 50:
            optimizer.zero_grad()  # <- HS126
        else:
            model.zero_grad()  # <- HS126
"""
        + _STEP,
        "left without an update": _WINDOW
        + """\
        if norm > 50:
            optimizer.zero_grad()
            continue  # <- HS112
"""
        + _STEP,
    },
    "guard on gradients": {
        "any": _where("any(p.grad is not None for p in model.parameters())"),
        "not all": _where("not all(p.grad is None for p in model.parameters())"),
        "list": _where("held", "held = [p for p in model.parameters() if p.grad is not None]"),
        "count": _where(
            "num_held > 0", "num_held = sum(p.grad is not None for p in model.parameters())"
        ),
        "first parameter": _where("next(model.parameters()).grad is not None"),
        "over groups": _where(
            'any(p.grad is not None for g in optimizer.param_groups for p in g["params"])'
        ),
        "by a flag": _GUARDED.replace("    for i", "    has_any = False\n    for i")
        + """\
            has_any = True
        if (i + 1) % 4 == 0 and has_any:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            has_any = False
""",
        "by a count": _GUARDED.replace("    for i", "    num_good = 0\n    for i")
        + """\
            num_good += 1
        if (i + 1) % 4 == 0:
            if num_good == 0:
                continue
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            num_good = 0
""",
        "continue": _GUARDED
        + """\
        if (i + 1) % 4:
            continue
        if all(p.grad is None for p in model.parameters()):
            continue
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
        "helper": _TOP
        + """

def has_gradients(model):
    for p in model.parameters():
        if p.grad is not None:
            return True
    return False


def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        if not torch.isfinite(loss):
            continue
        scaler.scale(loss).backward()
        if has_gradients(model):
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
""",
        "no guard, and no backward": _HEAD
        + """\
    for x, y in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        scaler.step(optimizer)  # <- HS126
        scaler.update()
        optimizer.zero_grad()
""",
        "guarded, and clipped too early": _where(
            "any(p.grad is not None for p in model.parameters())"
        )
        .replace("                scaler.unscale_(optimizer)\n", "")
        .replace("0.5)", "5.0)  # <- HS101"),
        "guarded, and unscaled twice": _where(
            "any(p.grad is not None for p in model.parameters())"
        ).replace(
            "                scaler.step",
            "                scaler.unscale_(optimizer)  # <- HS102\n                scaler.step",
        ),
    },
    "loss that may not be finite": {
        "continue before backward": _HEAD
        + """\
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        if not torch.isfinite(loss):
            continue
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
""",
        "cleared and left": _HEAD
        + """\
    for x, y in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        if not torch.isfinite(loss):
            optimizer.zero_grad()
            del loss
            continue
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
""",
        "try": _HEAD
        + """\
    for x, y in loader:
        optimizer.zero_grad()
        try:
            with torch.autocast("cuda", dtype=torch.float16):
                loss = nn.functional.mse_loss(model(x), y)
            if not torch.isfinite(loss):
                raise FloatingPointError("loss")
        except FloatingPointError:
            continue
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
""",
        "returned": _TOP
        + """

def one_step(model, x, y, optimizer, scaler):
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    if not torch.isfinite(loss):
        return None
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    return [one_step(model, x, y, optimizer, scaler) for x, y in loader]
""",
        "zeroed": _HEAD
        + """\
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        if torch.isfinite(loss):
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.zero_grad()
""",
        "unscaled, then left": _HEAD
        + """\
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        if not torch.isfinite(loss):
            continue  # <- HS112
        scaler.step(optimizer)
        scaler.update()
""",
        "stepped where nothing was scaled": _HEAD
        + """\
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        if not torch.isfinite(loss):
            scaler.step(optimizer)  # <- HS126
            scaler.update()
            continue
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
""",
    },
}

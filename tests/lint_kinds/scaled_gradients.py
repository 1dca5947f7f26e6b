"""Missed kinds: scaled gradients that are shown, changed in hooks, made into penalties, or set."""

from __future__ import annotations

_TOP = "import torch\nfrom torch import nn\n"
_BEGIN = (
    _TOP
    + """

def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
"""
)
_FORWARD = """\
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
"""
_BACKWARD = "        scaler.scale(loss).backward()\n"
_STEP = "        scaler.step(optimizer)\n        scaler.update()\n"
_UNSCALE = "        scaler.unscale_(optimizer)\n"


def _lines(text: str, margin: int = 8) -> str:
    return "".join(" " * margin + f"{line}\n" for line in text.splitlines())


def _shown(lines: str, top: str = "", unscale: str = "") -> str:
    begin = _BEGIN.replace("\n\ndef train", f"{top}\n\ndef train", 1) if top else _BEGIN
    return begin + _FORWARD + _BACKWARD + unscale + _lines(lines) + _STEP


def _hooked(lines: str, top: str = "") -> str:
    begin = _BEGIN.replace("\n\ndef train", f"{top}\n\ndef train", 1) if top else _BEGIN
    return begin + _lines(lines, 4) + _FORWARD + _BACKWARD + _STEP


def _penalty(gradients: str, loss: str) -> str:
    return (
        _BEGIN
        + """\
    for x, y in loader:
        optimizer.zero_grad()
        x = x.clone().requires_grad_(True)
        with torch.autocast("cuda", dtype=torch.float16):
            out = model(x)
"""
        + _lines(gradients)
        + _lines(loss)
        + _BACKWARD
        + _STEP
    )


_SUM = "loss = nn.functional.mse_loss(out, y) + 0.1 * penalty"
_HS210, _HS125, _HS133 = "  # <- HS210", "  # <- HS125", "  # <- HS133"
_NORM_HELPER = """

def norm_of(model):
    total = 0.0
    for p in model.parameters():
        if p.grad is not None:
            total += p.grad.norm().item() ** 2
    return total**0.5

"""


def _set(lines: str, then: str = _STEP, make: str = "scaler.scale(loss)") -> str:
    return (
        _BEGIN
        + _FORWARD
        + f"        grads = torch.autograd.grad({make}, list(model.parameters()))\n"
        + _lines(lines)
        + then
    )


_SET = "for p, g in zip(model.parameters(), grads):\n    p.grad = g"
_TABLE = """

CLIPS = {
    "norm": nn.utils.clip_grad_norm_,
    "value": nn.utils.clip_grad_value_,
}

"""

KINDS: dict[str, dict[str, str]] = {
    "scaled gradients shown": {
        "norm over parameters": _shown(f"""\
total = 0
for p in model.parameters():
    if p.grad is not None:
        total += p.grad.data.norm(2).item() ** 2
print("grad norm", total**0.5){_HS210}"""),
        "torch's total norm": _shown(f"""\
norm = nn.utils.get_total_norm([p.grad for p in model.parameters()])
print(norm.item()){_HS210}"""),
        "clip that clips nothing": _shown(f"""\
norm = nn.utils.clip_grad_norm_(model.parameters(), float("inf"))
print(float(norm)){_HS210}"""),
        "histogram": _shown(f"""\
for name, p in model.named_parameters():
    writer.add_histogram(name, p.grad, 0){_HS210}""").replace(
            "optimizer):\n", "optimizer, writer):\n", 1
        ),
        "scalar": _shown(f"""\
norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
writer.add_scalar("norm", norm.item(), 0){_HS210}""").replace(
            "optimizer):\n", "optimizer, writer):\n", 1
        ),
        "helper": _shown(f'print("norm", norm_of(model)){_HS210}', _NORM_HELPER),
        "largest": _shown(f"""\
largest = max(p.grad.abs().max().item() for p in model.parameters())
print(f"largest gradient {{largest:.3g}}"){_HS210}"""),
        "in a trainer": _TOP
        + f"""

class Trainer:
    def __init__(self, model, optimizer, writer):
        self.model, self.optimizer, self.writer = model, optimizer, writer
        self.scaler = torch.amp.GradScaler("cuda")

    def log_gradients(self):
        for name, p in self.model.named_parameters():
            self.writer.add_histogram(name, p.grad, 0){_HS210}

    def fit(self, loader):
        for x, y in loader:
            self.optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = nn.functional.mse_loss(self.model(x), y)
            self.scaler.scale(loss).backward()
            self.log_gradients()
            self.scaler.step(self.optimizer)
            self.scaler.update()
""",
        "behind unscale_": _shown("print(norm_of(model))", _NORM_HELPER, _UNSCALE),
        "behind the step, which unscales": _BEGIN
        + _FORWARD
        + _BACKWARD
        + _STEP
        + _lines("""\
norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
print(norm.item())"""),
        "divided by the scale": _shown("""\
norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
print(norm.item() / scaler.get_scale())"""),
        "only whether it is finite": _shown("""\
if not all(bool(torch.isfinite(p.grad).all()) for p in model.parameters()):
    print("a gradient is not finite: this step will be skipped")"""),
    },
    "hook on scaled gradients": {
        "clamp": _hooked(f"""\
for p in model.parameters():
    p.register_hook(lambda g: torch.clamp(g, -1.0, 1.0)){_HS125}"""),
        "method": _hooked(f"""\
for p in model.parameters():
    p.register_hook(lambda g: g.clamp(-1.0, 1.0)){_HS125}"""),
        "function": _hooked(
            f"""\
for p in model.parameters():
    p.register_hook(limit){_HS125}""",
            """

def limit(gradient):
    return gradient.clamp(min=-1.0, max=1.0)

""",
        ),
        "NaN to 0": _hooked(f"""\
for p in model.parameters():
    p.register_hook(lambda g: torch.nan_to_num(g, 0.0, 0.0, 0.0)){_HS125}"""),
        "norm of each": _hooked(f"""\
for p in model.parameters():
    p.register_hook(lambda g: g * min(1.0, 2.0 / float(g.norm()))){_HS125}"""),
        "one parameter": _hooked(
            f"model.head.weight.register_hook(limit){_HS125}",
            """

def limit(gradient):
    return torch.where(gradient.abs() > 1.0, gradient.sign() * 1.0, gradient)

""",
        ),
        "constant added": _hooked(f"""\
for p in model.parameters():
    p.register_hook(lambda g: g + 0.5){_HS125}"""),
        "in a trainer": _TOP
        + f"""

class Trainer:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer
        self.scaler = torch.amp.GradScaler("cuda")
        for p in model.parameters():
            p.register_hook(self.limit){_HS125}

    def limit(self, gradient):
        return torch.clamp(gradient, -1.0, 1.0)

    def fit(self, loader):
        for x, y in loader:
            self.optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = nn.functional.mse_loss(self.model(x), y)
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
""",
        "factor": _hooked("""\
for p in model.head.parameters():
    p.register_hook(lambda g: g * 0.5)"""),
        "mask": _hooked("""\
mask = torch.ones_like(model.head.weight)
model.head.weight.register_hook(lambda g: g * mask)"""),
        "looks only": _hooked("""\
seen = []
for p in model.parameters():
    p.register_hook(lambda g: seen.append(tuple(g.shape)))"""),
        "clamp of an activation's gradient without a scaler": _TOP
        + """

def train(model, loader, optimizer):
    for p in model.parameters():
        p.register_hook(lambda g: torch.clamp(g, -1.0, 1.0))
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
""",
    },
    "penalty from scaled gradients": {
        "of the inputs": _penalty(
            f"""\
g = torch.autograd.grad(scaler.scale(out.sum()), x, create_graph=True)[0]
penalty = g.square().sum(1).mean(){_HS133}""",
            _SUM,
        ),
        "by keywords": _penalty(
            f"""\
g = torch.autograd.grad(outputs=scaler.scale(out.sum()), inputs=x, create_graph=True)[0]
penalty = (g.norm(2, dim=1) - 1).square().mean(){_HS133}""",
            _SUM,
        ),
        "unpacked": _penalty(
            f"""\
scaled = scaler.scale(out.sum())
(g,) = torch.autograd.grad(scaled, [x], create_graph=True)
penalty = torch.mean((g.flatten(1).norm(dim=1) - 1.0) ** 2){_HS133}""",
            _SUM,
        ),
        "of the weights": _penalty(
            f"""\
grads = torch.autograd.grad(
    scaler.scale(nn.functional.mse_loss(out, y)), list(model.parameters()), create_graph=True
)
penalty = sum(g.pow(2).sum() for g in grads){_HS133}""",
            _SUM,
        ),
        "helper": _penalty("penalty = penalty_of(out, x, scaler)", _SUM).replace(
            "\n\ndef train",
            f"""

def penalty_of(out, x, scaler):
    g = torch.autograd.grad(scaler.scale(out.sum()), x, create_graph=True)[0]
    return g.square().sum(1).mean(){_HS133}


def train""",
            1,
        ),
        "through backward": _penalty(
            f"""\
scaler.scale(out.sum()).backward(create_graph=True, inputs=[x])
penalty = x.grad.square().sum(1).mean(){_HS133}""",
            _SUM,
        ),
        "divided by the scale": _penalty(
            """\
g = torch.autograd.grad(scaler.scale(out.sum()), x, create_graph=True)[0]
g = g / scaler.get_scale()
penalty = g.square().sum(1).mean()""",
            _SUM,
        ),
        "times the inverse": _penalty(
            """\
inverse = 1.0 / scaler.get_scale()
scaled = torch.autograd.grad(scaler.scale(out.sum()), x, create_graph=True)
penalty = sum((g * inverse).square().sum(1).mean() for g in scaled)""",
            _SUM,
        ),
        "of an unscaled loss": _penalty(
            """\
g = torch.autograd.grad(out.float().sum(), x, create_graph=True)[0]
penalty = g.square().sum(1).mean()""",
            _SUM,
        ),
    },
    "gradients set from scaled ones": {
        "stepped without the scaler": _set(_SET, "        optimizer.step()  # <- HS107\n"),
        "clipped while scaled": _set(
            _SET + "\nnn.utils.clip_grad_norm_(model.parameters(), 5.0)  # <- HS101"
        ),
        "by index": _set(
            """\
for i, p in enumerate(model.parameters()):
    p.grad = grads[i]""",
            "        optimizer.step()  # <- HS107\n",
        ),
        "clamped": _set(f"""\
for p, g in zip(model.parameters(), grads):
    p.grad = g.clamp(-1.0, 1.0){_HS125}"""),
        "in a helper": _set(
            "assign(model, grads)", "        optimizer.step()  # <- HS107\n"
        ).replace(
            "\n\ndef train",
            """

def assign(model, grads):
    for p, g in zip(model.parameters(), grads):
        p.grad = g.detach()


def train""",
            1,
        ),
        "by the foreach": _set(
            """\
for p in model.parameters():
    p.grad = torch.zeros_like(p)
torch._foreach_copy_([p.grad for p in model.parameters()], list(grads))""",
            "        optimizer.step()  # <- HS107\n",
        ),
        "of a loss without the scale": _set(_SET, make="loss").replace(
            "list(model.parameters()))", "list(model.parameters()))  # <- HS108"
        ),
        "stepped with it": _set(_SET),
        "unscaled, then clipped": _set(
            _SET + "\nscaler.unscale_(optimizer)\nnn.utils.clip_grad_norm_(model.parameters(), 0.5)"
        ),
        "divided by the scale": _set(
            """\
for p, g in zip(model.parameters(), grads):
    p.grad = g / scaler.get_scale()""",
            "        optimizer.step()\n",
        ),
    },
    "clip through getattr or a table": {
        "table": _shown('CLIPS["norm"](model.parameters(), 5.0)  # <- HS101', _TABLE),
        "table by a setting": _shown(
            "CLIPS[kind](model.parameters(), 5.0)  # <- HS101", _TABLE
        ).replace("optimizer):\n", 'optimizer, kind="norm"):\n', 1),
        "getattr": _shown(
            'getattr(nn.utils, "clip_grad_norm_")(model.parameters(), 5.0)  # <- HS101'
        ),
        "getattr of a built name": _shown("""\
clip = getattr(nn.utils, f"clip_grad_{kind}_")
clip(model.parameters(), 5.0)  # <- HS101""").replace(
            "optimizer):\n", 'optimizer, kind="norm"):\n', 1
        ),
        "helper": _shown(
            "clip(model.parameters(), 5.0)",
            """

def clip(parameters, value, mode="norm"):
    if mode == "norm":
        nn.utils.clip_grad_norm_(parameters, value)  # <- HS101
    elif mode == "value":
        nn.utils.clip_grad_value_(parameters, value)

""",
        ),
        "partial": _shown("clip(model.parameters())  # <- HS101")
        .replace("import torch\n", "import functools\n\nimport torch\n", 1)
        .replace(
            "    scaler = torch",
            "    clip = functools.partial(nn.utils.clip_grad_norm_, max_norm=5.0)\n    scaler = torch",
        ),
        "chosen by an if": _shown("clip(model.parameters(), 5.0)  # <- HS101")
        .replace(
            "    scaler = torch",
            """\
    clip = nn.utils.clip_grad_value_ if by_value else nn.utils.clip_grad_norm_
    scaler = torch""",
        )
        .replace("optimizer):\n", "optimizer, by_value=False):\n", 1),
        "helper module": "# file: clips.py\n"
        + _TOP
        + """

def clip(parameters, limit, kind="norm"):
    getattr(nn.utils, f"clip_grad_{kind}_")(parameters, limit)  # <- HS101
# file: main.py
"""
        + _shown("clip(model.parameters(), 5.0)").replace(
            "from torch import nn\n", "from clips import clip\nfrom torch import nn\n", 1
        ),
        "table, behind unscale_": _shown(
            'CLIPS["norm"](model.parameters(), 0.5)', _TABLE, _UNSCALE
        ),
        "getattr, behind unscale_": _shown(
            'getattr(nn.utils, "clip_grad_norm_")(model.parameters(), 0.5)', "", _UNSCALE
        ),
    },
}

"""Optimizers that came from outside: neither one and the same, nor of torch's own classes."""

from __future__ import annotations

_TOP = "import torch\nfrom torch import nn\n"


def _loop(head: str, each: str = "for opt in optimizers:", clear: str = "opt.zero_grad()") -> str:
    """A step over given optimizers, `each` of which is a loop."""
    return (
        _TOP
        + f"""

def train({head}):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        {each}
            {clear}
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        {each}
            scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        {each}
            scaler.step(opt)
        scaler.update()
"""
    )


def _optimizer(body: str, step: str = "opt.zero_grad()", made: str = "Own") -> str:
    """A class of the project's own, used by a plain loop that clears with `step`."""
    return (
        _TOP
        + f"""

{body}

def train(model, loader):
    scaler = torch.amp.GradScaler("cuda")
    opt = {made}(model.parameters(), lr=0.1)
    for x, y in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        {step}
"""
    )


def _cleared(lines: str, head: str = "model, loader") -> str:
    """A loop that clears by hand."""
    indented = "".join(f"        {line}\n" for line in lines.splitlines())
    return (
        _TOP
        + f"""

def train({head}):
    scaler = torch.amp.GradScaler("cuda")
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
{indented}"""
    )


KINDS: dict[str, dict[str, str]] = {
    "loop over given optimizers": {
        "parameter": _loop("model, loader, optimizers"),
        "values of a dict": _loop(
            "model, loader, named_optimizers", "for opt in named_optimizers.values():"
        ),
        "items of a dict": _loop(
            "model, loader, named_optimizers", "for _, opt in named_optimizers.items():"
        ),
        "zip": _loop(
            "model, loader, optimizers",
            "for module, opt in zip((model.body, model.head), optimizers):",
        ),
        "numbered": _loop("model, loader, optimizers", "for n, opt in enumerate(optimizers):"),
        "by index": _loop("model, loader, optimizers", "for n in range(len(optimizers)):")
        .replace("(opt)", "(optimizers[n])")
        .replace("opt.zero", "optimizers[n].zero"),
        "by key": _loop("model, loader, named_optimizers", "for k in named_optimizers:")
        .replace("(opt)", "(named_optimizers[k])")
        .replace("opt.zero", "named_optimizers[k].zero"),
        "attribute": _TOP
        + """

class Trainer:
    def __init__(self, model, optimizers):
        self.model, self.optimizers = model, optimizers
        self.scaler = torch.amp.GradScaler("cuda")

    def fit(self, loader):
        for x, y in loader:
            [opt.zero_grad() for opt in self.optimizers]
            with torch.autocast("cuda", dtype=torch.float16):
                loss = nn.functional.mse_loss(self.model(x), y)
            self.scaler.scale(loss).backward()
            for opt in self.optimizers:
                self.scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
            for opt in self.optimizers:
                self.scaler.step(opt)
            self.scaler.update()
""",
        "helpers": _TOP
        + """

def unscale_all(scaler, optimizers):
    for opt in optimizers:
        scaler.unscale_(opt)


def step_all(scaler, optimizers):
    for opt in optimizers:
        scaler.step(opt)
    scaler.update()


def train(model, loader, optimizers):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        unscale_all(scaler, optimizers)
        step_all(scaler, optimizers)
        for opt in optimizers:
            opt.zero_grad()
""",
        "while": _loop("model, loader, optimizers").replace(
            "        for opt in optimizers:\n            scaler.unscale_(opt)\n",
            "        left = list(optimizers)\n"
            "        while left:\n            scaler.unscale_(left.pop())\n",
        ),
        "one or several": _TOP
        + """

def unscale(scaler, optimizer):
    if not isinstance(optimizer, (list, tuple)):
        optimizer = [optimizer]
    for opt in optimizer:
        scaler.unscale_(opt)


def train(model, loader, optimizers):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        [opt.zero_grad() for opt in optimizers]
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        unscale(scaler, optimizers)
        for opt in optimizers:
            scaler.step(opt)
        scaler.update()
""",
        "each unscaled twice": _loop("model, loader, optimizers").replace(
            "            scaler.unscale_(opt)\n",
            "            scaler.unscale_(opt)\n            scaler.unscale_(opt)  # <- HS102\n",
        ),
        "clipped and never unscaled": _loop("model, loader, optimizers")
        .replace("        for opt in optimizers:\n            scaler.unscale_(opt)\n", "")
        .replace("0.5)", "0.5)  # <- HS101"),
    },
    "optimizer of the project's own": {
        "zero_grad": _optimizer("""\
class Own(torch.optim.SGD):
    def zero_grad(self, set_to_none=True):
        super().zero_grad(set_to_none)
"""),
        "zero_grad by hand": _optimizer("""\
class Own(torch.optim.SGD):
    def zero_grad(self, set_to_none=True):
        for group in self.param_groups:
            for p in group["params"]:
                p.grad = None
"""),
        "zero_grad of another name": _optimizer(
            """\
class Own(torch.optim.SGD):
    def clear(self):
        self.zero_grad(set_to_none=True)
""",
            "opt.clear()",
        ),
        "step that clears": _optimizer(
            """\
class Own(torch.optim.SGD):
    def step(self, closure=None):
        loss = super().step(closure)
        self.zero_grad()
        return loss
""",
            "pass",
        ),
        "super with its class": _optimizer("""\
class Own(torch.optim.SGD):
    def zero_grad(self, *args, **kwargs):
        super(Own, self).zero_grad(*args, **kwargs)
"""),
        "base class by name": _optimizer("""\
class Own(torch.optim.SGD):
    def zero_grad(self, set_to_none=True):
        torch.optim.SGD.zero_grad(self, set_to_none)
"""),
        "through a mixin": _optimizer("""\
class Counted:
    def zero_grad(self, set_to_none=True):
        self.cleared = getattr(self, "cleared", 0) + 1
        super().zero_grad(set_to_none)


class Own(Counted, torch.optim.SGD):
    pass
"""),
        "wrapper around one": _optimizer("""\
class Own:
    def __init__(self, params, lr):
        self.inner = torch.optim.SGD(params, lr=lr)
        self.param_groups = self.inner.param_groups

    def zero_grad(self):
        self.inner.zero_grad()

    def step(self):
        self.inner.step()
"""),
        "zero_grad that does nothing": _optimizer("""\
class Own(torch.optim.SGD):
    def zero_grad(self, set_to_none=True):
        pass
""").replace("(loss).backward()", "(loss).backward()  # <- HS127"),
        "never cleared": _optimizer(
            """\
class Own(torch.optim.SGD):
    def zero_grad(self, set_to_none=True):
        super().zero_grad(set_to_none)
""",
            "pass",
        ).replace("(loss).backward()", "(loss).backward()  # <- HS127"),
    },
    "cleared by hand": {
        "zero_ over groups": _cleared("""\
for group in opt.param_groups:
    for p in group["params"]:
        if p.grad is not None:
            p.grad.zero_()"""),
        "None over groups": _cleared("""\
for group in opt.param_groups:
    for p in group["params"]:
        p.grad = None"""),
        "detached over parameters": _cleared("""\
for p in model.parameters():
    if p.grad is not None:
        p.grad.detach_()
        p.grad.zero_()"""),
        "data over parameters": _cleared("""\
for p in model.parameters():
    p.grad.data.zero_()"""),
        "named": _cleared("""\
for name, p in model.named_parameters():
    p.grad = None"""),
        "fill": _cleared("for p in model.parameters():\n    p.grad.fill_(0)"),
        "times zero": _cleared("""\
with torch.no_grad():
    for p in model.parameters():
        p.grad.copy_(torch.zeros_like(p))"""),
        "skipped where none": _cleared("""\
for p in model.parameters():
    if p.grad is None:
        continue
    p.grad = torch.zeros_like(p.grad)"""),
        "foreach": _cleared("torch._foreach_zero_([p.grad for p in model.parameters()])"),
        "del": _cleared("for p in model.parameters():\n    del p.grad"),
        "comprehension": _cleared("""\
held = [p for g in opt.param_groups for p in g["params"] if p.grad is not None]
for p in held:
    p.grad.zero_()"""),
        "helper": _cleared("clear(opt)")
        + """

def clear(optimizer):
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.grad = None
""",
        "only asked": _cleared("""\
for group in opt.param_groups:
    for p in group["params"]:
        if p.grad is not None:
            p.grad.detach_()""").replace("(loss).backward()", "(loss).backward()  # <- HS127"),
        "another model's": _cleared("for p in other.parameters():\n    p.grad = None")
        .replace("    for x, y", "    other = nn.Linear(2, 2)\n    for x, y")
        .replace("(loss).backward()", "(loss).backward()  # <- HS127"),
    },
    "update between steps of given optimizers": {
        "one after the other": _TOP
        + """

def train(model, loader, optimizer_body, optimizer_head):
    scaler = torch.amp.GradScaler("cuda", growth_interval=1)
    for x, y in loader:
        optimizer_body.zero_grad()
        optimizer_head.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer_body)
        scaler.update()  # <- HS104
        scaler.step(optimizer_head)
        scaler.update()
""",
        "under a setting": _TOP
        + """

def train(cfg, model, loader, optimizer_body, optimizer_head):
    scaler = torch.amp.GradScaler("cuda", growth_interval=1)
    for x, y in loader:
        optimizer_body.zero_grad()
        optimizer_head.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer_body)
        scaler.update()  # <- HS104
        if "f" in cfg.kind:
            for p in model.head.parameters():
                p.grad.data *= 1.0 / cfg.accum
            scaler.step(optimizer_head)
            scaler.update()
""",
        "in a loop over them": _TOP
        + """

def train(model, loader, optimizers):
    scaler = torch.amp.GradScaler("cuda", growth_interval=1)
    for x, y in loader:
        for opt in optimizers:
            opt.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        for opt in optimizers:
            scaler.step(opt)
            scaler.update()  # <- HS104
""",
        "by attributes": _TOP
        + """

class Trainer:
    def __init__(self, model, optimizer_body, optimizer_head):
        self.model, self.first, self.second = model, optimizer_body, optimizer_head
        self.scaler = torch.amp.GradScaler("cuda", growth_interval=1)

    def move(self, optimizer):
        self.scaler.step(optimizer)
        self.scaler.update()  # <- HS104

    def fit(self, loader):
        for x, y in loader:
            self.first.zero_grad()
            self.second.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = nn.functional.mse_loss(self.model(x), y)
            self.scaler.scale(loss).backward()
            self.move(self.first)
            self.move(self.second)
""",
        "from a dict": _TOP
        + """

def train(model, loader, named_optimizers):
    scaler = torch.amp.GradScaler("cuda", growth_interval=1)
    for x, y in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(named_optimizers["body"])
        scaler.update()  # <- HS104
        scaler.step(named_optimizers["head"])
        scaler.update()
        named_optimizers["body"].zero_grad()
        named_optimizers["head"].zero_grad()
""",
        "one update after both": _loop("model, loader, optimizers"),
        "one backward each": _TOP
        + """

def train(model, loader, optimizer_body, optimizer_head):
    first, second = torch.amp.GradScaler("cuda"), torch.amp.GradScaler("cuda")
    for x, y in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model.head(model.body(x)), y)
        first.scale(loss).backward()
        first.step(optimizer_body)
        first.update()
        optimizer_body.zero_grad()
        optimizer_head.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model.head(model.body(x).detach()), y)
        second.scale(loss).backward()
        second.step(optimizer_head)
        second.update()
        optimizer_body.zero_grad()
        optimizer_head.zero_grad()
""",
    },
}

"""Averages and schedules: of outputs (nothing to say), of weights and one's own (HS109)."""

from __future__ import annotations

_TOP = "import copy\n\nimport torch\nfrom torch import nn\n"
_OUTPUTS = (
    _TOP
    + """

class Smooth:
    def __init__(self, decay=0.9):
        self.decay, self.real = decay, 0.0

    def update(self, value):
        self.real = self.decay * self.real + (1 - self.decay) * value


"""
)
_BEGIN = """\
def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
"""
_WINDOW = """\
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            out = model(x)
            loss = nn.functional.mse_loss(out, y)
"""
_STEP = """\
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
_GUARD = """\
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        before = scaler.get_scale()
        scaler.update()
        if scaler.get_scale() >= before:
"""


def _with(made: str, moved: str, top: str = _TOP + "\n\n", guard: bool = False) -> str:
    """A loop in which `moved` comes behind the step, of what `made` makes."""
    step, margin = (_GUARD, " " * 12) if guard else (_STEP, " " * 8)
    lines = "".join(f"{margin}{line}\n" for line in moved.splitlines())
    return top + _BEGIN + f"    {made}\n" + _WINDOW + step + lines


_AVERAGE = (
    _TOP
    + """

class Average:
    def __init__(self, model, decay=0.99):
        self.model, self.decay = copy.deepcopy(model), decay

    @torch.no_grad()
    def update(self, model):
        for a, b in zip(self.model.parameters(), model.parameters()):
            a.mul_(self.decay).add_(b, alpha=1 - self.decay)


"""
)
_WARM = (
    _TOP
    + """

class Warm(torch.optim.lr_scheduler.LRScheduler):
    def get_lr(self):
        return [base for base in self.base_lrs]


"""
)
_HAND = (
    _TOP
    + """

class Warm:
    def __init__(self, optimizer):
        self.optimizer, self.num_steps = optimizer, 0

    def step(self):
        self.num_steps += 1
        for group in self.optimizer.param_groups:
            group["lr"] = min(0.1, 0.1 * self.num_steps)


"""
)
_BASE = (
    _TOP
    + """

class Base:
    def __init__(self, optimizer):
        self.optimizer, self.n = optimizer, 0

    def rate(self):
        raise NotImplementedError

    def step(self):
        self.n += 1
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate()


class Warm(Base):
    def rate(self):
        return min(0.1, 0.1 * self.n)


"""
)
_NOTE = "  # <- HS109"

KINDS: dict[str, dict[str, str]] = {
    "average of outputs": {
        "number": _OUTPUTS
        + _BEGIN
        + "    ema = Smooth()\n"
        + _WINDOW
        + "        ema.update(out.mean().item())\n"
        + _STEP,
        "loss": _with("loss_ema = Smooth()", "loss_ema.update(loss.item())", _OUTPUTS),
        "unknown class": _with(
            "lecam_ema = OutputEMA()",
            'lecam_ema.update(out.mean().item(), "real")',
            _TOP + "from project import OutputEMA\n\n\n",
        ),
        "tensor": _with("ema = torch.zeros(())", "ema.lerp_(loss.detach().float(), 0.1)"),
        "by hand": _with("smooth = 0.0", "smooth = 0.9 * smooth + 0.1 * loss.item()"),
        "attribute": _OUTPUTS
        + """\
class Trainer:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer
        self.scaler = torch.amp.GradScaler("cuda")
        self.ema = Smooth()

    def fit(self, loader):
        for x, y in loader:
            self.optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                out = self.model(x)
                self.ema.update(out.mean().item())
                loss = nn.functional.mse_loss(out, y)
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
""",
        "codes of a batch": _with(
            "ema_codes = torch.zeros(1, 1)",
            "ema_codes.mul_(0.9).add_(out.detach().mean(), alpha=0.1)",
        ),
        "time": _with(
            "time_ema = Smooth()",
            "time_ema.update(time.perf_counter())",
            _OUTPUTS.replace("import copy\n", "import copy\nimport time\n"),
        ),
        "of weights all the same": _with(
            "ema = Average(model)", f"ema.update(model){_NOTE}", _AVERAGE
        ),
        "of weights through a local name": _with(
            "shadow = Average(model)", f"shadow.update(model){_NOTE}", _AVERAGE
        ),
    },
    "average of weights by hand": {
        "lerp": _with(
            "ema = copy.deepcopy(model)",
            f"""\
with torch.no_grad():
    for a, b in zip(ema.parameters(), model.parameters()):
        a.lerp_(b, 0.01){_NOTE}""",
        ),
        "before the step": _TOP
        + "\n\n"
        + _BEGIN
        + "    ema = copy.deepcopy(model)\n"
        + _WINDOW
        + f"""\
        scaler.scale(loss).backward()
        with torch.no_grad():
            for a, b in zip(ema.parameters(), model.parameters()):
                a.lerp_(b, 0.01){_NOTE}
        scaler.step(optimizer)
        scaler.update()
""",
        "state_dict": _with(
            "ema = copy.deepcopy(model)",
            f"""\
for name, value in model.state_dict().items():
    ema.state_dict()[name].mul_(0.99).add_(value, alpha=0.01){_NOTE}""",
        ),
        "data": _with(
            "ema = copy.deepcopy(model)",
            f"""\
for a, b in zip(ema.parameters(), model.parameters()):
    a.data = 0.99 * a.data + 0.01 * b.data{_NOTE}""",
        ),
        "foreach": _with(
            "ema = copy.deepcopy(model)",
            f"""\
with torch.no_grad():
    torch._foreach_lerp_(list(ema.parameters()), list(model.parameters()), 0.01){_NOTE}""",
        ),
        "function": _with(
            "ema = copy.deepcopy(model)",
            f"blend(ema, model){_NOTE}",
            _TOP
            + """

@torch.no_grad()
def blend(target, source, decay=0.99):
    for a, b in zip(target.parameters(), source.parameters()):
        a.copy_(decay * a + (1 - decay) * b)


""",
        ),
        "class": _with("teacher = Average(model)", f"teacher.update(model){_NOTE}", _AVERAGE),
        "torch's": _with(
            "ema = torch.optim.swa_utils.AveragedModel(model)",
            f"ema.update_parameters(model){_NOTE}",
        ),
        "behind a guard": _with(
            "ema = copy.deepcopy(model)",
            """\
with torch.no_grad():
    for a, b in zip(ema.parameters(), model.parameters()):
        a.lerp_(b, 0.01)""",
            guard=True,
        ),
        "class behind a guard": _with(
            "teacher = Average(model)", "teacher.update(model)", _AVERAGE, guard=True
        ),
        "copied once an epoch": _with("ema = copy.deepcopy(model)", "pass")
        + "    ema.load_state_dict(model.state_dict())\n",
    },
    "schedule of one's own": {
        "subclass of torch's": _with("warm = Warm(optimizer)", f"warm.step(){_NOTE}", _WARM),
        "subclass of a subclass": _with(
            "warm = Warmer(optimizer)",
            f"warm.step(){_NOTE}",
            _WARM + "class Warmer(Warm):\n    pass\n\n\n",
        ),
        "of LambdaLR": _with(
            "warm = Warm(optimizer)",
            f"warm.step(){_NOTE}",
            _TOP
            + """

class Warm(torch.optim.lr_scheduler.LambdaLR):
    def __init__(self, optimizer):
        super().__init__(optimizer, lambda n: 1.0)


""",
        ),
        "plain class": _with("warm = Warm(optimizer)", f"warm.step(){_NOTE}", _HAND),
        "rate from a method": _with("warm = Warm(optimizer)", f"warm.step(){_NOTE}", _BASE),
        "function that sets the rate": _with(
            "num_steps = 0",
            f"""\
num_steps += 1
set_rate(optimizer, num_steps){_NOTE}""",
            _TOP
            + """

def set_rate(optimizer, n):
    for group in optimizer.param_groups:
        group["lr"] = min(0.1, 0.1 * n)


""",
        ),
        "by hand": _with(
            "num_steps = 0",
            f"""\
num_steps += 1
for group in optimizer.param_groups:
    group["lr"] = min(0.1, 0.1 * num_steps){_NOTE}""",
        ),
        "subclass behind a guard": _with(
            "warm = Warm(optimizer)", "warm.step()", _WARM, guard=True
        ),
        "plain class behind a guard": _with(
            "warm = Warm(optimizer)", "warm.step()", _HAND, guard=True
        ),
        "rate of the number of the batch": _with("total = 8", "pass")
        .replace("for x, y in loader:", "for i, (x, y) in enumerate(loader):")
        .replace(
            "        optimizer.zero_grad()\n",
            """\
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * min(1.0, (i + total) / total)
        optimizer.zero_grad()
""",
        ),
        "subclass per epoch": _with("warm = Warm(optimizer)", "pass", _WARM) + "    warm.step()\n",
    },
    "flag of a device over the rounds": {
        "parameter": _TOP
        + """

def train(model, loader, optimizer, device, scaler, scheduler):
    device = torch.device(device)
    use_amp = device.type == "cuda"
    for x, y in loader:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.float16, enabled=use_amp):
            loss = nn.functional.mse_loss(model(x), y)
        if use_amp:
            scaler.scale(loss).backward()
            old = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            if scaler.get_scale() >= old:
                scheduler.step()
        else:
            loss.backward()
            optimizer.step()
            scheduler.step()
""",
        "asked each round": _TOP
        + """

def train(model, loader, optimizer, device, scaler, scheduler):
    for x, y in loader:
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.mse_loss(model(x), y)
        if torch.device(device).type != "cuda":
            loss.backward()
            optimizer.step()
            scheduler.step()
            continue
        scaler.scale(loss).backward()
        old = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if not scaler.get_scale() < old:
            scheduler.step()
""",
        "scaler or None": _TOP
        + """

def train(model, loader, optimizer, scaler_or_none, scheduler):
    for x, y in loader:
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.mse_loss(model(x), y)
        if scaler_or_none is None:
            loss.backward()
            optimizer.step()
        else:
            scaler_or_none.scale(loss).backward()
            old = scaler_or_none.get_scale()
            scaler_or_none.step(optimizer)
            scaler_or_none.update()
        if scaler_or_none is None or scaler_or_none.get_scale() >= old:
            scheduler.step()
""",
        "stepped flag": _TOP
        + """

def train(model, loader, optimizer, use_amp, scaler, scheduler):
    for x, y in loader:
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.mse_loss(model(x), y)
        stepped = True
        if use_amp:
            scaler.scale(loss).backward()
            old = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            stepped = scaler.get_scale() >= old
        else:
            loss.backward()
            optimizer.step()
        if stepped:
            scheduler.step()
""",
        "in a trainer": _TOP
        + """

class Trainer:
    def __init__(self, model, optimizer, device, scaler, scheduler):
        self.model, self.optimizer, self.scheduler = model, optimizer, scheduler
        self.device, self.scaler = torch.device(device), scaler

    def move(self, loss):
        if self.device.type == "cuda":
            self.scaler.scale(loss).backward()
            old = self.scaler.get_scale()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            return self.scaler.get_scale() >= old
        loss.backward()
        self.optimizer.step()
        return True

    def fit(self, loader):
        for x, y in loader:
            self.optimizer.zero_grad(set_to_none=True)
            loss = nn.functional.mse_loss(self.model(x), y)
            if self.move(loss):
                self.scheduler.step()
""",
        "the guard left out": _TOP
        + f"""

def train(model, loader, optimizer, use_amp, scaler, scheduler):
    for x, y in loader:
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.mse_loss(model(x), y)
        if use_amp:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()
        scheduler.step(){_NOTE}
""",
        "the guard in the other branch": _TOP
        + f"""

def train(model, loader, optimizer, use_amp, scaler, scheduler):
    for x, y in loader:
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.mse_loss(model(x), y)
        old = scaler.get_scale()
        if use_amp:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            scheduler.step(){_NOTE}
        else:
            loss.backward()
            optimizer.step()
            if scaler.get_scale() >= old:
                scheduler.step()
""",
    },
}

"""False kinds: scalers of the project's own, or ``None``, and closures that may be ``None``."""

from __future__ import annotations

_TOP = "import torch\nfrom torch import nn\n"
_LOOP = """\
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
"""
_STATIC = (
    _TOP
    + """

class Scaler:
    def __init__(self, factor=INIT):
        self.factor = factor

    def scale(self, loss):
        return self.factor, loss * self.factor, loss.item()

    def unscale(self, optimizer):
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.grad.div_(self.factor)

    def update(self, good):
        self.factor *= 1.0 if good else 0.5


""".replace("INIT", "64.0")
)


def _own(body: str) -> str:
    """A scaler class with a step of its own, in a plain loop."""
    return (
        _TOP
        + f"""

{body}

def train(model, loader, optimizer):
    scaler = Scaler()
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        scaler(loss, optimizer, model.parameters())
"""
    )


_NATIVE = """\
class Scaler:
    def __init__(self):
        self.inner = torch.amp.GradScaler("cuda")

    def __call__(self, loss, optimizer, parameters, clip=0.5):
        self.inner.scale(loss).backward()
        self.inner.unscale_(optimizer)
        nn.utils.clip_grad_norm_(parameters, clip)
        self.inner.step(optimizer)
        self.inner.update()
"""
_HANDED_ON = """

def step_with(scaler, optimizer, closure=None):
    if closure is not None:
        return optimizer.step(closure)
    return scaler.step(optimizer)


"""

KINDS: dict[str, dict[str, str]] = {
    "scaler of one's own": {
        "three results": _STATIC
        + "def train(model, loader, optimizer):\n    scaler = Scaler()\n"
        + _LOOP
        + """\
        _, scaled, value = scaler.scale(loss)
        scaled.backward()
        scaler.unscale(optimizer)
        optimizer.step()
        scaler.update(True)
        print(value)
""",
        "or None": _STATIC
        + "class Trainer:"
        + """
    def __init__(self, model, optimizer, use_amp):
        self.model, self.optimizer = model, optimizer
        self.loss_scaler = Scaler() if use_amp else None

    def backward(self, loss):
        if self.loss_scaler:
            scale, loss, value = self.loss_scaler.scale(loss)
        else:
            scale, value = 1, loss.item()
        loss.backward()
        return scale, value

    def fit(self, loader):
        for x, y in loader:
            self.optimizer.zero_grad()
            loss = nn.functional.mse_loss(self.model(x), y)
            scale, value = self.backward(loss)
            if self.loss_scaler:
                self.loss_scaler.unscale(self.optimizer)
            self.optimizer.step()
            print(scale, value)
""",
        "given": _TOP
        + """

class Trainer:
    def __init__(self, model, optimizer, loss_scaler=None):
        self.model, self.optimizer, self.loss_scaler = model, optimizer, loss_scaler

    def backward(self, loss):
        if self.loss_scaler:
            scale, loss, value = self.loss_scaler.scale(loss)
        else:
            scale, value = 1, loss.item()
        loss.backward()
        return scale, value

    def fit(self, loader):
        for x, y in loader:
            self.optimizer.zero_grad()
            loss = nn.functional.mse_loss(self.model(x), y)
            print(*self.backward(loss))
            self.optimizer.step()
            if self.loss_scaler:
                self.loss_scaler.update(True)
""",
        "a call that does it all": _own(_NATIVE),
        "parameters of several": _own(
            _NATIVE.replace("clip=0.5", "clip=0.5, update=True").replace(
                "        self.inner.step(optimizer)\n        self.inner.update()\n",
                """\
        if update:
            self.inner.step(optimizer)
            self.inner.update()
""",
            )
        ),
        "subclass that unscales by another way": _own("""\
class Scaler(torch.amp.GradScaler):
    def __init__(self):
        super().__init__("cuda")

    def __call__(self, loss, optimizer, parameters):
        self.scale(loss).backward()
        self.unscale_(optimizer)
        nn.utils.clip_grad_norm_(parameters, 0.5)
        self.step(optimizer)

    def step(self, optimizer, *args, **kwargs):
        result = super().step(optimizer, *args, **kwargs)
        self.update()
        return result
"""),
        "does nothing": _STATIC.replace("64.0", "1.0").replace(
            "return self.factor, loss * self.factor, loss.item()", "return loss"
        )
        + "def train(model, loader, optimizer):\n    scaler = Scaler()\n"
        + _LOOP
        + """\
        scaled = scaler.scale(loss)
        scaled.backward()
        print(scaled.item())
        optimizer.step()
""",
        "its number is of the loss": _STATIC.replace(
            "return self.factor, loss * self.factor, loss.item()",
            "self.last = loss.item()\n        return loss * self.factor",
        )
        + "def train(model, loader, optimizer):\n    scaler = Scaler()\n"
        + _LOOP
        + """\
        scaler.scale(loss).backward()
        print(scaler.last)
        scaler.unscale(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
""",
        "inside, clipped too early": _own(
            _NATIVE.replace("        self.inner.unscale_(optimizer)\n", "").replace(
                "(parameters, clip)", "(parameters, clip)  # <- HS101"
            )
        ),
        "inside, printed while scaled": _own(
            _NATIVE.replace(
                "        self.inner.scale(loss).backward()\n",
                """\
        loss = self.inner.scale(loss)
        loss.backward()
        print(loss.item())  # <- HS210
""",
            )
        ),
    },
    "closure that may be None": {
        "handed on": _TOP
        + """

class Wrapper:
    def __init__(self, optimizer, scaler):
        self.optimizer, self.scaler = optimizer, scaler

    def step(self, closure=None):
        if self.scaler is not None:
            self.scaler.step(self.optimizer, closure)
            self.scaler.update()
        else:
            self.optimizer.step(closure)


def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    wrapper = Wrapper(optimizer, scaler)
"""
        + _LOOP
        + """\
        scaler.scale(loss).backward()
        wrapper.step()
""",
        "asked first": _TOP
        + _HANDED_ON
        + """\
def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
"""
        + _LOOP
        + """\
        scaler.scale(loss).backward()
        step_with(scaler, optimizer)
        scaler.update()
""",
        "None by its keyword, which torch refuses too": _TOP
        + """

def step_with(scaler, optimizer, closure):
    scaler.step(optimizer, closure=closure)  # <- HS116
    scaler.update()


def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
"""
        + _LOOP
        + """\
        scaler.scale(loss).backward()
        step_with(scaler, optimizer, None)
""",
        "among arguments": _TOP
        + """

def step_with(scaler, optimizer, *args, **kwargs):
    scaler.step(optimizer, *args, **kwargs)
    scaler.update()


def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
"""
        + _LOOP
        + """\
        scaler.scale(loss).backward()
        step_with(scaler, optimizer)
""",
        "of a method that nobody calls": _TOP
        + """

class Wrapper(torch.optim.Optimizer):
    def __init__(self, optimizer, scaler):
        self.optimizer, self.scaler = optimizer, scaler

    def step(self, closure=None):
        self.scaler.step(self.optimizer, closure)
"""
        + """

def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
"""
        + _LOOP
        + """\
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
""",
        "by a setting": _TOP
        + """

def train(model, loader, optimizer, cfg, closure=None):
    scaler = torch.amp.GradScaler("cuda")
"""
        + _LOOP
        + """\
        scaler.scale(loss).backward()
        extra = () if closure is None else (closure,)
        scaler.step(optimizer, *extra)
        scaler.update()
""",
        "a closure that is there": _TOP
        + """

def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:

        def closure():
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            scaler.scale(loss).backward()
            return loss

        scaler.step(optimizer, closure)  # <- HS116
        scaler.update()
""",
        "a closure handed on": _TOP
        + """

def step_with(scaler, optimizer, closure=None):
    scaler.step(optimizer, closure)  # <- HS116
    scaler.update()


def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:

        def closure():
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            scaler.scale(loss).backward()
            return loss

        step_with(scaler, optimizer, closure)
""",
    },
}

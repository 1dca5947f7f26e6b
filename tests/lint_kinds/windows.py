"""Missed kinds: what is cleared, clipped, retried or updated at the wrong place of a window."""

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
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
"""
_CLEAR = "        optimizer.zero_grad()\n"
_BACKWARD = "        scaler.scale(loss).backward()\n"
_STEP = "        scaler.step(optimizer)\n        scaler.update()\n"
_CLIP = "        nn.utils.clip_grad_norm_(model.parameters(), 0.5)  # <- HS131\n"
_LOOP = "    for x, y in loader:\n"
_CLASS = (
    _TOP
    + """

class Trainer:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer
        self.scaler = torch.amp.GradScaler("cuda")

    def loss_of(self, x, y):
        with torch.autocast("cuda", dtype=torch.float16):
            return nn.functional.mse_loss(self.model(x), y)

"""
)

# Micro-batches.
_MICRO = (
    _BEGIN.replace("    scaler =", "    num = 4\n    scaler =")
    + """\
    optimizer.zero_grad()
    for i, (x, y) in enumerate(loader):
FIRST        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y) / num
        scaler.scale(loss).backward()
        if (i + 1) % num == 0:
            scaler.step(optimizer)
            scaler.update()
LAST"""
)
_EACH = "        optimizer.zero_grad()  # <- HS132\n"


def _micro(first: str = "", last: str = "") -> str:
    return _MICRO.replace("FIRST", first).replace("LAST", last)


# Windows that are tried again.
_RETRY = (
    _BEGIN
    + """\
    for x, y in loader:
        num = 1
        while True:
            try:
                optimizer.zero_grad()
                for a, b in zip(x.chunk(num), y.chunk(num)):
                    with torch.autocast("cuda", dtype=torch.float16):
                        loss = nn.functional.mse_loss(model(a), b) / num
                    scaler.scale(loss).backward()
                scaler.unscale_(optimizer)  # <- HS102
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                scaler.step(optimizer)
                scaler.update()
                break
            except torch.cuda.OutOfMemoryError:
                num *= 2
"""
)
_RETRY_IN_A_CALL = (
    _TOP
    + """

def attempt(model, x, y, optimizer, scaler):
    optimizer.zero_grad()
    with torch.autocast("cuda", dtype=torch.float16):
        loss = nn.functional.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)  # <- HS102
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    scaler.step(optimizer)
    scaler.update()


def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        for _ in range(3):
            try:
                attempt(model, x, y, optimizer, scaler)
                break
            except torch.cuda.OutOfMemoryError:
                torch.cuda.empty_cache()
"""
)
_RETRY_ONCE = (
    _BEGIN
    + """\
    for x, y in loader:
        try:
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = nn.functional.mse_loss(model(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
        except RuntimeError as error:
            if "out of memory" not in str(error):  # as OutOfMemoryError says it
                raise
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = nn.functional.mse_loss(model(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)  # <- HS102
            scaler.step(optimizer)
            scaler.update()
"""
)
_NEXT = (
    _BEGIN
    + """\
    for x, y in loader:
        optimizer.zero_grad()
        try:
            with torch.autocast("cuda", dtype=torch.float16):
                loss = nn.functional.mse_loss(model(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        except torch.cuda.OutOfMemoryError:
            continue  # <- HS112
        scaler.step(optimizer)
        scaler.update()
"""
)

# A generator whose loss runs through the discriminator.
_GAN = (
    _TOP
    + """

def train(loader):
    torch.manual_seed(0)
    net_g, net_d = nn.Linear(4, 4), nn.Linear(4, 1)
    opt_g = torch.optim.SGD(net_g.parameters(), lr=0.1)
    opt_d = torch.optim.SGD(net_d.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x, _ in loader:
GENERATOR
        opt_d.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            real, fake = net_d(x), net_d(out.detach())
            loss_d = nn.functional.softplus(-real).mean() + nn.functional.softplus(fake).mean()
        scaler.scale(loss_d).backward()
        scaler.step(opt_d)
        scaler.update()
"""
)
_FROZEN = """\
        net_d.requires_grad_(False)
        opt_g.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            out = net_g(x)
            loss_g = nn.functional.softplus(-net_d(out)).mean()
        scaler.scale(loss_g).backward()
        scaler.step(opt_g)
        scaler.update()  # <- HS106
        net_d.requires_grad_(True)"""
_OPEN = _FROZEN.replace("        net_d.requires_grad_(False)\n", "").replace(
    "\n        net_d.requires_grad_(True)", ""
)
_LISTS = _FROZEN.replace(
    "net_d.requires_grad_(False)",
    "for p in net_d.parameters():\n            p.requires_grad = False",
).replace(
    "net_d.requires_grad_(True)", "for p in net_d.parameters():\n            p.requires_grad = True"
)

KINDS: dict[str, dict[str, str]] = {
    "clip before backward": {
        "behind the forward": _BEGIN + _LOOP + _CLEAR + _FORWARD + _CLIP + _BACKWARD + _STEP,
        "ahead of the forward": _BEGIN + _LOOP + _CLEAR + _CLIP + _FORWARD + _BACKWARD + _STEP,
        "cleared at the end": _BEGIN + _LOOP + _FORWARD + _CLIP + _BACKWARD + _STEP + _CLEAR,
        "by value": _BEGIN
        + _LOOP
        + _CLEAR
        + _FORWARD
        + _CLIP.replace("_norm_", "_value_")
        + _BACKWARD
        + _STEP,
        "set to None": _BEGIN
        + _LOOP
        + _CLEAR.replace("()", "(set_to_none=True)")
        + _FORWARD
        + _CLIP
        + _BACKWARD
        + _STEP,
        "in a trainer": _CLASS
        + """\
    def fit(self, loader):
        for x, y in loader:
            self.optimizer.zero_grad()
            loss = self.loss_of(x, y)
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)  # <- HS131
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
""",
        "without a scaler": _TOP
        + """

def train(model, loader, optimizer):
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = nn.functional.mse_loss(model(x), y)
"""
        + _CLIP
        + """\
        loss.backward()
        optimizer.step()
""",
        "on gradients of the last step": _BEGIN
        + _LOOP
        + _FORWARD
        + _CLIP.replace("131", "103")
        + _CLEAR
        + _BACKWARD
        + _STEP,
        "behind backward and unscale_": _BEGIN
        + _LOOP
        + _CLEAR
        + _FORWARD
        + _BACKWARD
        + "        scaler.unscale_(optimizer)\n"
        + _CLIP.replace("  # <- HS131", "")
        + _STEP,
        "before the backward of another model": _BEGIN.replace(
            "    scaler", "    other = nn.Linear(1, 1)\n    scaler"
        )
        + _LOOP
        + _CLEAR
        + _FORWARD
        + _BACKWARD
        + """\
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        other(torch.ones(1, 1)).sum().backward()
"""
        + _STEP,
    },
    "cleared in every micro-batch": {
        "at the top": _micro(_EACH),
        "the model's": _micro(_EACH.replace("optimizer.", "model.")),
        "by hand": _micro("""\
        for p in model.parameters():
            p.grad = None  # <- HS132
"""),
        "at the end": _micro("", _EACH),
        "continue": _BEGIN
        + """\
    for i, (x, y) in enumerate(loader):
        optimizer.zero_grad()  # <- HS132
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y) / 2
        scaler.scale(loss).backward()
        if i % 2 != 1:
            continue
        scaler.step(optimizer)
        scaler.update()
""",
        "loop over the micro-batches": _BEGIN
        + """\
    for x, y in loader:
        for a, b in zip(x.chunk(2), y.chunk(2)):
            optimizer.zero_grad()  # <- HS132
            with torch.autocast("cuda", dtype=torch.float16):
                loss = nn.functional.mse_loss(model(a), b) / 2
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
""",
        "in a trainer": _CLASS
        + """\
    def micro_batch(self, x, y):
        self.optimizer.zero_grad()  # <- HS132
        self.scaler.scale(self.loss_of(x, y) / 2).backward()

    def fit(self, loader):
        for i, (x, y) in enumerate(loader):
            self.micro_batch(x, y)
            if i % 2 == 1:
                self.scaler.step(self.optimizer)
                self.scaler.update()
""",
        "behind the step": _micro("", "            optimizer.zero_grad()\n"),
        "at the first of a window": _micro(
            "        if i % num == 0:\n            optimizer.zero_grad()\n"
        ),
        "windows of one": _micro(_EACH.replace("  # <- HS132", "")).replace("num = 4", "num = 1"),
        "ahead of the loop over micro-batches": _BEGIN
        + """\
    for x, y in loader:
        optimizer.zero_grad()
        for a, b in zip(x.chunk(2), y.chunk(2)):
            with torch.autocast("cuda", dtype=torch.float16):
                loss = nn.functional.mse_loss(model(a), b) / 2
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
""",
    },
    "first batch never cleared": {
        "by attributes": _CLASS
        + """\
    def step_batch(self, x, y):
        if self.accum == 1 and self.batch_index == 0:
            self.model.zero_grad()
        self.scaler.scale(self.loss_of(x, y) / self.accum).backward()  # <- HS127
        if (self.batch_index + 1) % self.accum == 0:
            self.scaler.step(self.optimizer)
            self.scaler.update()
            if self.batch_index > 0:
                self.model.zero_grad()

    def fit(self, loader, accum=1):
        self.accum = accum
        for i, (x, y) in enumerate(loader):
            self.batch_index = i
            self.step_batch(x, y)
""",
        "by the number of the batch": _BEGIN
        + """\
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()  # <- HS127
        scaler.step(optimizer)
        scaler.update()
        if i > 0:
            optimizer.zero_grad()
""",
        "by its truth": _BEGIN
        + """\
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()  # <- HS127
        scaler.step(optimizer)
        scaler.update()
        if i:
            optimizer.zero_grad()
""",
        "continue in the first": _BEGIN
        + """\
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()  # <- HS127
        scaler.step(optimizer)
        scaler.update()
        if i == 0:
            print("the first step is done")
            continue
        optimizer.zero_grad()
""",
        "by a flag": _CLASS
        + """\
    def fit(self, loader):
        self.is_first = True
        for x, y in loader:
            self.scaler.scale(self.loss_of(x, y)).backward()  # <- HS127
            self.scaler.step(self.optimizer)
            self.scaler.update()
            if not self.is_first:
                self.optimizer.zero_grad()
            self.is_first = False
""",
        "cleared before but in the first": _BEGIN
        + """\
    for i, (x, y) in enumerate(loader):
        if i > 0:
            optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
""",
        "cleared by attributes in each": _CLASS
        + """\
    def step_batch(self, x, y):
        if self.batch_index == 0:
            self.model.zero_grad()
        self.scaler.scale(self.loss_of(x, y)).backward()
        if self.batch_index >= 0:
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.model.zero_grad()

    def fit(self, loader):
        for i, (x, y) in enumerate(loader):
            self.batch_index = i
            self.step_batch(x, y)
""",
    },
    "window that is tried again": {
        "smaller parts": _RETRY,
        "in a call": _RETRY_IN_A_CALL,
        "once": _RETRY_ONCE,
        "next batch": _NEXT,
        "in a trainer": _CLASS
        + """\
    def one_step(self, x, y):
        self.optimizer.zero_grad()
        self.scaler.scale(self.loss_of(x, y)).backward()
        self.scaler.unscale_(self.optimizer)  # <- HS102
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def fit(self, loader):
        for x, y in loader:
            done = False
            while not done:
                try:
                    self.one_step(x, y)
                    done = True
                except torch.cuda.OutOfMemoryError:
                    self.optimizer.zero_grad(set_to_none=True)
""",
        "closed where it was unscaled": _RETRY.replace("  # <- HS102", "")
        .replace("            try:\n", "            unscaled = False\n            try:\n")
        .replace(
            "                nn.utils", "                unscaled = True\n                nn.utils"
        )
        + "                if unscaled:\n                    scaler.update()\n",
        "the rest in else": _BEGIN
        + """\
    for x, y in loader:
        for _ in range(3):
            optimizer.zero_grad()
            try:
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = nn.functional.mse_loss(model(x), y)
                scaler.scale(loss).backward()
            except torch.cuda.OutOfMemoryError:
                torch.cuda.empty_cache()
            else:
                scaler.unscale_(optimizer)
                scaler.step(optimizer)
                scaler.update()
                break
""",
        "ahead of unscale_ alone": _BEGIN
        + """\
    for x, y in loader:
        while True:
            try:
                optimizer.zero_grad()
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = nn.functional.mse_loss(model(x), y)
                scaler.scale(loss).backward()
                break
            except torch.cuda.OutOfMemoryError:
                torch.cuda.empty_cache()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
""",
        "not tried again": _RETRY.replace("  # <- HS102", "")
        .replace("                num *= 2\n", "                raise\n")
        .replace("torch.cuda.OutOfMemoryError", "MemoryError"),
    },
    "update per optimizer through a discriminator": {
        "frozen": _GAN.replace("GENERATOR", _FROZEN),
        "by a loop": _GAN.replace("GENERATOR", _LISTS),
        "not frozen": _GAN.replace("GENERATOR", _OPEN),
        "two losses": _GAN.replace("GENERATOR", _FROZEN).replace(
            "softplus(-net_d(out)).mean()",
            "l1_loss(out, x) + nn.functional.softplus(-net_d(out)).mean()",
        ),
        "one update behind both": _GAN.replace(
            "GENERATOR", _FROZEN.replace("        scaler.update()  # <- HS106\n", "")
        ),
        "a scaler each": _GAN.replace(
            "GENERATOR", _FROZEN.replace("scaler.", "scaler_g.").replace("  # <- HS106", "")
        ).replace("    scaler =", '    scaler_g = torch.amp.GradScaler("cuda")\n    scaler ='),
    },
}

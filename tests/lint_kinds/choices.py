"""False kind: one value compared with several constants, by ``==``, ``in``, ``match`` and Enum."""

from __future__ import annotations

_TOP = "import torch\nfrom torch import nn\n"
_FUNCTION = (
    _TOP
    + """

def train(model, loader, optimizer, scaler, mode):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
"""
)
_MADE = _FUNCTION.replace("scaler, mode", "mode").replace(
    "    for x", '    scaler = torch.amp.GradScaler("cuda")\n    for x'
)

KINDS: dict[str, dict[str, str]] = {
    "choice of a mode": {
        "elif": _FUNCTION
        + """\
        if mode == "bf16":
            loss.backward()
        elif mode == "fp16":
            scaler.scale(loss).backward()
        else:
            loss.backward()
        if mode == "fp16":
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
""",
        "the other order": _FUNCTION
        + """\
        if mode == "fp16":
            scaler.scale(loss).backward()
        if mode == "fp32":
            loss.backward()
            optimizer.step()
        if mode == "fp16":
            scaler.step(optimizer)
            scaler.update()
""",
        "constant first": _FUNCTION
        + """\
        if "fp16" == mode:
            scaler.scale(loss).backward()
        elif mode == "fp32":
            loss.backward()
        else:
            raise ValueError(mode)
        if "fp32" == mode:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
""",
        "in and equal": _FUNCTION
        + """\
        if mode in ("bf16", "fp32"):
            loss.backward()
            optimizer.step()
            continue
        if mode == "fp16":
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
""",
        "not in": _FUNCTION
        + """\
        if mode not in {"bf16", "fp32"}:
            scaler.scale(loss).backward()
        if mode == "bf16" or mode == "fp32":
            loss.backward()
        if mode in {"bf16", "fp32"}:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
""",
        "match twice": _FUNCTION
        + """\
        match mode:
            case "fp16":
                scaler.scale(loss).backward()
            case "bf16" | "fp32":
                loss.backward()
            case _:
                raise ValueError(mode)
        match mode:
            case "fp16":
                scaler.step(optimizer)
                scaler.update()
            case _:
                optimizer.step()
""",
        "match, then equal": _FUNCTION
        + """\
        match mode:
            case "fp16":
                scaler.scale(loss).backward()
            case _:
                loss.backward()
        if mode == "fp16":
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
""",
        "flag made of it": _FUNCTION.replace("    for x", '    half = mode == "fp16"\n    for x')
        + """\
        if half:
            scaler.scale(loss).backward()
        else:
            loss.backward()
        if mode == "fp16":
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
""",
        "asserted above": _FUNCTION.replace(
            "    for x", '    assert mode in ("fp16", "fp32")\n    for x'
        )
        + """\
        if mode == "fp16":
            scaler.scale(loss).backward()
        if mode == "fp32":
            loss.backward()
        if mode == "fp32":
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
""",
        "returned early": _TOP
        + """

def train(model, loader, optimizer, scaler, mode):
    for x, y in loader:
        one_step(model, x, y, optimizer, scaler, mode)


def one_step(model, x, y, optimizer, scaler, mode):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    if mode == "fp32":
        loss.backward()
        optimizer.step()
        return
    scaler.scale(loss).backward()
    if mode == "fp32":
        return
    scaler.step(optimizer)
    scaler.update()
""",
        "in a trainer": _TOP
        + """

class Trainer:
    def __init__(self, model, optimizer, scaler, mode):
        self.model, self.optimizer = model, optimizer
        self.scaler, self.mode = scaler, mode

    def fit(self, loader):
        for x, y in loader:
            self.optimizer.zero_grad()
            loss = nn.functional.mse_loss(self.model(x), y)
            if self.mode == "bf16":
                loss.backward()
            elif self.mode == "fp16":
                self.scaler.scale(loss).backward()
            else:
                loss.backward()
            if self.mode != "fp16":
                self.optimizer.step()
            else:
                self.scaler.step(self.optimizer)
                self.scaler.update()
""",
        "two constants that both scale": _MADE
        + """\
        if mode == "fp16" or mode == "bf16":
            scaler.scale(loss).backward()
        else:
            loss.backward()  # <- HS108
        scaler.step(optimizer)
        scaler.update()
""",
        "another constant": _MADE
        + """\
        if mode == "fp16":
            scaler.scale(loss).backward()
        else:
            loss.backward()  # <- HS108
        if mode == "fp32":
            scaler.step(optimizer)
            scaler.update()
        elif mode == "fp16":
            optimizer.step()  # <- HS107
""",
        "match, wrong way round": _MADE
        + """\
        match mode:
            case "fp16":
                scaler.scale(loss).backward()
            case _:
                loss.backward()
        match mode:
            case "fp16":
                optimizer.step()  # <- HS107
            case _:
                optimizer.step()
""",
    },
    "choice by an Enum": {
        name: _TOP.replace("import torch\n", "import enum\n\nimport torch\n", 1) + text
        for name, text in {
            "is": """

class Mode(enum.Enum):
    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"


def train(model, loader, optimizer, scaler, mode):
    mode = Mode(mode)
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        if mode is Mode.FP16:
            scaler.scale(loss).backward()
        elif mode is Mode.BF16:
            loss.backward()
        else:
            loss.backward()
        if mode is Mode.FP16:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
""",
            "equal": """

class Mode(str, enum.Enum):
    FP32 = "fp32"
    FP16 = "fp16"


def train(model, loader, optimizer, scaler, mode):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        if mode == Mode.FP32:
            loss.backward()
        if mode == Mode.FP16:
            scaler.scale(loss).backward()
        if mode == Mode.FP16:
            scaler.step(optimizer)
            scaler.update()
        if mode == Mode.FP32:
            optimizer.step()
""",
            "match": """

class Mode(enum.Enum):
    FP32 = "fp32"
    FP16 = "fp16"


def train(model, loader, optimizer, scaler, mode):
    chosen = Mode(mode)
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        match chosen:
            case Mode.FP16:
                scaler.scale(loss).backward()
            case Mode.FP32:
                loss.backward()
        match chosen:
            case Mode.FP16:
                scaler.step(optimizer)
                scaler.update()
            case Mode.FP32:
                optimizer.step()
""",
            "value": """

class Mode(enum.Enum):
    FP32 = "fp32"
    FP16 = "fp16"


class Trainer:
    def __init__(self, model, optimizer, scaler, mode):
        self.model, self.optimizer, self.scaler = model, optimizer, scaler
        self.mode = Mode(mode)

    def fit(self, loader):
        for x, y in loader:
            self.optimizer.zero_grad()
            loss = nn.functional.mse_loss(self.model(x), y)
            if self.mode.value == "fp16":
                self.scaler.scale(loss).backward()
            else:
                loss.backward()
            if self.mode.value == "fp16":
                self.scaler.step(self.optimizer)
                self.scaler.update()
            else:
                self.optimizer.step()
""",
            "in a set": """

class Mode(enum.Enum):
    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"


PLAIN = {Mode.FP32, Mode.BF16}


def train(model, loader, optimizer, scaler, mode):
    mode = Mode(mode)
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        (loss if mode in PLAIN else scaler.scale(loss)).backward()
        if mode in PLAIN:
            optimizer.step()
            continue
        scaler.step(optimizer)
        scaler.update()
""",
            "flag": """

class Part(enum.Flag):
    NONE = 0
    AMP = 1


def train(model, loader, optimizer, scaler, mode):
    parts = Part.AMP if mode == "fp16" else Part.NONE
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        if Part.AMP in parts:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        if Part.AMP not in parts:
            loss.backward()
            optimizer.step()
""",
            "two members": """

class Mode(enum.Enum):
    FP32 = "fp32"
    FP16 = "fp16"


def train(model, loader, optimizer, mode):
    scaler = torch.amp.GradScaler("cuda")
    mode = Mode(mode)
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        if mode is Mode.FP16:
            scaler.scale(loss).backward()
        else:
            loss.backward()  # <- HS108
        if mode is Mode.FP32:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()  # <- HS107
""",
            "match the other way round": """

class Mode(enum.Enum):
    FP32 = "fp32"
    FP16 = "fp16"


def train(model, loader, optimizer, mode):
    scaler = torch.amp.GradScaler("cuda")
    chosen = Mode(mode)
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        match chosen:
            case Mode.FP16:
                scaler.scale(loss).backward()
            case _:
                loss.backward()  # <- HS108
        match chosen:
            case Mode.FP16:
                optimizer.step()  # <- HS107
            case _:
                scaler.step(optimizer)
                scaler.update()
""",
        }.items()
    },
    "isinstance of what is given": {
        name: _TOP + text
        for name, text in {
            "scaler's class": """

def train(model, loader, optimizer, scaler_or_none):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        if isinstance(scaler_or_none, torch.amp.GradScaler):
            scaler_or_none.scale(loss).backward()
        else:
            loss.backward()
        if isinstance(scaler_or_none, torch.amp.GradScaler):
            scaler_or_none.step(optimizer)
            scaler_or_none.update()
        else:
            optimizer.step()
""",
            "type of None": """

def train(model, loader, optimizer, scaler_or_none):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        if scaler_or_none is None:
            loss.backward()
            optimizer.step()
        if scaler_or_none is not None:
            scaler_or_none.scale(loss).backward()
            scaler_or_none.step(optimizer)
            scaler_or_none.update()
""",
            "hasattr of the scaler": """

def train(model, loader, optimizer, scaler_or_none):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        if hasattr(scaler_or_none, "scale"):
            loss = scaler_or_none.scale(loss)
        loss.backward()
        if hasattr(scaler_or_none, "scale"):
            scaler_or_none.step(optimizer)
            scaler_or_none.update()
        else:
            optimizer.step()
""",
            "truth of it": """

def train(model, loader, optimizer, scaler_or_none):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        (scaler_or_none.scale(loss) if scaler_or_none else loss).backward()
        if not scaler_or_none:
            optimizer.step()
            continue
        scaler_or_none.step(optimizer)
        scaler_or_none.update()
""",
            "attribute": """

class Trainer:
    def __init__(self, model, optimizer, scaler_or_none):
        self.model, self.optimizer, self.scaler = model, optimizer, scaler_or_none

    def fit(self, loader):
        for x, y in loader:
            self.optimizer.zero_grad()
            loss = nn.functional.mse_loss(self.model(x), y)
            if isinstance(self.scaler, torch.amp.GradScaler):
                self.scaler.scale(loss).backward()
            else:
                loss.backward()
            self.move()

    def move(self):
        if isinstance(self.scaler, torch.amp.GradScaler):
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            self.optimizer.step()
""",
            "scaled and stepped aside": """

def train(model, loader, optimizer, scaler):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        if isinstance(scaler, torch.amp.GradScaler):
            scaler.scale(loss).backward()
            optimizer.step()  # <- HS107
        else:
            loss.backward()
            optimizer.step()
""",
            "clipped too early": """

def train(model, loader, optimizer, scaler):
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        if isinstance(scaler, torch.amp.GradScaler):
            scaler.scale(loss).backward()
        else:
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)  # <- HS101
        if isinstance(scaler, torch.amp.GradScaler):
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
""",
        }.items()
    },
}

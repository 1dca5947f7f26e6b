"""Missed kinds: weights that change inside autocast (HS115), islands without a cast (HS214)."""

from __future__ import annotations

_TOP = "import copy\n\nimport torch\nfrom torch import nn\n"
_BEGIN = (
    _TOP
    + """

def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
"""
)
_STEP = """\
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
_WITH = '        with torch.autocast("cuda", dtype=torch.float16):  # <- HS115\n'


def _inside(change: str, made: str = "", uses: str = "model") -> str:
    """Two forwards inside autocast, and `change` between them."""
    begin = _BEGIN + "".join(f"    {line}\n" for line in made.splitlines())
    body = "".join(f"            {line}\n" for line in change.splitlines())
    return (
        begin
        + f"""\
    for x, y in loader:
        optimizer.zero_grad()
{_WITH}            out = {uses}(x)
{body}            again = {uses}(x)
            loss = nn.functional.mse_loss(model(x), y) + (out.detach() - again.detach()).mean()
            loss = loss + nn.functional.mse_loss(model(x), again.detach())
"""
        + _STEP
    )


_NOISE = """\
with torch.no_grad():
    for p in model.parameters():
        p.add_(0.05)"""


def _island(body: str, forward: str = "model(x)", call: str = "Block()", other: str = "") -> str:
    """A module with an FP32 island; its caller has the autocast."""
    lines = "".join(f"            {line}\n" for line in body.splitlines())
    return (
        _TOP.replace("import copy\n\n", "")
        + f"""

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x):
        h = self.inner(x)
        with torch.autocast("cuda", enabled=False):
{lines}        return self.outer(h)


{other}def train(loader):
    torch.manual_seed(0)
    model = {call}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss({forward}, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
    )


_214 = "  # <- HS214"

KINDS: dict[str, dict[str, str]] = {
    "weights changed in autocast": {
        "added in place": _inside(_NOISE),
        "copied": _inside(
            "with torch.no_grad():\n    model.body.weight.copy_(model.body.weight * 0.9)"
        ),
        "data": _inside("model.body.weight.data.mul_(0.9)"),
        "data of all": _inside("for p in model.parameters():\n    p.data = p.data * 0.9"),
        "loaded": _inside(
            "model.load_state_dict(kept)",
            "kept = {k: v + 0.3 for k, v in model.state_dict().items()}",
        ),
        "init": _inside("nn.init.zeros_(model.head.weight)"),
        "foreach": _inside(
            "with torch.no_grad():\n    torch._foreach_mul_(list(model.parameters()), 0.9)"
        ),
        "helper": _inside("disturb(model)").replace(
            "\n\ndef train",
            """

@torch.no_grad()
def disturb(model):
    for p in model.parameters():
        p.add_(0.05)


def train""",
            1,
        ),
        "average that is used": _inside(
            "ema.update_parameters(model)  # <- HS109",
            "ema = torch.optim.swa_utils.AveragedModel(model)",
            "ema",
        ),
        "cache switched off": _inside(_NOISE).replace(
            "dtype=torch.float16):  # <- HS115", "dtype=torch.float16, cache_enabled=False):"
        ),
        "cache cleared": _inside(_NOISE + "\ntorch.clear_autocast_cache()").replace(
            "  # <- HS115", ""
        ),
        "before the first forward": _BEGIN
        + """\
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            with torch.no_grad():
                model.body.weight.mul_(0.99)
            loss = nn.functional.mse_loss(model(x), y)
"""
        + _STEP,
        "a block each": _BEGIN
        + """\
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            target = model(x).detach()
        with torch.no_grad():
            model.body.weight.mul_(0.99)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x), y + 0.1 * target)
"""
        + _STEP,
        "a frozen teacher": _BEGIN
        + """\
    teacher = copy.deepcopy(model).requires_grad_(False)
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            target = teacher(x)
            for a, b in zip(teacher.parameters(), model.parameters()):
                a.copy_(b)
            loss = nn.functional.mse_loss(model(x), y + 0.1 * (target - teacher(x)))
"""
        + _STEP,
    },
    "island whose caller has the autocast": {
        "operator": _island(f"h = h * h{_214}"),
        "product": _island(f"h = h @ h.mT @ h{_214}"),
        "method": _island(f"h = h.square(){_214}"),
        "methods in a row": _island(
            f"h = h.pow(2).mean(-1, keepdim=True).sqrt().expand(-1, 4){_214}"
        ),
        "function of torch": _island(f"h = torch.matmul(h, h.transpose(0, 1)) @ h{_214}"),
        "einsum": _island(f'h = torch.einsum("ij,ij->ij", h, h){_214}'),
        "caller's helper": _island(
            f"h = h.exp() - 1{_214}",
            "forward(model, x)",
            "Block()",
            "def forward(model, x):\n    return model(x)\n\n\n",
        ),
        "module in a module": _island(
            f"h = h.square(){_214}", "model(x)", "nn.Sequential(nn.Linear(4, 4), Block())"
        ),
        "cast by float": _island("h = h.float()\nh = h * h"),
        "cast by to": _island("h = h.to(torch.float32).square()"),
        "made inside": _island("scale = torch.ones(4)\nh = h.float() * scale"),
        "input of the model, which is FP32": _island("h = h.float() * 1.0").replace(
            "            h = h.float() * 1.0\n", "            h = h.float() + x.square()\n"
        ),
        "no autocast around": _island("h = h * h")
        .replace(
            '        with torch.autocast("cuda", dtype=torch.float16):\n            loss',
            "        loss",
        )
        .replace('scaler = torch.amp.GradScaler("cuda")', 'scaler = torch.amp.GradScaler("cuda")'),
    },
}

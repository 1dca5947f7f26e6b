"""Correct programs with two optimizers over parts of one model, each with a clip of its own."""

HEAD = "import torch\nfrom torch import nn\n"
LOOP = """\
scaler = torch.amp.GradScaler("cuda")
for x in torch.randn(12, 5, 3, 8).cuda():
    first.zero_grad()
    second.zero_grad()
    with torch.autocast("cuda"):
        loss = model(x).square().mean()
    scaler.scale(loss).backward()
UNSCALE
CLIP
    scaler.step(first)
    scaler.step(second)
    scaler.update()
"""
NET = "model = nn.Transformer(8, 2).cuda()\n"
STACK = "model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).cuda()\n"
TWO = "first, second = torch.optim.SGD(LEFT), torch.optim.AdamW(RIGHT)\n"
OWN = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.ReLU())

    def forward(self, x):
        return self.head(self.body(x))


model = Net().cuda()
"""
GROUPS = STACK + TWO.replace("LEFT", "model[0].parameters()").replace(
    "RIGHT", "model[1].parameters()"
)
# Name to the text before the loop, and the parameters of each of the two optimizers.
PARTS = {
    "lists picked by shape": (
        NET
        + "wide = [p for p in model.parameters() if p.ndim == 2]\n"
        + "rest = [p for p in model.parameters() if p.ndim != 2]\n"
        + TWO,
        "wide",
        "rest",
    ),
    "picked again for the clip": (
        NET + TWO,
        '[p for n, p in model.named_parameters() if "bias" in n]',
        '[p for n, p in model.named_parameters() if "bias" not in n]',
    ),
    "filtered": (
        NET + TWO,
        "filter(lambda p: p.ndim > 1, model.parameters())",
        "filter(lambda p: p.ndim <= 1, model.parameters())",
    ),
    "indices": (STACK + TWO, "model[0].parameters()", "model[1].parameters()"),
    "slices": (STACK + TWO, "model[:1].parameters()", "model[1:].parameters()"),
    "names": (NET + TWO, "model.encoder.parameters()", "model.decoder.parameters()"),
    "names in a wrapper": (
        "model = nn.parallel.DistributedDataParallel(nn.Transformer(8, 2).cuda())\n" + TWO,
        "model.module.encoder.parameters()",
        "model.module.decoder.parameters()",
    ),
    "keys": (
        'model = nn.ModuleDict({"a": nn.Linear(8, 8), "b": nn.Linear(8, 8)}).cuda()\n' + TWO,
        'model["a"].parameters()',
        'model["b"].parameters()',
    ),
    "own class": (OWN + TWO, "model.body.parameters()", "model.head[0].parameters()"),
    "own methods": (
        "from models import build\nmodel = build()\n" + TWO,
        "model.matrix_parameters()",
        "model.other_parameters()",
    ),
    "groups": (GROUPS, 'first.param_groups[0]["params"]', 'second.param_groups[0]["params"]'),
    "groups, each": (
        GROUPS,
        '[p for g in first.param_groups for p in g["params"]]',
        '[p for g in second.param_groups for p in g["params"] if p.grad is not None]',
    ),
}


def program(name: str, unscaled: str, clipped: str) -> str:
    """A training; `unscaled` and `clipped` hold "l" and "r", and "b" for a clip of both."""
    before, left, right = PARTS[name]
    before = before.replace("LEFT", left).replace("RIGHT", right)
    of = {"l": left, "r": right, "b": "model.parameters()"}
    unscales = [f"    scaler.unscale_({'first' if c == 'l' else 'second'})" for c in unscaled]
    clips = [f"    nn.utils.clip_grad_norm_({of[c]}, 1.0)" for c in clipped]
    loop = LOOP.replace("UNSCALE\n", "".join(line + "\n" for line in unscales))
    return HEAD + before + loop.replace("CLIP\n", "".join(line + "\n" for line in clips))


LISTS = """\
models = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)]).cuda()
optimizers = [torch.optim.Adam(m.parameters()) for m in models]
scaler = torch.amp.GradScaler("cuda")
for x in torch.randn(12, 5, 8).cuda():
    for optimizer in optimizers:
        optimizer.zero_grad()
    with torch.autocast("cuda"):
        loss = sum(m(x).square().mean() for m in models)
    scaler.scale(loss).backward()
    for m, optimizer in zip(models, optimizers):
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        scaler.step(optimizer)
    scaler.update()
"""
FROZEN = """\
body, head = torch.optim.AdamW(model.body.parameters()), torch.optim.AdamW(model.head.parameters())
scaler = torch.amp.GradScaler("cuda")
model.body.requires_grad_(False)
for epoch in range(6):
    if epoch == 3:
        model.body.requires_grad_(True)
    for x in torch.randn(12, 5, 8).cuda():
        body.zero_grad()
        head.zero_grad()
        with torch.autocast("cuda"):
            loss = model(x).square().mean()
        scaler.scale(loss).backward()
        active = [head] if epoch < 3 else [body, head]
        for optimizer in active:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_((p for p in model.parameters() if p.requires_grad), 1.0)
        for optimizer in active:
            scaler.step(optimizer)
        scaler.update()
"""
TURNS = """\
first = torch.optim.SGD(model[0].parameters(), lr=0.1)
second = torch.optim.SGD(model[1].parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
for i, x in enumerate(torch.randn(12, 5, 8).cuda()):
    active = [first, second] if i % 2 else [first]
    first.zero_grad()
    second.zero_grad()
    with torch.autocast("cuda"):
        loss = model(x).square().mean()
    scaler.scale(loss).backward()
    for optimizer in active:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_([p for g in optimizer.param_groups for p in g["params"]], 1.0)
    for optimizer in active:
        scaler.step(optimizer)
    scaler.update()
"""
MORE = {
    "two lists side by side": HEAD + LISTS,
    "body frozen at first": HEAD + OWN + FROZEN,
    "every second step": HEAD + STACK + TURNS,
}

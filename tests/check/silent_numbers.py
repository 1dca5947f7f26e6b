"""Correct programs that look like a mistake of numbers (HS206 to HS209, HS214)."""

from pattern_head import FORWARD, HEAD, SCALER, STEP

_AUTOCAST = '\nfor x, y in loader:\n    with torch.autocast("cuda"):\n'

LOGARITHMS = {
    "log_softmax": SCALER
    + _AUTOCAST
    + """\
        loss = F.nll_loss(F.log_softmax(model(x), dim=-1), y)
"""
    + STEP,
    "an eps under the logarithm": SCALER
    + _AUTOCAST
    + """\
        p = F.softmax(model(x), dim=-1)
        loss = -(p * torch.log(p + 1e-6)).sum(-1).mean()
"""
    + STEP,
    "probabilities clamped": SCALER
    + _AUTOCAST
    + """\
        p = F.softmax(model(x), dim=-1).clamp(min=1e-6)
        loss = -p.log().mean()
"""
    + STEP,
    "softmax with the maximum subtracted": SCALER
    + _AUTOCAST
    + """\
        logits = model(x)
        logits = logits - logits.max(dim=-1, keepdim=True).values
        e = torch.exp(logits)
        loss = (e / e.sum(-1, keepdim=True)).mean()
"""
    + STEP,
    "a ratio of kernels of distances": SCALER
    + _AUTOCAST
    + """\
        distance = torch.cdist(model(x), y)
        loss = (torch.exp(-distance) / torch.exp(-distance).sum(-1, keepdim=True)).mean()
"""
    + STEP,
    "perplexity in evaluation": SCALER
    + FORWARD
    + STEP
    + """

@torch.no_grad()
def evaluate(model, x):
    return torch.log(F.softmax(model(x), dim=-1)).mean()
""",
    "variance by difference in FP32": SCALER
    + """
def moments(x):
    x = x.float()
    return (x**2).mean() - x.mean() ** 2


"""
    + FORWARD
    + STEP,
    "difference of two different means": SCALER
    + _AUTOCAST
    + """\
        output = model(x)
        loss = (output**2).mean() - y.mean() ** 2
"""
    + STEP,
    "FP32 training": HEAD
    + """
loss = -torch.log(F.softmax(model(torch.randn(8, 4)), dim=-1)).mean()
""",
}

MASKS = {
    "minus infinity": SCALER
    + _AUTOCAST
    + """\
        scores = model(x) @ y.transpose(-2, -1)
        loss = scores.masked_fill(x == 0, float("-inf")).softmax(-1).mean()
"""
    + STEP,
    "the smallest of the format": SCALER
    + _AUTOCAST
    + """\
        scores = model(x) @ y.transpose(-2, -1)
        loss = scores.masked_fill(x == 0, torch.finfo(scores.dtype).min).softmax(-1).mean()
"""
    + STEP,
    "minus ten thousand": SCALER
    + _AUTOCAST
    + """\
        scores = torch.matmul(model(x), y.transpose(-2, -1))
        loss = scores.masked_fill(x == 0, -10000.0).softmax(-1).mean()
"""
    + STEP,
    "scores in FP32": SCALER
    + _AUTOCAST
    + """\
        scores = (model(x) @ y.transpose(-2, -1)).float()
        loss = scores.masked_fill(x == 0, -1e9).softmax(-1).mean()
"""
    + STEP,
    "an added mask of its own": SCALER
    + _AUTOCAST
    + """\
        scores = model(x) @ y.transpose(-2, -1) + (x == 0) * -1e9
        loss = scores.softmax(-1).mean()
"""
    + STEP,
    "distances, not scores": SCALER
    + _AUTOCAST
    + """\
        gaps = (x - y).abs()
        loss = model(x).mean() + gaps.masked_fill(x == 0, 1e6).min()
"""
    + STEP,
    "BF16": HEAD
    + """
for x, y in loader:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        scores = model(x) @ y.transpose(-2, -1)
        loss = scores.masked_fill(x == 0, -1e9).softmax(-1).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
""",
    "in an island": SCALER
    + _AUTOCAST
    + """\
        with torch.autocast("cuda", enabled=False):
            scores = model(x.float()) @ y.float().transpose(-2, -1)
            loss = scores.masked_fill(x == 0, -1e9).softmax(-1).mean()
"""
    + STEP,
    "decoding": SCALER
    + FORWARD
    + STEP
    + """

@torch.no_grad()
def generate(model, x):
    scores = model(x) @ x.transpose(-2, -1)
    return scores.masked_fill(x == 0, -1e9).argmax(-1)
""",
}

EPS = {
    "FP32 tensors": SCALER
    + _AUTOCAST
    + """\
        output = model(x)
        loss = (output / (output.float().norm() + 1e-8)).sum()
"""
    + STEP,
    "an eps that FP16 has": SCALER
    + """
scale = torch.rand(8, 1).half()
scale = scale / (scale.sum() + 1e-6)
"""
    + FORWARD
    + STEP,
    "BF16": SCALER
    + """
scale = torch.rand(8, 1).bfloat16()
scale = scale / (scale.sum() + 1e-8)
"""
    + FORWARD
    + STEP,
    "Adam with FP32 parameters and FP16 inputs": SCALER
    + """
inputs = torch.randn(8, 4).half()
optimizer = torch.optim.Adam(model.parameters(), eps=1e-8)
"""
    + FORWARD
    + STEP,
    "FP16 in one branch, FP32 in the other": SCALER
    + """
weights = torch.rand(8)
if device == "cuda":
    weights = weights.half()
total = weights.sum() + 1e-8
"""
    + FORWARD
    + STEP,
    "a learning rate": SCALER
    + """
half = model(torch.randn(8, 4)).half()
minimum = 1e-8 + 0.1 * len(half)
"""
    + FORWARD
    + STEP,
    "normalised in FP16 for a picture": SCALER
    + FORWARD
    + STEP
    + """

@torch.no_grad()
def show(x):
    x = x.half()
    return x / (x.max() + 1e-8)
""",
}

_FUNCTION = """
class Op(torch.autograd.Function):
    @staticmethod{fwd}
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return {result}

    @staticmethod{bwd}
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad * w, grad * x


"""
_APPLIED = _AUTOCAST + "        loss = Op.apply(model(x), y).mean()\n" + STEP

FUNCTIONS = {
    "with the rule": SCALER
    + _FUNCTION.format(
        fwd='\n    @torch.amp.custom_fwd(device_type="cuda")',
        bwd='\n    @torch.amp.custom_bwd(device_type="cuda")',
        result="x @ w",
    )
    + _APPLIED,
    "element by element": SCALER + _FUNCTION.format(fwd="", bwd="", result="x * w") + _APPLIED,
    "a reversed gradient": SCALER
    + """
class Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -grad

"""
    + _AUTOCAST
    + "        loss = Reverse.apply(model(x)).mean()\n"
    + STEP,
    "casts by itself": SCALER
    + _FUNCTION.format(fwd="", bwd="", result="x.float() @ w.float()")
    + _APPLIED,
    "applied outside of autocast": SCALER
    + _FUNCTION.format(fwd="", bwd="", result="x @ w")
    + _AUTOCAST
    + "        output = model(x)\n    loss = Op.apply(output.float(), y).mean()\n"
    + STEP,
    "in FP32 training": HEAD
    + _FUNCTION.format(fwd="", bwd="", result="x @ w")
    + "loss = Op.apply(model(torch.randn(8, 4)), torch.randn(8, 1)).mean()\n",
    "a straight-through round": SCALER
    + """
class Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.round(x)

    @staticmethod
    def backward(ctx, grad):
        return grad

"""
    + _AUTOCAST
    + "        loss = Round.apply(model(x)).mean()\n"
    + STEP,
}

_ISLAND = (
    _AUTOCAST
    + """\
        output = {output}
        with torch.autocast("cuda", enabled=False):
            {inside}
"""
)

ISLANDS = {
    "cast at the door": SCALER
    + _ISLAND.format(output="model(x)", inside="loss = criterion(output.float(), y)")
    + STEP,
    "cast before": SCALER
    + _ISLAND.format(output="model(x).float()", inside="loss = criterion(output, y)")
    + STEP,
    "the callee casts": SCALER
    + "from losses import discriminator_loss\n"
    + _ISLAND.format(output="model(x)", inside="loss = discriminator_loss(output, y)")
    + STEP,
    "backward outside of autocast": SCALER
    + _ISLAND.format(
        output="criterion(model(x), y)",
        inside="scaler.scale(output).backward()\n            scaler.step(optimizer)",
    )
    + "    scaler.update()\n    optimizer.zero_grad()\n",
    "a loss that is FP32 already": SCALER
    + _ISLAND.format(output="F.cross_entropy(model(x), y)", inside="loss = output * 2 + output")
    + STEP,
    "numbers for the log": SCALER
    + _ISLAND.format(output="model(x)", inside="print(output.item())")
    + "        loss = criterion(output, y)\n"
    + STEP,
    "beside autocast, not in it": SCALER
    + """
for x, y in loader:
    with torch.autocast("cuda"):
        output = model(x)
    with torch.autocast("cuda", enabled=False):
        loss = criterion(output, y)
"""
    + STEP,
    "off by a setting": SCALER
    + """
use_amp = device != "cpu"
for x, y in loader:
    with torch.autocast("cuda", enabled=use_amp):
        output = model(x)
        with torch.autocast("cuda", enabled=not use_amp):
            loss = criterion(output, y)
"""
    + STEP,
}

SILENT = {"HS206": LOGARITHMS, "HS207": MASKS, "HS208": EPS, "HS209": FUNCTIONS, "HS214": ISLANDS}

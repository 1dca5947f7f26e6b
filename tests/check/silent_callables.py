"""Correct programs that hand on what they do as a function, a method or a lambda."""

from source_cases import HEAD

_LOOP = """\
for x, y in loader:
    optimizer.zero_grad()
    loss = loss_of(x, y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
"""
_HEAD = HEAD.replace(
    "from torch import nn\n", "from timing import timed\nfrom torch import nn\n", 1
)
_OWN = "def timed(work, *given):\n    return work(*given)\n\n\n"
_CALLS = {
    "zero_grad": "optimizer.zero_grad()",
    "backward": "scaler.scale(loss).backward()",
    "unscale": "scaler.unscale_(optimizer)",
    "step": "scaler.step(optimizer)",
    "update": "scaler.update()",
}


def _handed_on(call: str) -> dict[str, str]:
    owner, _, rest = call.rpartition(".")
    name, _, given = rest.rstrip(")").partition("(")
    arguments = f", {given}" if given else ""
    as_lambda = _LOOP.replace(f"    {call}\n", f"    timed(lambda: {call})\n")
    as_method = _LOOP.replace(f"    {call}\n", f"    timed({owner}.{name}{arguments})\n")
    return {
        "a lambda, elsewhere": _HEAD + as_lambda,
        "a lambda, here": HEAD + _OWN + as_lambda,
        "a method, elsewhere": _HEAD + as_method,
        "a method, here": HEAD + _OWN + as_method,
    }


PROGRAMS = {
    f"{name} as {how}": text
    for name, call in _CALLS.items()
    for how, text in _handed_on(call).items()
    if name != "backward" or "lambda" in how  # a loss that is scaled is no method to hand on
} | {
    "an alias": HEAD + "update = scaler.update\n" + _LOOP.replace("scaler.update()", "update()"),
    "methods in a loop": HEAD
    + _LOOP.replace("    scaler.update()\n", "    for do in (scaler.update,):\n        do()\n"),
    "map over losses": HEAD
    + _LOOP.replace(
        "    scaler.scale(loss).backward()\n",
        "    for scaled in map(scaler.scale, (loss,)):\n        scaled.backward()\n",
    ),
    "map with a lambda": HEAD
    + _LOOP.replace(
        "    scaler.scale(loss).backward()\n",
        "    list(map(lambda each: scaler.scale(each).backward(), (loss,)))\n",
    ),
}
WRONG = {
    "an alias in the wrong place": HEAD
    + "clip = nn.utils.clip_grad_norm_\nunscale = scaler.unscale_\n"
    + _LOOP.replace(
        "    scaler.unscale_(optimizer)\n    nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n",
        "    clip(model.parameters(), 1.0)  # <- HS101\n    unscale(optimizer)\n",
    ),
}

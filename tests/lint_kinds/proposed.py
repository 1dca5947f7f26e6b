"""Rules that the kinds ask for and that do not exist yet, as they would be written."""

from __future__ import annotations

from typing import NamedTuple


class Proposal(NamedTuple):
    """A rule to come.

    Attributes:
        name: Of the rule.
        severity: As in `Finding`.
        message: What is wrong; ``{...}`` is filled in.
        remedy: What to do.
        repair: What an unsafe repair does; empty where it takes a person.
    """

    name: str
    severity: str
    message: str
    remedy: str
    repair: str = ""


PROPOSED = {
    "HS131": Proposal(
        "clip-before-backward",
        "error",
        "there are no gradients to clip yet: they were cleared in line {line}, and the backward"
        " comes after this line. The step is not clipped at all.",
        "move it behind the backward and behind {scaler}.unscale_({optimizer}).",
        "move the clip behind the last backward, with `unscale_` before it.",
    ),
    "HS132": Proposal(
        "cleared-in-every-micro-batch",
        "error",
        "the gradients of this window's other micro-batches are cleared here: the step in line"
        " {line} uses those of the last one alone.",
        "clear behind the step, where the window ends.",
    ),
    "HS133": Proposal(
        "penalty-from-scaled-gradients",
        "error",
        "these gradients carry the loss scale, and the loss is made from them: the penalty grows"
        " with the scale and its square.",
        "divide them by {scaler}.get_scale(), or take the gradients of the loss without scale().",
    ),
    "HS134": Proposal(
        "clip-beside-engine",
        "error",
        "the gradients still carry the loss scale of {engine} here: the limit is max_norm / scale.",
        "delete the line and give Engine(..., max_norm={limit}); a clip of another kind goes into"
        " `with {engine}.gradients():`.",
        "delete the line and add `max_norm=` where the engine is made in the same file.",
    ),
    "HS135": Proposal(
        "optimizer-step-beside-engine",
        "error",
        "{engine}.step() moves this optimizer; here it moves by gradients that carry the loss"
        " scale, and without the engine's decision to skip.",
        "delete the line.",
        "delete the line.",
    ),
    "HS136": Proposal(
        "schedule-step-beside-engine",
        "error",
        "{engine} was made with schedule={schedule} and moves it with every update: here it moves"
        " a second time.",
        "delete the line.",
        "delete the line.",
    ),
    "HS137": Proposal(
        "scaler-beside-engine",
        "error",
        "{engine} has a loss scale of its own: {scaler} multiplies the loss, or divides the"
        " gradients, once more.",
        "delete the scaler; use {engine}.backward(loss) and {engine}.step().",
        "delete `unscale_`, `step` and `update`; write `loss` for `{scaler}.scale(loss)`.",
    ),
    "HS138": Proposal(
        "loss-divided-beside-engine",
        "error",
        "{engine} divides by the number of micro-batches of a window already: the gradients come"
        " out {count} times too small.",
        "hand over the mean of the micro-batch as it is.",
        "delete the division.",
    ),
    "HS139": Proposal(
        "gradients-cleared-in-engine-window",
        "error",
        "this clears gradients that {engine}.step() has not used yet; the engine clears them"
        " itself.",
        "delete the line, or call {engine}.abort() to drop the window.",
        "delete the line.",
    ),
}

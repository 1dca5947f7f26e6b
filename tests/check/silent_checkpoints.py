"""Correct programs that look as if they forgot the scaler on resume (HS130)."""

from pattern_head import FORWARD, SCALER, STEP

_SAVE = """\
state = {"optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}
torch.save(state, "last.pt")
"""
_LOAD = """\
state = torch.load("last.pt")
optimizer.load_state_dict(state["optimizer"])
"""
_REST = FORWARD + STEP + _SAVE

RESTORED = {
    "if it is there": SCALER
    + _LOAD
    + """\
if "scaler" in state:
    scaler.load_state_dict(state["scaler"])
"""
    + _REST,
    "all in a loop": SCALER
    + """\
state = torch.load("last.pt")
for name, part in {"optimizer": optimizer, "scaler": scaler}.items():
    part.load_state_dict(state[name])
optimizer.load_state_dict(state["optimizer"])
"""
    + _REST,
    "by a function of the file under another name": SCALER
    + """\
def restore(part, state):
    part.load_state_dict(state)


state = torch.load("last.pt")
optimizer.load_state_dict(state["optimizer"])
restore(scaler, state["scaler"])
"""
    + _REST,
    "by code from elsewhere": SCALER
    + """\
from project import restore

"""
    + _LOAD
    + """\
restore(scaler, state)
"""
    + _REST,
    "the optimizer alone is saved and loaded": SCALER
    + _LOAD
    + FORWARD
    + STEP
    + 'torch.save({"optimizer": optimizer.state_dict()}, "last.pt")\n',
    "nothing is resumed": SCALER + _REST,
    "a trainer that restores itself elsewhere": """\
import torch
from project import Base


class Trainer(Base):
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters())
        self.scaler = torch.amp.GradScaler("cuda")
        self.register(self.optimizer, self.scaler)

    def save(self):
        torch.save([self.optimizer.state_dict(), self.scaler.state_dict()], "last.pt")

    def load(self):
        self.optimizer.load_state_dict(torch.load("last.pt")[0])
""",
}

SILENT = {"HS130": RESTORED}

"""Training steps and whole runs."""

from halfstep.training.checkpoint.file import load_checkpoint, save_checkpoint
from halfstep.training.checkpoint.folder import CheckpointFolder
from halfstep.training.engine.engine import Engine
from halfstep.training.followers.schedule import TokenSchedule, warmup_cosine
from halfstep.training.run.fit import fit
from halfstep.training.run.load_recipe import load_recipe
from halfstep.training.run.recipe import Recipe
from halfstep.training.run.validation import Best, patience
from halfstep.training.window.loss import LossSum
from halfstep.training.window.micro_batches import Window, micro_batches

__all__ = [
    "Best",
    "CheckpointFolder",
    "Engine",
    "LossSum",
    "Recipe",
    "TokenSchedule",
    "Window",
    "fit",
    "load_checkpoint",
    "load_recipe",
    "micro_batches",
    "patience",
    "save_checkpoint",
    "warmup_cosine",
]

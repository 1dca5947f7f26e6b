"""Training steps and whole runs."""

from halfstep.training.checkpoint import load_checkpoint, save_checkpoint
from halfstep.training.checkpoint_folder import CheckpointFolder
from halfstep.training.engine import Engine
from halfstep.training.fit import fit
from halfstep.training.load_recipe import load_recipe
from halfstep.training.loss import LossSum
from halfstep.training.recipe import Recipe
from halfstep.training.schedule import TokenSchedule, warmup_cosine
from halfstep.training.windows import micro_batches

__all__ = [
    "CheckpointFolder",
    "Engine",
    "LossSum",
    "Recipe",
    "TokenSchedule",
    "fit",
    "load_checkpoint",
    "load_recipe",
    "micro_batches",
    "save_checkpoint",
    "warmup_cosine",
]

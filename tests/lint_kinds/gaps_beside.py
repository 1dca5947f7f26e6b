"""Repairs and places that the linter does not yet get right, by kind and member.

The tests of these are expected to fail; whoever mends them deletes the lines here.
"""

from __future__ import annotations

# Repairs of checkpoints that break a run.
BROKEN: dict[str, list[str]] = {}
# Checkpoints that are not repaired, or by half.
UNREPAIRED: dict[str, list[str]] = {}
# Repairs of the other programs that add a fault.
DAMAGED: dict[str, list[str]] = {}
# Findings that stand on another line.
MISPLACED: dict[str, list[str]] = {}
# Findings that do not name the other line or the remedy.
UNTOLD: dict[str, list[str]] = {
    "HS107 with the remedy that fits": [
        "in a helper with names of its own",
    ],
    "scalers without a name of their own": [
        "attribute of another object",
        "checkpoint",
    ],
}
# Findings with internal names.
UNNAMED: dict[str, list[str]] = {}

"""Several processes (ranks) that train one model.

* `ranks`: who takes part, and the collectives between them; `ONE` for a process of its own.
* `shards`: the part of a sharded tensor that this rank holds.
* `peers`: what the others are told when a rank fails, and what this one learns of them.
"""

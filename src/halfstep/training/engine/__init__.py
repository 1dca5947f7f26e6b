"""`Engine`: training steps of one model or several.

* `engine`: the class; `settings`: from its arguments to its parts; `names`: settings and calls by
  name.
* `state`: what goes into a checkpoint.
* `replay`, `lost_updates`: looking at a step afterwards.
"""

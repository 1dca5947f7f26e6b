"""`Engine`: training steps of one model or several.

* `engine`: the class; `settings` and `setup_checks`: from its arguments to its parts; `names`:
  settings and calls by name.
* `processes`: what several processes may do together, and what is refused.
* `loss`, `windows`: what a micro-batch returns, and what an update is made of.
* `backward`, `weight_casts`: from a loss to scaled gradients.
* `followers`: what moves with the weights (`schedule`, averages) or is put back (`buffers`).
* `state`: what goes into a checkpoint; `replay`, `lost_updates`: looking at a step.
"""

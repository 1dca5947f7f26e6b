"""Whether an update happens, and by what number its gradients are divided.

* `measured`: what a decision starts from, and the numbers it ends in.
* `multiplier`: the formula, in floats and in device tensors.
* `on_host` and `on_device`: the same decision where the host knows the norm, and where it waits
  for nothing.
* `clipping`, `veto`: the settings ``max_norm``, ``clip`` and ``veto``.
"""

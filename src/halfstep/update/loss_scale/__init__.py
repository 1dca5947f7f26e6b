"""What the loss is multiplied by, and how windows change it.

* `base`: the methods that all loss scales share, none and static, skips in a row.
* `dynamic`: the scale that searches for the largest value without overflow.
* `setting`: from ``loss_scale="auto"``, a number or an object to a loss scale.
* `updates`: one update per window, however many optimizers share a scale.
"""

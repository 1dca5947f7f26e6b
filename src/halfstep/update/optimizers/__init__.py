"""What optimizers need for an update: gradients, their norm, the roads to a step.

* `gradients`: which parameters have a gradient, memory layouts, division in place.
* `sharded`: parameters of which each process holds a part, which are refused.
* `norm`: the gradient norm, whose finiteness is the overflow check.
* `kernels`: torch's fused kernels, a row each; `kernel_plan`: calling them directly.
* `fuse`: ``fuse="auto"``; `adapter`: which road an optimizer takes.
"""

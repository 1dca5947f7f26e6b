"""What optimizers need for an update: gradients, their norm, the roads to a step.

* `gradients`: which parameters have a gradient, memory layouts, division in place.
* `norm`: the gradient norm, whose finiteness is the overflow check; `square_sums`: one rank's part.
* `kernels`: torch's fused kernels, a row each; `kernel_plan`: calling them directly.
* `fuse`: ``fuse="auto"``; `adapter`: which road an optimizer takes.
"""

"""What one update is made of.

* `loss`: what a micro-batch returns; `micro_batches`: how they are grouped into windows.
* `backward`: from a loss to scaled gradients; `parameter_hooks`: hooks that see true ones.
* `weight_casts`: low-precision weights that the micro-batches of a window share.
"""

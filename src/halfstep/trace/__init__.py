"""What happened in one pass."""

from halfstep.trace.first_bad_op import BadOp, FirstBadOp

__all__ = ["BadOp", "FirstBadOp"]

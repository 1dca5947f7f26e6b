"""What happened in one pass."""

from halfstep.tracing.first_bad_op import BadOp, find_first_bad_op
from halfstep.tracing.lineage import Lineage
from halfstep.tracing.op_trace import OpTrace
from halfstep.tracing.session import Trace, trace
from halfstep.tracing.watch import Watch, watch

__all__ = [
    "BadOp",
    "Lineage",
    "OpTrace",
    "Trace",
    "Watch",
    "find_first_bad_op",
    "trace",
    "watch",
]

"""Which operation runs in which precision."""

from halfstep.precision.hardware import choose_format
from halfstep.precision.policy import Policy, as_policy

__all__ = ["Policy", "as_policy", "choose_format"]

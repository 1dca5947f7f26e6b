"""Which operation runs in which precision."""

from halfstep.precision.audit import Audit, AuditEntry
from halfstep.precision.block import fp32
from halfstep.precision.choose import PrecisionSetting, as_policy, policy_from
from halfstep.precision.context import PolicyContext
from halfstep.precision.device_formats import FormatSupport, Hardware, choose_format, hardware
from halfstep.precision.op_lists import CATEGORIES, op_list
from halfstep.precision.op_table import ListedOp, listed_ops
from halfstep.precision.policy import BASES, Policy

__all__ = [
    "BASES",
    "CATEGORIES",
    "Audit",
    "AuditEntry",
    "FormatSupport",
    "Hardware",
    "ListedOp",
    "Policy",
    "PolicyContext",
    "PrecisionSetting",
    "as_policy",
    "choose_format",
    "fp32",
    "hardware",
    "listed_ops",
    "op_list",
    "policy_from",
]

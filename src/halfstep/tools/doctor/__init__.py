"""What breaks in which format, where, why, and what to do."""

from halfstep.tools.doctor.diagnose import diagnose

__all__ = ["diagnose"]

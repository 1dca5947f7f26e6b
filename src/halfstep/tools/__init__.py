"""What the commands run: one file or folder per tool."""

from halfstep.tools.doctor import diagnose
from halfstep.tools.resume import verify_resume

__all__ = ["diagnose", "verify_resume"]

"""What the commands run: one file or folder per tool."""

from halfstep.tools.resume import verify_resume

__all__ = ["verify_resume"]

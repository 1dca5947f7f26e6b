"""``python -m halfstep``."""

from halfstep.cli import main

main()

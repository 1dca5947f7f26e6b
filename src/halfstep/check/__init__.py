"""The linter: source code -> events and patterns -> findings. Files are never executed."""

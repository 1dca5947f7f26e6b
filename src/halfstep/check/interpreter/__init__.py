"""The paths through a program: its statements, conditions, loops and calls become events."""

"""What the commands run: one file or folder per tool."""

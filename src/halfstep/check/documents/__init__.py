"""Files on disk and the Python in them: scripts, notebooks, Markdown."""

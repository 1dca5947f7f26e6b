"""Edits that put a finding right, and how they are made in a file."""

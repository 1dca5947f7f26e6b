"""Output formats of ``halfstep check``: a file is a format, its name the format's name.

The docstring of the file is its entry in the docs, the first line its help. ``render`` takes a
`halfstep.report.findings.checked.Checked` and gives the lines of the output.
"""

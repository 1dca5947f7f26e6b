"""Real architectures and planted faults for the doctor, in two halves; run with `make zoo`.

`case`: what a case is, and the registry. `halves`: which half each case was drawn into. `data`:
inputs that look like real ones. `healthy`: architectures that train well in 16 bits, by field.
`planted`: the same and models of public reports, each with one fault whose place and cause are
written down. `judge`: right or wrong. `remedies`: does what the doctor printed. `one_case`: a case
in a process of its own. `runner`, `summary`: all of them.
"""

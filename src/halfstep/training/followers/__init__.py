"""What moves with the weights, and stands still or comes back where they do.

* `followers`: all of it for one engine; `schedule`: learning rates; `buffers`: module buffers that
  are put back after a skip.
"""

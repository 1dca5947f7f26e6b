"""An engine among several processes (ranks).

* `processes`: finds those that train together, and ends the run of all where one fails.
* `gradient_sync`: exchanges gradients once per window.
* `kinds_of_loss`: what the first backward of a run agrees on.
* `one_process`: refuses what is for a process of its own.
"""

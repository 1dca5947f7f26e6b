"""The transaction: everything commits together or nothing moves.

* `window`: what the micro-batches of one update add up to; `counters`: what a run has done.
* `optimizer_slot`: one optimizer with its window, loss scale, limits and counters.
* `transaction`: measure, decide, apply, commit, for one optimizer or several together.
* `launched_step`: from a launched step to its record; `outcome`: what the user gets.
"""

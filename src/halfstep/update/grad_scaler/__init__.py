"""The drop-in for torch's class.

* `scaler`: its calls; `state`: its numbers, kept by a `DynamicLossScale`.
* `optimizer_call`: how an optimizer is called, and what is kept for it between steps.
* `last_step`: what is remembered of a step until somebody asks for the outcome.
"""

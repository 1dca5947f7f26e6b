"""What an engine refuses of the program around it, before anything moves.

* `setup_checks`: models and optimizers that cannot be trained.
* `left_over_lines`: lines of a stock loop that stayed, other optimizers, a model that changed.
* `processes`: what several processes allow.
"""

"""Whole runs: `recipe` says what to train, `load_recipe` finds it, `build` makes its engine and
`fit` trains it; `scale_trend` and `zero_gradients` watch the run."""

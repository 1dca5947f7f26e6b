"""Whole runs: `recipe` says what to train, `load_recipe` finds it, `build` makes its engine, `data`
its windows, and `fit` trains it in a `loop`; `validation` judges it, `scale_trend` and
`zero_gradients` watch it."""

"""The rules of a correct training step, written once and read by two readers.

The linter reads events out of source code, the guard reads them out of a running script. A rule
never knows which of them feeds it. How to add a rule:

1. Make ``catalog/hs109_schedule_ignores_skip.py``: code and name are in the file's name.
2. In it, one class derived from `OrderRule` (events) or `SourceRule` (source text alone); its
   docstring says what, why and the source; ``severity``, ``readers``, ``message``, ``remedy``.
3. ``bad`` and ``good`` are scripts that run. A line of ``bad`` that must be found ends in
   ``# <- HS109``. ``SETUP`` of `examples` gives model, optimizer, scaler and batches.
4. An `OrderRule` names the kinds of event it ``listens`` to; ``on_event(event, ledger)`` yields
   `Hit`s. The `Ledger` is the state *before* the event: windows, stages, scales, autocast. A hit
   about gradients names the windows (``used_by``): it counts once one of them is stepped.
5. What must be remembered beyond the ledger lives on ``self``: one instance per program path.
6. Speak only of what is certain: ``event.optimizers`` are sure, ``event.maybe`` are not.
7. A `SourceRule` names the ``words`` without which a file is not read, and asks a `Source` for
   autocasts, scalers, dtypes and what a name was set to. Add six look-alikes that are correct to
   ``tests/check/silent_*.py`` and the ways people write the mistake to ``test_patterns.py``.
8. Run ``pytest tests/rules tests/check``: the contract test lints and executes both examples.
"""

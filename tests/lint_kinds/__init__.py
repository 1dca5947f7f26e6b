"""Programs by kind: what the linter has to say of each, and that running them agrees.

Each file holds ``KINDS``: kind to member to program. A line that is wrong ends with its code, as in
``# <- HS108``; a program without such a mark is correct and gets no error, no warning and no HS109.
A program of several files begins each with ``# file: name.py``.

* `asked_twice`, `choices`: one question with one answer.
* `gaps`: what the linter does not yet say right; `proposed`: rules that do not exist yet.
* `executed`: runs them.
"""

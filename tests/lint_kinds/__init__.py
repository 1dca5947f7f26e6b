"""Programs by kind: what the linter has to say of each, and that running them agrees.

A line that is wrong ends with its code, as in ``# <- HS108``; a program without such a mark is
correct and gets no error, no warning and no HS109. A program of several files begins each with
``# file: name.py``. In a text file ``kind: name`` begins a kind and ``=== name`` a member.

* `programs`: reads ``programs/*.txt`` (kinds), ``repairs/*.txt`` (checkpoints before their repair)
  and ``places/*.txt`` (lines and words of findings).
* `asked_twice`: one question with one answer, in every form and shape.
* `executed`: runs a program at several loss scales, and says what is wrong with it.
* `gaps`, `gaps_beside`: what the linter does not yet get right.
"""

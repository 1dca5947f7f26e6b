"""Findings and rules for people and programs.

* `formats`: one file per output format of ``halfstep check``; `registry` finds them.
* `checked`: what a format is given.
* `excerpts`: findings with the lines they speak of.
* `rule_pages`, `format_page`: pages of the docs.
"""

"""The scaler put into a checkpoint, and read back where the optimizer is.

The entry is put in only where the file shows that the name holds a scaler, or ``None``, whenever
the line runs, and that nobody minds an entry more. A checkpoint from before, or one that was
written with scaling off, still loads.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from halfstep.check.repair.bindings import Bindings
from halfstep.check.repair.entries import is_open_to_entries
from halfstep.check.repair.flow import NONE, SCALER, State
from halfstep.check.repair.statements import Lines
from halfstep.check.source.facts import Facts
from halfstep.check.source.module import Module
from halfstep.rules.events import Place
from halfstep.rules.rule import Edit
from halfstep.rules.syntax import argument, dotted, last

KEY = "scaler"


class _Entry(NamedTuple):
    """Where a checkpoint gets the state of its optimizer.

    Attributes:
        owner: The optimizer.
        key: Of its entry.
        state: The expression of its state.
        home: The dict, or the statement that puts the entry into one.
    """

    owner: str
    key: str
    state: ast.Call
    home: ast.Dict | ast.Call | ast.Assign


def scaler_saved_and_loaded(hint: Place, scaler: str, module: Module) -> tuple[Edit, ...]:
    """Edits that save the state of `scaler` and load it back; none where that is not certain.

    Args:
        hint: Of the call that writes the checkpoint, or of the state of the optimizer in it.
        scaler: Its name, where the optimizer steps through it.
        module: The file.
    """
    facts = Facts(module)
    entries = _entries_near(hint, facts)
    if not entries or _has_other_use(facts):
        return ()
    entry, bindings = entries[-1], Bindings(facts)
    if not is_open_to_entries(facts, entry.home):
        return ()
    for name in _names_for(scaler, entry.owner):
        held = bindings.at(name, entry.state, beside=entry.owner)
        if _is_certain(held):
            save = _save(entry, name, held, module)
            found = (tuple(_loads(e, name, bindings, module)) for e in reversed(entries))
            return (save, *next(filter(None, found), ())) if save else ()
    return ()


def _names_for(scaler: str, optimizer: str) -> Iterator[str]:
    """What the scaler may be called beside `optimizer`: the same, or as an attribute beside it."""
    if all(part.isidentifier() for part in scaler.split(".")):
        yield scaler
        if "." in optimizer and "." not in scaler:
            yield f"{optimizer.rpartition('.')[0]}.{scaler}"


def _is_certain(held: State) -> bool:
    return SCALER in held and held <= {SCALER, NONE}


def _has_other_use(facts: Facts) -> bool:
    """Whether the key is taken, or read for something else than a scaler's state."""
    taken = (
        keyword.arg == KEY and last(call.func) in ("dict", "update")
        for call in facts.nodes(ast.Call)
        for keyword in call.keywords
    )
    keys = [node for node in facts.nodes(ast.Constant) if node.value == KEY]
    return any(taken) or any(_is_other_use(key, facts) for key in keys)


def _is_other_use(key: ast.Constant, facts: Facts) -> bool:
    above = next(facts.parents(key))
    if isinstance(above, (ast.Dict, ast.Tuple, ast.List, ast.Set)):
        return True
    statement = next(p for p in facts.parents(key) if isinstance(p, ast.stmt))
    loads = "load_state_dict" in ast.unparse(statement)
    if isinstance(above, ast.Subscript):
        return not isinstance(above.ctx, ast.Load) or not loads
    asks = isinstance(above, ast.Call) and last(above.func) in ("get", "pop", "setdefault")
    return asks and not loads


# The save


def _entries_near(hint: Place, facts: Facts) -> list[_Entry]:
    """The states of optimizers in the one dict that a checkpoint is made of."""
    found = [entry for call in facts.nodes(ast.Call) if (entry := _entry_of(call, facts))]
    found = sorted(found, key=lambda entry: _end(entry.state))
    exact = {_dict_of(e) for e in found if _end(e.state) == (hint.line, hint.column)}
    written = {_dict_of(e) for e in found if _is_written_at(e, hint.line, facts)}
    for dicts in filter(None, (exact, written)):
        return [e for e in found if _dict_of(e) in dicts] if len(dicts) == 1 else []
    return []


def _end(node: ast.expr) -> tuple[int, int]:
    return node.end_lineno or 0, (node.end_col_offset or 0) + 1


def _dict_of(entry: _Entry) -> object:
    """What two entries of one dict have in common."""
    return ast.unparse(_container(entry.home)) if isinstance(entry.home, ast.Assign) else entry.home


def _container(home: ast.Assign) -> ast.expr:
    target = home.targets[0]
    return target.value if isinstance(target, ast.Subscript) else target


def _is_optimizer(owner: str) -> bool:
    return "opt" in owner.rpartition(".")[2].lower()


def _entry_of(call: ast.Call, facts: Facts) -> _Entry | None:
    """The entry whose value is ``owner.state_dict()``."""
    owner = dotted(call.func).removesuffix(".state_dict")
    if last(call.func) != "state_dict" or call.args or call.keywords or not _is_optimizer(owner):
        return None
    above = next(facts.parents(call))
    if isinstance(above, ast.Dict) and None not in above.keys:
        keys = [k for k, v in zip(above.keys, above.values, strict=True) if v is call]
        if keys and isinstance(keys[0], ast.Constant) and isinstance(keys[0].value, str):
            return _Entry(owner, keys[0].value, call, above)
    if isinstance(above, ast.keyword) and above.arg:
        made = next(facts.parents(above))
        plain = isinstance(made, ast.Call) and dotted(made.func) == "dict"
        if plain and isinstance(made, ast.Call) and all(k.arg for k in made.keywords):
            return _Entry(owner, above.arg, call, made)
    if isinstance(above, ast.Assign) and len(above.targets) == 1:
        target = above.targets[0]
        if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
            key = target.slice.value if isinstance(target.slice, ast.Constant) else None
            return _Entry(owner, key, call, above) if isinstance(key, str) else None
    return None


def _is_written_at(entry: _Entry, line: int, facts: Facts) -> bool:
    """Whether the call at `line` writes the dict of `entry`, or the entry stands there itself."""
    if entry.home.lineno <= line <= (entry.home.end_lineno or 0):
        return True
    statement = next(p for p in (entry.home, *facts.parents(entry.home)) if isinstance(p, ast.stmt))
    if statement.lineno <= line <= (statement.end_lineno or 0):
        return True
    name = _kept_in(entry, statement)
    return any(
        call.lineno <= line <= (call.end_lineno or 0)
        and any(dotted(a) == name for a in (*call.args, *(k.value for k in call.keywords)))
        and facts.function(call) is facts.function(statement)
        for call in facts.nodes(ast.Call)
        if name
    )


def _kept_in(entry: _Entry, statement: ast.stmt) -> str:
    """The variable that holds the dict."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return ""
    kept = dotted(_container(statement))
    return kept if statement is entry.home or statement.value is entry.home else ""


def _save(entry: _Entry, scaler: str, held: State, module: Module) -> Edit | None:
    state = f"{scaler}.state_dict()"
    if NONE in held:
        state += f" if {scaler} is not None else None"
    lines = Lines(module)
    if isinstance(entry.home, ast.Assign):
        if not lines.stands_alone(entry.home):
            return None
        kept = ast.unparse(_container(entry.home))
        return lines.behind(entry.home, f'{kept}["{KEY}"] = {state}')
    new = f"{KEY}={state}" if isinstance(entry.home, ast.Call) else f'"{KEY}": {state}'
    place = module.place(entry.state)
    return lines.entry_behind(place, new)


# The load


def _loads(entry: _Entry, scaler: str, bindings: Bindings, module: Module) -> Iterator[Edit]:
    """What loads the state of the scaler, behind each load of the optimizer's.

    Nothing where the file loads such a state already, or where the scaler may be missing then.
    """
    lines, facts = Lines(module), bindings.facts
    if module.calls_anywhere(scaler.rpartition(".")[2].lower(), "load_state_dict"):
        return
    for call in facts.nodes(ast.Call):
        saved = _restored_from(call, entry)
        statement = next(facts.parents(call))
        if not saved or not isinstance(statement, ast.Expr) or not lines.stands_alone(statement):
            continue
        held = bindings.at(scaler, statement, beside=dotted(call.func).rpartition(".")[0])
        if _is_certain(held):
            test = f'{saved}.get("{KEY}")'
            test = f"{scaler} is not None and {test}" if NONE in held else test
            load = f'    {scaler}.load_state_dict({saved}["{KEY}"])'
            yield lines.behind(statement, f"if {test}:", load)


def _restored_from(call: ast.Call, entry: _Entry) -> str:
    """``saved`` of ``optimizer.load_state_dict(saved["optimizer"])``."""
    same = last(getattr(call.func, "value", call)) == entry.owner.rpartition(".")[2]
    if last(call.func) != "load_state_dict" or not same or len(call.args) != 1:
        return ""
    given = argument(call, 0)
    if not isinstance(given, ast.Subscript) or not isinstance(given.slice, ast.Constant):
        return ""
    return dotted(given.value) if given.slice.value == entry.key else ""

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


def scaler_saved_and_loaded(line: int, scaler: str, module: Module) -> tuple[Edit, ...]:
    """Edits that save the state of `scaler` and load it back; none where that is not certain.

    Args:
        line: Of the call that writes the checkpoint, or of the state of the optimizer in it.
        scaler: Its name, where the optimizer steps through it.
        module: The file.
    """
    facts = Facts(module)
    entry = _entry_near(line, facts)
    if entry is None or _has_other_use(facts) or not is_open_to_entries(facts, entry.home):
        return ()
    bindings = Bindings(facts)
    for name in _names_for(scaler, entry.owner):
        held = bindings.at(name, entry.state, beside=entry.owner)
        if _is_certain(held):
            save = _save(entry, name, held, module)
            loads = _loads(entry, name, facts, bindings, module)
            return (save, *loads) if save else ()
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
    for node in facts.nodes(ast.Constant):
        if node.value != KEY:
            continue
        statement = next(p for p in facts.parents(node) if isinstance(p, ast.stmt))
        above = next(facts.parents(node))
        reads = isinstance(above, (ast.Compare, ast.Subscript, ast.Call))
        stored = isinstance(above, ast.Subscript) and not isinstance(above.ctx, ast.Load)
        if not reads or stored or "load_state_dict" not in ast.unparse(statement):
            return True
    return any(
        keyword.arg == KEY and last(call.func) == "dict"
        for call in facts.nodes(ast.Call)
        for keyword in call.keywords
    )


# The save


def _entry_near(line: int, facts: Facts) -> _Entry | None:
    """The one state of an optimizer that goes into the checkpoint of a line."""
    found = [entry for call in facts.nodes(ast.Call) if (entry := _entry_of(call, facts))]
    found = [entry for entry in found if _is_optimizer(entry.owner)]
    written = [entry for entry in found if _is_written_at(entry, line, facts)]
    return written[0] if len(written) == 1 else None


def _is_optimizer(owner: str) -> bool:
    return "opt" in owner.rpartition(".")[2].lower()


def _entry_of(call: ast.Call, facts: Facts) -> _Entry | None:
    """The entry whose value is ``owner.state_dict()``."""
    owner = dotted(call.func).removesuffix(".state_dict")
    if last(call.func) != "state_dict" or call.args or call.keywords or not owner:
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
    target = statement.targets[0]
    kept = target.value if isinstance(target, ast.Subscript) else target
    return dotted(kept) if statement is entry.home or statement.value is entry.home else ""


def _save(entry: _Entry, scaler: str, held: State, module: Module) -> Edit | None:
    state = f"{scaler}.state_dict()"
    if NONE in held:
        state += f" if {scaler} is not None else None"
    lines = Lines(module)
    if isinstance(entry.home, ast.Assign):
        if not lines.stands_alone(entry.home):
            return None
        target = entry.home.targets[0]
        assert isinstance(target, ast.Subscript)
        return lines.behind(entry.home, f'{ast.unparse(target.value)}["{KEY}"] = {state}')
    new = f"{KEY}={state}" if isinstance(entry.home, ast.Call) else f'"{KEY}": {state}'
    place = module.place(entry.state)
    return lines.entry_behind(place, new)


# The load


def _loads(
    entry: _Entry, scaler: str, facts: Facts, bindings: Bindings, module: Module
) -> Iterator[Edit]:
    """What loads the state of the scaler, behind each load of the optimizer's.

    Nothing where the file loads such a state already, or where the scaler may be missing then.
    """
    lines = Lines(module)
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

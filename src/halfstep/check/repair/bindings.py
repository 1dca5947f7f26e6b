"""Whether a name surely holds a scaler where a repair would use it.

Only what the text of one file shows counts; all else is unknown, and a repair is not offered.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from halfstep.check.repair.entries import imported_names
from halfstep.check.repair.flow import NEVER, NONE, SCALER, UNBOUND, UNKNOWN, Flow, State, one
from halfstep.check.source.facts import Facts
from halfstep.rules.source import FunctionNode
from halfstep.rules.syntax import argument, dotted, inside, last, targets

Scope = FunctionNode | ast.Module
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_CLASSES = ("GradScaler", "ShardedGradScaler")
_HOMES = ("torch.", "halfstep.")


class Bindings:
    """What names hold in a file.

    Args:
        facts: The file.
    """

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self._flows: dict[tuple[ast.AST, str], Flow] = {}
        self._asked: set[tuple[ast.AST, str]] = set()

    def at(self, owner: str, node: ast.AST, beside: str = "") -> State:
        """What `owner` may hold where `node` stands.

        Args:
            owner: A name, or an attribute path.
            node: A statement or expression.
            beside: A name that `node` needs anyhow: where that is not bound, `node` is not
                reached.
        """
        scope, statement = self.facts.function(node), self._statement(node)
        if self._is_later(node, scope):
            return one(UNKNOWN)
        root = owner.partition(".")[0]
        method = self._method(node, root) if "." in owner else None
        if method is not None:
            return self._attribute(owner, method, scope, statement, beside)
        if root in _local(scope):
            return self._flow(scope, owner).before.get(statement, NEVER)
        return self._from_outside(owner, scope, beside)

    def _statement(self, node: ast.AST) -> ast.stmt:
        return next(n for n in (node, *self.facts.parents(node)) if isinstance(n, ast.stmt))

    def _is_later(self, node: ast.AST, scope: Scope) -> bool:
        """Whether `node` runs at another time than the statements around it, or in a class body."""
        for parent in self.facts.parents(node):
            if parent is scope:
                return False
            if isinstance(parent, (ast.Lambda, ast.ClassDef)):
                return True
        return False

    def _flow(self, scope: Scope, owner: str) -> Flow:
        key = scope, owner
        if key not in self._flows:
            if key in self._asked:  # it is being asked: what depends on itself adds nothing
                return Flow(owner, self._meaning)
            self._asked.add(key)
            flow = Flow(owner, self._meaning).run(scope.body, self._start(scope, owner))
            self._asked.discard(key)
            self._flows[key] = flow
        return self._flows[key]

    def _start(self, scope: Scope, owner: str) -> State:
        if isinstance(scope, _FUNCTIONS) and owner in _parameters(scope):
            return self._given(scope, owner)
        root, _, attribute = owner.partition(".")
        own = not attribute or self._method(scope, root) is scope
        return one(UNBOUND if own else UNKNOWN)

    # Expressions

    def _meaning(self, node: ast.expr) -> State:
        """What the value of an expression may be."""
        if isinstance(node, ast.Constant) and node.value is None:
            return one(NONE)
        if isinstance(node, ast.IfExp):
            return self._meaning(node.body) | self._meaning(node.orelse)
        if isinstance(node, ast.Call):
            return self._result(node)
        if isinstance(node, (ast.Name, ast.Attribute)) and dotted(node):
            return self.at(dotted(node), node)
        return one(UNKNOWN)

    def _result(self, call: ast.Call) -> State:
        if self._makes_scaler(call.func):
            return one(SCALER)
        made = [f for f in self.facts.functions() if getattr(f, "name", "") == dotted(call.func)]
        if len(made) != 1 or not isinstance(made[0], ast.FunctionDef) or made[0].decorator_list:
            return one(UNKNOWN)
        key = made[0], "return"
        if key in self._asked:
            return NEVER
        self._asked.add(key)
        nodes = list(inside(made[0].body))
        given = [n.value for n in nodes if isinstance(n, ast.Return) and n.value is not None]
        self._asked.discard(key)
        if any(isinstance(n, (ast.Yield, ast.YieldFrom)) for n in nodes):
            return one(UNKNOWN)
        return one(NONE).union(*map(self._meaning, given))

    def _makes_scaler(self, node: ast.expr) -> bool:
        name, written = self.facts.resolve(node) or "", dotted(node)
        own = [c for c in self.facts.nodes(ast.ClassDef) if c.name == written]
        if own:  # one that takes the place of an import may be anything
            if len(own) > 1 or written in imported_names(self.facts):
                return False
            return any(dotted(b) != written and self._makes_scaler(b) for b in own[0].bases)
        return name.rpartition(".")[2] in _CLASSES and name.startswith(_HOMES)

    # Parameters

    def _given(self, function: FunctionNode, name: str) -> State:
        """What callers in the file give; those outside of it may leave it at ``None``."""
        key = function, f"argument {name}"
        if key in self._asked:
            return NEVER
        self._asked.add(key)
        owner = next(self.facts.parents(function))
        is_init = function.name == "__init__" and isinstance(owner, ast.ClassDef)
        called = owner.name if is_init and isinstance(owner, ast.ClassDef) else function.name
        found: State = NEVER
        for node in self._mentions({called}):
            call = next(self.facts.parents(node))
            if isinstance(call, ast.Call) and call.func is node:
                found |= self._argument(call, function, name, isinstance(owner, ast.ClassDef))
            elif not (is_init and self._only_names(node)):
                found |= one(UNKNOWN)
        self._asked.discard(key)
        return found | one(NONE) if found else one(UNKNOWN)

    def _only_names(self, node: ast.expr) -> bool:
        """Whether a class is named for its type or its parent, rather than handed on."""
        above = list(self.facts.parents(node))[:3]
        call = above[0] if isinstance(above[0], ast.Call) else None
        typed = isinstance(above[0], (ast.arg, ast.AnnAssign))
        return typed or (call is not None and last(call.func) in ("isinstance", "super"))

    def _argument(self, call: ast.Call, function: FunctionNode, name: str, bound: bool) -> State:
        spec = function.args
        names = [a.arg for a in (*spec.posonlyargs, *spec.args)][int(bound) :]
        if any(isinstance(a, ast.Starred) for a in call.args) or None in {
            k.arg for k in call.keywords
        }:
            return one(UNKNOWN)
        given = argument(call, names.index(name) if name in names else None, name)
        if given is not None:
            return self._meaning(given)
        default = _default(function, name)
        return self._meaning(default) if default is not None else one(UNKNOWN)

    # Names of scopes further out

    def _from_outside(self, owner: str, scope: Scope, beside: str) -> State:
        """What a name of an outer function, or of the file, may hold while `scope` runs."""
        root = owner.partition(".")[0]
        home = next((s for s in self._outer(scope) if root in _local(s)), None)
        if home is None or self._is_declared(owner) or not isinstance(scope, _FUNCTIONS):
            return one(UNKNOWN)
        flow = self._flow(home, owner)
        found = flow.stored | flow.end
        if isinstance(home, _FUNCTIONS) and owner in _parameters(home):
            found |= self._given(home, owner)
        found -= {UNBOUND}
        mentions = [n for n in self._reaching(scope) if self.facts.function(n) is home]
        states = [self._before(home, owner, n, beside) for n in mentions] or [flow.end]
        return found | ({UNBOUND} & frozenset().union(*states))

    def _before(self, home: Scope, owner: str, node: ast.AST, beside: str) -> State:
        """What `owner` holds before a statement of `home`, unless `beside` is not there yet."""
        statement = self._statement(node)
        if beside and beside.partition(".")[0] in _local(home):
            missing = self._flow(home, beside).before.get(statement) == one(UNBOUND)
            if missing:
                return NEVER
        return self._flow(home, owner).before.get(statement, NEVER)

    def _outer(self, scope: Scope) -> Iterator[Scope]:
        for parent in self.facts.parents(scope):
            if isinstance(parent, (*_FUNCTIONS, ast.Module)):
                yield parent

    def _is_declared(self, name: str) -> bool:
        """Whether a function says that it sets `name` for others."""
        shared = [n.names for n in self.facts.nodes(ast.Global)]
        shared += [n.names for n in self.facts.nodes(ast.Nonlocal)]
        return any(name in names for names in shared)

    def _mentions(self, names: set[str]) -> list[ast.expr]:
        nodes: list[ast.Name | ast.Attribute] = [
            *self.facts.nodes(ast.Name),
            *self.facts.nodes(ast.Attribute),
        ]
        loads = [n for n in nodes if last(n) in names and isinstance(n.ctx, ast.Load)]
        return [n for n in loads if dotted(n).partition(".")[0] not in imported_names(self.facts)]

    def _reaching(self, function: FunctionNode) -> list[ast.expr]:
        """All places that name `function`, or what names it, and so on."""
        names: set[str] = {function.name}
        while True:
            found = self._mentions(names)
            more = {name for node in found for name in self._callers(node)}
            if more <= names:
                return found
            names |= more

    def _callers(self, node: ast.AST) -> Iterator[str]:
        """Functions around `node`; where Python calls one by itself, its class."""
        for parent in self.facts.parents(node):
            if isinstance(parent, _FUNCTIONS):
                yield parent.name
                owner = next(self.facts.parents(parent))
                if parent.name.startswith("__") and isinstance(owner, ast.ClassDef):
                    yield owner.name

    # Attributes of the object that a method belongs to

    def _method(self, node: ast.AST, root: str) -> FunctionNode | None:
        """The method around `node` whose first parameter is `root`."""
        around = [n for n in (node, *self.facts.parents(node)) if isinstance(n, _FUNCTIONS)]
        for function in around:
            in_class = isinstance(next(self.facts.parents(function)), ast.ClassDef)
            first = [*function.args.posonlyargs, *function.args.args][:1]
            static = any(
                last(d) in ("staticmethod", "classmethod") for d in function.decorator_list
            )
            if in_class and not static and first and first[0].arg == root:
                return function
        return None

    def _attribute(
        self, owner: str, method: FunctionNode, scope: Scope, statement: ast.stmt, beside: str
    ) -> State:
        home, name = next(self.facts.parents(method)), owner.partition(".")[2]
        assert isinstance(home, ast.ClassDef)
        if "." in name or self._is_set_by_name(name):
            return one(UNKNOWN)
        stored = self._stored_anywhere(name)
        init = next((n for n in home.body if getattr(n, "name", "") == "__init__"), None)
        if home.decorator_list or any(name in map(dotted, targets(n)) for n in home.body):
            return stored | one(UNKNOWN)
        if not isinstance(init, ast.FunctionDef):
            return stored | one(UNBOUND)
        flow = self._flow(init, owner)
        if scope is init:
            return flow.before.get(statement, NEVER) | (stored - {UNBOUND})
        early = [n for n in self._reaching(method) if self.facts.function(n) is init]
        early += [n for n in self._mentions({"super"}) if self.facts.function(n) is init]
        states = [self._before(init, owner, n, beside) for n in early]
        local = self._flow(scope, owner).before.get(statement) if scope is method else None
        if local is not None and UNBOUND not in local:  # set on every way to here
            return (stored | local) - {UNBOUND}
        return stored | ({UNBOUND} & flow.end.union(*states))

    def _stored_anywhere(self, name: str) -> State:
        """What any line of the file stores in an attribute of this name."""
        found: State = NEVER
        for node in self.facts.nodes(ast.Attribute):
            if node.attr == name and not isinstance(node.ctx, ast.Load):
                scope = self.facts.function(node)
                found |= self._flow(scope, dotted(node)).stored if dotted(node) else one(UNKNOWN)
                found |= one(UNBOUND) if isinstance(node.ctx, ast.Del) else NEVER
        return found

    def _is_set_by_name(self, name: str) -> bool:
        """Whether something sets attributes in a way that the text does not show."""
        for call in self.facts.nodes(ast.Call):
            if last(call) in ("setattr", "delattr", "__setattr__"):
                given = [a.value for a in call.args if isinstance(a, ast.Constant)]
                if name in given or not any(isinstance(value, str) for value in given):
                    return True
        named = [getattr(function, "name", "") for function in self.facts.functions()]
        return name in named or any(n.attr == "__dict__" for n in self.facts.nodes(ast.Attribute))


def _parameters(scope: Scope) -> set[str]:
    spec = getattr(scope, "args", None)
    if spec is None:
        return set()
    every = [*spec.posonlyargs, *spec.args, *spec.kwonlyargs, spec.vararg, spec.kwarg]
    return {a.arg for a in every if a is not None}


def _default(function: FunctionNode, name: str) -> ast.expr | None:
    spec = function.args
    positional = [*spec.posonlyargs, *spec.args]
    pairs = [
        *zip(reversed(positional), reversed(spec.defaults), strict=False),
        *zip(spec.kwonlyargs, spec.kw_defaults, strict=True),
    ]
    return next((default for parameter, default in pairs if parameter.arg == name), None)


def _local(scope: Scope) -> set[str]:
    """Names that a function or file binds itself."""
    found = _parameters(scope)
    declared: set[str] = set()
    for node in inside(scope.body):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, (*_FUNCTIONS, ast.ClassDef, ast.ExceptHandler)) and node.name:
            found.add(node.name)
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            declared.update(node.names)
    return found - declared

"""Models, losses and frameworks: objects that are known by their use alone."""

from __future__ import annotations

import ast
import re
from collections.abc import Hashable

from halfstep.check.torch_models.averages import UPDATES, update_by_name
from halfstep.check.torch_models.carried import backward_from
from halfstep.check.torch_models.clipping import clip
from halfstep.check.torch_models.contexts import no_sync
from halfstep.check.torch_models.engines import Engine
from halfstep.check.torch_models.gradients import IN_PLACE, Params
from halfstep.check.torch_models.logs import show_method
from halfstep.check.torch_models.optimizers import Optimizer, Schedule
from halfstep.check.torch_models.scalers import Scaler
from halfstep.check.torch_models.scales import backward
from halfstep.check.torch_models.states import State
from halfstep.check.torch_models.table import functions, methods, watches
from halfstep.check.values.base import NOBODY, Const, External, Models, Unknown, Value
from halfstep.check.values.call import Call, has_training_objects, makes_new
from halfstep.check.values.containers import Repeated, Sequence
from halfstep.check.values.objects import Instance, is_average_name
from halfstep.check.values.regions import ANYTHING, roots, some
from halfstep.check.values.run import Run
from halfstep.rules import events as e

# Methods that return what they are called on, as far as anything here is concerned.
_SAME_WORDS = "to cuda cpu train eval half float bfloat16 double requires_grad_"
_SAME = frozenset(_SAME_WORDS.split())
# Functions that return their first argument, as far as anything here is concerned.
_WRAPPER_WORDS = """
    DistributedDataParallel DDP DataParallel compile FullyShardedDataParallel FSDP tqdm trange list
    tuple iter reversed sorted cycle islice set convert_sync_batchnorm prefetch script fully_shard
"""
_WRAPPERS = [*_WRAPPER_WORDS.split(), *_SAME_WORDS.split()]
# Parts of a model by a method of its own: ``model.head_parameters()``.
_GIVES_PARAMETERS = re.compile(
    r"^(?!(update|set|reset|load|init|register|num|count|freeze|unfreeze|print|log|sync|copy)_)"
    r"(\w+_)?param(s|eters|_groups|eter_groups)(_\w+)?$"
)
# Whoever calls these leaves the training step to a framework.
_FRAMEWORK = ("*.scale_loss", "*.manual_backward")
_INPUTS_OF_BACKWARD = frozenset(["retain_graph", "gradient", "create_graph"])


def used_as(value: Unknown, run: Run) -> Value:
    """A scaler, optimizer or schedule where the file uses the name as one."""
    frame = run.state.frame
    kind = frame.module.kind_of(value.name) if frame.module is not None and value.name else None
    if kind is None:
        return value
    name = run.state.name_of(value)
    if kind == "scaler":
        return Scaler(name)
    if kind == "engine":
        return Engine(name)
    if kind == "optimizer":
        run.state.optimizers.setdefault(name, value.models or None)
        return Optimizer(name, value.models or None)
    return Schedule(name, None)


def of_unknown(owner: Unknown, name: str, call: Call, run: Run) -> Value | None:
    """A method of an object that is known by its use alone."""
    answer = methods.find(name)
    return answer(owner, call, run) if answer is not None else _other(name, owner, call, run)


def inherited(owner: Instance, name: str, call: Call, run: Run) -> Value | None:
    """A method that a module of the project has from torch."""
    if name in _SAME:
        _cast(owner.key, name, call, run)
        return owner
    if name in ("parameters", "named_parameters"):
        return Params(owner.parts())
    if name in ("zero_grad", "state_dict", "no_sync", "clip_grad_norm_"):
        return of_unknown(Unknown(owner.key), name, call, run)
    return None


def inside(given: list[Value]) -> Models:
    """What comes out of a call of something unknown depends on, by the models that it is given.

    The one model, or perhaps any of several: an inferer may run one of them without gradients.
    """
    if len(given) > 1:
        return frozenset([ANYTHING])
    return NOBODY.union(*(v.parts() for v in given))


def _ran(models: Models, call: Call, run: Run) -> None:
    facts = {"models": models, **({"no_grad": True} if run.state.frame.no_grad else {})}
    run.emit(e.FORWARD, call.node, facts=facts)


def forward(models: Models, call: Call, run: Run) -> Value:
    """A module of the project is called."""
    values = call.all()
    _ran(models, call, run)
    if run.state.frame.no_grad:
        return run.unknown()
    return run.unknown(models=models.union(*(v.models for v in values)))


@methods("*.parameters", "*.named_parameters", "*.trainable_parameters")
def _parameters(owner: Unknown, call: Call, run: Run) -> Value:
    return Params(frozenset([owner.region]))


@methods.where(lambda name: bool(_GIVES_PARAMETERS.search(name)))
def _some_parameters(owner: Unknown, call: Call, run: Run) -> Value:
    call.evaluate_all()
    return Params(some([owner.region], ast.unparse(call.node).partition(".")[2]))


@methods("*.get")
def _entry(owner: Unknown, call: Call, run: Run) -> Value | None:
    """``settings.get("amp", False)`` asks what ``settings["amp"]`` asks."""
    key = call.first()
    if isinstance(key, Const) and (known := run.state.entries.get((owner.key, str(key.value)))):
        return known
    found = _other("get", owner, call, run)
    return found.made_by("[]", [owner, key]) if type(found) is Unknown else found


@methods("*.backward")
def _backward(owner: Unknown, call: Call, run: Run) -> Value:
    if (result := backward_from(call, owner, run)) is not None:
        return result
    if call.count() and not call.names() & _INPUTS_OF_BACKWARD:
        run.give_up()  # accelerator.backward(loss): a framework does it
    backward(call.node, owner.models, None, run)
    return run.unknown()


@methods("*.zero_grad")
def _zero_grad(owner: Unknown, call: Call, run: Run) -> Value:
    run.emit(e.ZERO_GRAD, call.node, facts={"models": frozenset([owner.region])})
    return run.unknown()


@methods("*.clip_grad_norm_")
def _clip(owner: Unknown, call: Call, run: Run) -> Value:
    return clip("norm", frozenset([owner.region]), call, run, limit=0)


@methods("*.no_sync")
def _no_sync(owner: Unknown, call: Call, run: Run) -> Value:
    return no_sync(run)


@methods("*.state_dict")
def _state_dict(owner: Unknown, call: Call, run: Run) -> Value:
    inside = "scaler" in owner.name.lower() or owner.name == "amp"
    return State("scaler") if inside else State("model", of=frozenset([owner.region]))


@methods(*_FRAMEWORK)
def _framework(owner: Unknown, call: Call, run: Run) -> Value:
    run.give_up()


@functions(*_FRAMEWORK)
def _framework_function(call: Call, run: Run) -> Value:
    run.give_up()


@methods("*.register_hook", "*.register_post_accumulate_grad_hook")
def _hook(owner: Unknown, call: Call, run: Run) -> Value | None:
    """``model.head.weight.register_hook(f)``: of a parameter, by its name."""
    if owner.name not in ("weight", "bias"):
        call.evaluate_all()
        return run.unknown()
    name = ast.unparse(call.node.func).rpartition(".")[2]
    return Params(frozenset([owner.region])).method(name, call, run)


@methods("*.detach")
def _detach(owner: Unknown, call: Call, run: Run) -> Value:
    return run.unknown(owner.name)


@functions(*(f"*.{name}" for name in _WRAPPERS))
def _wrapper(call: Call, run: Run) -> Value | None:
    return call.all()[0] if call.count() else run.unknown()


@functions("*.chain")
def _chain(call: Call, run: Run) -> Value:
    values = call.all()
    return values[0] if len(values) == 1 else Sequence(values)


@functions("*.Parameter")
def _parameter(call: Call, run: Run) -> Value:
    call.evaluate_all()
    of: Models = frozenset([("parameter", run.fresh())])
    needs = call.named().get("requires_grad")
    if needs is not None and needs.truth is False:
        run.state.set_frozen(of, True)
    return Params(of)


@functions("*.ParameterList")
def _parameters_of_a_list(call: Call, run: Run) -> Value:
    inside = call.first()
    each = inside.each if isinstance(inside, Repeated) else inside
    return each if isinstance(each, Params) else run.unknown()


def _other(name: str, owner: Unknown, call: Call, run: Run) -> Value | None:
    """Methods that are known by more than their names, or not at all."""
    if name == "__call__" and owner.name == "no_sync":
        return no_sync(run)
    show_method(owner, name, call, run)
    given = [v for v in call.all() if v.holds_weights(run)]
    if name in UPDATES and is_average_name(owner.name) and (given or not call.count()):
        return update_by_name(owner, call, run)
    if name == "requires_grad_":
        frozen = any(v.truth is False for v in call.all())
        run.state.set_frozen(frozenset([owner.region]), frozen)
    if name in _SAME:
        if owner.root in run.state.averages or has_parameters(owner, run):
            _cast(owner.root, name, call, run)  # data go through the loss too
        return owner
    values = call.all()
    if any(has_training_objects(v) for v in values):
        return None
    no_grad = run.state.frame.no_grad
    runs = name in ("__call__", "forward")
    if runs and (run.state.frame.autocast or has_parameters(owner, run)):
        _ran(frozenset([owner.root]), call, run)
    if name == "load_state_dict" or (name in IN_PLACE and owner.path):
        changed(owner, call, run)
    models = NOBODY.union(owner.models, *(v.models for v in values)) | inside(given)
    is_model = runs and has_parameters(owner, run)  # whatever it was made of
    if not no_grad and (is_model or not owner.models) and owner.name not in ("torch", "np"):
        models |= {owner.root}
    result = run.unknown("" if name == "__call__" else name, NOBODY if no_grad else models)
    return result if makes_new(name) else result.made_by(f".{name}()", [owner, *values])


def changed(owner: Unknown, call: Call, run: Run) -> None:
    """Record weights of a model that are changed in place."""
    if run.state.frame.autocast:
        run.emit(e.WEIGHTS, call.node, facts={"models": frozenset([owner.root])})


@watches
def _initialized(function: External, call: Call, run: Run) -> None:
    """``nn.init.zeros_(model.head.weight)``."""
    if ".init." not in function.name or not function.last.endswith("_"):
        return
    for value in call.given()[:1]:
        if isinstance(value, Unknown):
            changed(value, call, run)


def has_parameters(owner: Unknown, run: Run) -> bool:
    """Whether its parameters are asked for, in an optimizer or anywhere in the file."""
    owned = run.state.optimizers.values()
    if any(of and owner.root in roots(of) for of in owned):
        return True
    return run.state.module.is_model(owner.name)


def _cast(root: Hashable, method: str, call: Call, run: Run) -> None:
    """Record a cast in place of a model that is being trained, or of its average."""
    wanted = [v.last for v in call.all() if isinstance(v, External)]
    dtype = method if method in ("half", "bfloat16") else next(iter(wanted), "")
    is_live = root in run.state.trained or root in run.state.averages
    if dtype in ("half", "float16", "bfloat16") and is_live:
        run.emit(e.CAST, call.node, facts={"dtype": dtype, "live": True})

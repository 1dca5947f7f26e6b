"""What an engine shows of itself, what may be copied, and keywords that it does not have."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import math
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import halfstep as hs
from halfstep.training import other_names
from halfstep.update.loss_scale.dynamic import OTHER_NAMES


def linear() -> nn.Linear:
    return nn.Linear(4, 2)


def sgd(model: nn.Module, rate: float = 0.5) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=rate)


def mean(model: nn.Module, x: Tensor) -> Tensor:
    loss: Tensor = model(x).float().mean()
    return loss


def single(**settings: Any) -> hs.Engine:
    model = linear()
    return hs.Engine(model, sgd(model), **{"precision": "fp32", **settings})


def pair() -> hs.Engine:
    models = {"a": linear(), "b": linear()}
    groups = [{"params": [models["b"].weight], "lr": 0.125}, {"params": [models["b"].bias]}]
    optimizers = {"a": sgd(models["a"]), "b": torch.optim.SGD(groups, lr=0.25)}
    return hs.Engine(models, optimizers, precision="fp32")


ONES = torch.ones(3, 4)


# --- the learning rate ---


def test_rate_is_a_float_a_list_of_groups_or_a_mapping_by_optimizer() -> None:
    model = linear()
    groups = [{"params": [model.weight], "lr": 0.125}, {"params": [model.bias]}]
    assert single().lr == 0.5
    assert hs.Engine(model, torch.optim.SGD(groups, lr=0.25), precision="fp32").lr == [0.125, 0.25]
    assert pair().lr == {"a": 0.5, "b": [0.125, 0.25]}


def test_rate_that_is_a_tensor_is_a_float() -> None:
    model = linear()
    engine = hs.Engine(
        model, torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.25)), precision="fp32"
    )
    assert (type(engine.lr), engine.lr) == (float, 0.25)


@pytest.mark.usefixtures("either_decides")
def test_rate_of_the_engine_is_that_of_the_next_update() -> None:
    model = linear()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    engine = hs.Engine(model, optimizer, precision="fp32", schedule=schedule, fuse="auto")
    for expected in (0.5, 0.25):
        outcome = engine.train_step([ONES], mean)
        assert engine.lr == expected / 2  # settles the step first
        assert outcome.lr == expected
    engine.train_step([ONES * math.inf], mean)
    assert engine.lr == 0.125  # a skip moves no schedule


# --- the line ---


def test_engine_in_one_line_has_model_optimizer_format_scale_and_counts() -> None:
    engine = single(precision="fp16", loss_scale=8.0)
    engine.train_step([ONES], mean)
    assert repr(engine) == (
        "Engine(Linear with 10 parameters, SGD, fp16, loss scale 8, 1 updates, 0 skipped)"
    )


def test_engine_of_several_names_them() -> None:
    assert repr(pair()) == (
        "Engine({a: Linear, b: Linear} with 20 parameters, {a: SGD, b: SGD}, fp32, no loss scale,"
        " 0 updates, 0 skipped)"
    )


def test_shared_parameters_and_a_shared_scale_are_shown_once() -> None:
    model = linear()
    optimizers = {
        "w": torch.optim.SGD([model.weight], lr=1.0),
        "b": torch.optim.SGD([model.bias], lr=1.0),
    }
    models = {"x": model, "y": nn.Sequential(model)}
    engine = hs.Engine(models, optimizers, precision="fp16", loss_scale=2.0)
    assert "with 10 parameters" in repr(engine)
    assert repr(engine).count("loss scale 2") == 1


def test_line_of_an_engine_counts_no_lazy_parameter() -> None:
    model = nn.Sequential(nn.Linear(4, 2), nn.LazyLinear(2))
    engine = hs.Engine(model, sgd(model), precision="fp32")
    assert "Sequential with 10 parameters" in repr(engine)


@pytest.mark.usefixtures("kernel_decides")
def test_line_of_an_engine_settles_nothing() -> None:
    engine = hs.Engine(
        model := linear(), torch.optim.AdamW(model.parameters(), fused=True), precision="fp32"
    )
    engine.train_step([ONES], mean)  # makes the state, and is decided by the host
    engine.train_step([ONES], mean)
    assert "1 updates" in repr(engine)  # the host has not heard of the second step yet
    assert engine.num_updates == 2
    assert "2 updates" in repr(engine)


def test_line_of_an_engine_reads_no_scale_from_a_device() -> None:
    engine = single(precision="fp16", loss_scale=8.0)
    engine.loss_scale.to(torch.device("meta"))  # a read would raise there
    assert "loss scale on meta" in repr(engine)


# --- copies ---


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_copy_of_an_engine_is_refused(copied: Callable[[object], object]) -> None:
    text = (
        r"an Engine cannot be copied or pickled, .*: copy the model, make an optimizer for the"
        r" copy, build a new Engine and load engine.state_dict\(\) into it"
    )
    with pytest.raises(TypeError, match=text):
        copied(single())


def test_remedy_of_a_refused_copy_trains_on_bit_for_bit() -> None:
    torch.manual_seed(1)
    first = single(precision="fp16", loss_scale=hs.DynamicLossScale(2.0**8, growth_interval=2))
    for _ in range(3):
        first.train_step([ONES], mean)
    model = copy.deepcopy(first.model)
    optimizer = sgd(model)
    optimizer.load_state_dict(first.optimizer.state_dict())
    scale = hs.DynamicLossScale(2.0**8, growth_interval=2)
    second = hs.Engine(model, optimizer, precision="fp16", loss_scale=scale)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    ends = [engine.train_step([ONES], mean).record for engine in (first, second)]
    assert ends[0] == ends[1]
    for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("open_window", [False, True])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_model_and_optimizer_of_an_engine_can_be_copied(copied: Any, open_window: bool) -> None:
    engine = single()
    engine.train_step([ONES], mean)
    if open_window:
        engine.backward(mean(engine.model, ONES))
    model = copied(engine.model)
    assert torch.equal(model.weight, engine.model.weight)  # type: ignore[arg-type]
    assert copied(engine.optimizer).state_dict()["param_groups"][0]["lr"] == 0.5


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))])
def test_copy_of_a_loss_scale_goes_its_own_way(copied: Any) -> None:
    engine = single(precision="fp16", loss_scale=hs.DynamicLossScale(2.0**8))
    engine.train_step([ONES], mean)
    other = copied(engine.loss_scale)
    assert other.state_dict() == engine.loss_scale.state_dict()
    other.update(torch.tensor(1.0))
    assert (float(other.value), float(engine.loss_scale.value)) == (2.0**7, 2.0**8)


@pytest.mark.usefixtures("either_decides")
@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_copy_of_an_outcome_is_of_the_settled_step(copied: Any) -> None:
    model = linear()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    engine = hs.Engine(model, optimizer, precision="fp32", lost_updates=True)
    engine.train_step([ONES], mean)
    outcome = engine.train_step([ONES], mean)
    other = copied(outcome)
    assert type(other) is hs.StepOutcome
    assert other.record == outcome.record
    assert set(other.lost_updates) == {"weight", "bias"}


def test_copy_of_a_record_is_equal() -> None:
    record = pair_step().record
    assert pickle.loads(pickle.dumps(record)) == record == copy.deepcopy(record)
    assert dataclasses.replace(record) == record


def pair_step() -> hs.StepOutcome:
    engine = pair()
    return engine.train_step([ONES], lambda models, x: mean(models["a"], x) + mean(models["b"], x))


# --- keywords of other libraries ---


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(hs.BadTypeError) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize(
    ("keyword", "says"),
    [
        ("max_grad_norm", "Engine has no max_grad_norm; the setting is called max_norm."),
        ("grad_clip", "the setting is called max_norm."),
        ("clip_grad_norm", "the setting is called max_norm."),
        ("gradient_clip_val", "the setting is called max_norm."),
        (
            "gradient_accumulation_steps",
            "Engine has no gradient_accumulation_steps; the engine accumulates whatever a window"
            " holds: pass windows of n micro-batches (hs.micro_batches(loader, per_update=n)).",
        ),
        ("accumulate", "(hs.micro_batches(loader, per_update=n))."),
        ("amp_dtype", 'the setting is called precision ("fp16", "bf16", "fp32" or "auto").'),
        ("dtype", "the setting is called precision"),
        ("mixed_precision", "the setting is called precision"),
        ("fp16", 'write precision="fp16".'),
        ("bf16", 'write precision="bf16".'),
        ("scheduler", "the setting is called schedule."),
        ("lr_scheduler", "the setting is called schedule."),
        ("scaler", "replaces the GradScaler; its scale is set by loss_scale."),
        ("grad_scaler", "replaces the GradScaler"),
        ("ema_decay", "the setting is called ema."),
        ("init_scale", "loss_scale=hs.DynamicLossScale(init_scale=2**16)."),
        ("max_norms", "Engine has no max_norms; did you mean max_norm?"),
        ("diagnosis", "did you mean diagnose?"),
        ("zzz", "Engine has no zzz; its arguments are model, optimizer, precision, max_norm, clip"),
    ],
)
def test_unknown_keyword_of_the_engine_says_what_to_write(keyword: str, says: str) -> None:
    text = refusal(lambda: single(**{keyword: 1}))
    assert text.startswith(f"Engine has no {keyword}; ")
    assert says in text


RECIPE: dict[str, Any] = dict.fromkeys(
    ("model", "loss_fn", "batches", "optimizer"), lambda *_: None
)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: hs.fit(None, epochs=3), "fit has no epochs; steps counts updates"),  # type: ignore[call-arg, arg-type]
        (lambda: hs.fit(None, max_grad_norm=1), "fit has no max_grad_norm; .* called max_norm"),  # type: ignore[call-arg, arg-type]
        (
            lambda: hs.fit(None, gradient_accumulation_steps=1),  # type: ignore[call-arg, arg-type]
            "fit has no gradient_accumulation_steps; the setting is called accumulate",
        ),
        (lambda: hs.Recipe("a", **RECIPE, loader=1), "Recipe has no loader; .* called batches"),
        (lambda: hs.Recipe("a", **RECIPE, max_norm=1), "Recipe has no max_norm; give it to hs.fit"),
        (lambda: hs.Recipe("a", **RECIPE, units=1), "Recipe has no units; did you mean unit?"),
        (
            lambda: hs.GradScaler(scale_window=100),  # type: ignore[call-arg]
            "GradScaler has no scale_window; the setting is called growth_interval",
        ),
        (
            lambda: hs.GradScaler(max_grad_norm=1.0),  # type: ignore[call-arg]
            r"GradScaler has no max_grad_norm; call scaler.clip_grad_norm_\(optimizer, max_norm\)",
        ),
        (
            lambda: hs.DynamicLossScale(loss_scale=1.0),  # type: ignore[call-arg]
            "DynamicLossScale has no loss_scale; the setting is called init_scale",
        ),
        (
            lambda: hs.StaticLossScale(8.0, init_scale=1.0),  # type: ignore[call-arg]
            "StaticLossScale has no init_scale; the setting is called scale",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_unknown_keyword_elsewhere_says_what_to_write(call: Any, says: str) -> None:
    assert re.match(says, refusal(call))


@pytest.mark.parametrize(
    ("table", "owner"),
    [
        (other_names.ENGINE, hs.Engine),
        (other_names.FIT, hs.fit),
        (other_names.RECIPE, hs.Recipe),
        (OTHER_NAMES, hs.DynamicLossScale),
    ],
)
def test_other_names_lead_to_names_that_there_are(table: dict[str, str], owner: Any) -> None:
    known = inspect.signature(owner).parameters
    assert not set(table) & set(known)
    for hint in table.values():
        if found := re.match(r"the setting is called (\w+)", hint):
            assert found.group(1) in known


def test_signature_is_the_documented_one() -> None:
    assert list(inspect.signature(hs.Engine).parameters)[:4] == [
        "model",
        "optimizer",
        "precision",
        "max_norm",
    ]
    assert inspect.signature(hs.fit).return_annotation == "RunRecord"
    assert hs.fit.__name__ == "fit"


def test_missing_argument_stays_pythons_own_error() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'optimizer'"):
        hs.Engine(linear())  # type: ignore[call-arg]

"""A skipped window explains itself: which op, where, and whether the scale is to blame."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import halfstep as hs
from halfstep.records import StepRecord
from snapshots import differences, snapshot


class Squared(nn.Module):
    """Squares a large product: inf in FP16, fine in FP32."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.head = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.head(self.body(x).square()))


def make(model: nn.Module, precision: str = "fp16", **settings: Any) -> hs.Engine:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return hs.Engine(model, optimizer, precision=precision, diagnose="on_skip", **settings)


def mse(model: nn.Module, x: Tensor) -> Tensor:
    return F.mse_loss(model(x).float(), torch.ones(len(x), 1))


def diagnosis_of(outcome: hs.StepOutcome) -> hs.WindowDiagnosis:
    assert outcome.skipped
    assert outcome.diagnosis is not None
    return outcome.diagnosis


def test_overflow_in_the_forward_pass_is_named_and_no_scale_helps() -> None:
    torch.manual_seed(0)
    model = Squared()
    nn.init.constant_(model.body.weight, 100.0)
    found = diagnosis_of(make(model).train_step([torch.ones(4, 8)], mse))
    # 8 inputs of 1 times 100 are 800; their squares, 640000, are beyond 65504
    assert (found.verdict, found.op, found.phase) == ("never_finite", "aten.pow", "forward")
    assert (found.module, found.dtype) == ("Squared", "float16")
    assert found.largest_input == pytest.approx(800, rel=2**-8)
    assert found.finite_fraction == 0.0
    assert "NaN or inf at any loss scale; first in aten.pow in Squared" in str(found)


def test_search_of_the_scale_is_told_apart() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    outcome = make(model).train_step([torch.ones(4, 8)], lambda m, x: mse(m, x) * 50)
    found = diagnosis_of(outcome)
    assert (found.verdict, found.phase) == ("scale_searching", "backward")
    assert found.finite_at_scale is not None
    # oracle: a step at that scale commits, at four times of it it does not
    for scale, commits in ((found.finite_at_scale, True), (found.finite_at_scale * 4, False)):
        torch.manual_seed(0)
        fresh = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
        engine = hs.Engine(
            fresh, torch.optim.SGD(fresh.parameters(), lr=0.01), precision="fp16", loss_scale=scale
        )
        step = engine.train_step([torch.ones(4, 8)], lambda m, x: mse(m, x) * 50)
        assert step.updated is commits


def test_bad_batch_is_named_as_that() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
    x = torch.ones(4, 8)
    x[2, 3] = math.nan
    found = diagnosis_of(make(model, "fp32").train_step(hs.Window([torch.ones(4, 8), x]), mse))
    assert found.verdict == "bad_batch"
    text = "micro-batch 1, batch, sample 2, is not finite; first in aten.addmm in"
    assert str(found).startswith(text)


def test_nan_born_from_a_mask_of_minus_infinity_is_the_softmax() -> None:
    # a row that is masked as a whole: NaN in FP32 too, so it is no matter of precision
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.score = nn.Linear(8, 4)
            self.soft = nn.Softmax(dim=-1)

        def forward(self, x: Tensor) -> Tensor:
            mask = torch.zeros(4, 4)
            mask[1] = -math.inf
            return torch.as_tensor(self.soft(self.score(x) + mask).sum(1, keepdim=True))

    found = diagnosis_of(make(Masked(), "fp32").train_step([torch.ones(4, 8)], mse))
    assert (found.verdict, found.op) == ("never_finite", "aten._softmax")
    assert found.module == "Masked.soft"
    assert found.finite_fraction == 0.75


def test_replay_leaves_no_trace() -> None:
    # oracle: the same run without diagnosis, dropout and BatchNorm included
    def run(diagnose: str, buffers: str) -> list[Any]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        engine = hs.Engine(
            model, optimizer, precision="fp16", diagnose=diagnose, buffers=buffers, max_norm=1.0
        )
        for factor in (1.0, 1e6, 1.0, math.inf, 1.0):
            engine.train_step([torch.randn(4, 8)], lambda m, x, f=factor: mse(m, x) * f)
        return [*snapshot(model, optimizer, engine), torch.get_rng_state()]

    for buffers in ("keep", "rollback"):
        assert differences(run("never", buffers), run("on_skip", buffers)) == []


class CountOps(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_step_that_is_not_skipped_runs_the_same_ops() -> None:
    def ops(diagnose: str) -> list[str]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
        engine = hs.Engine(
            model, torch.optim.SGD(model.parameters(), lr=0.1), precision="bf16", diagnose=diagnose
        )
        engine.train_step([torch.ones(4, 8)], mse)
        with CountOps() as counter:
            assert engine.train_step(hs.Window([torch.ones(4, 8)] * 2), mse).updated
        return counter.names

    assert ops("on_skip") == ops("never")


def test_collapse_carries_the_diagnosis() -> None:
    model = Squared()
    nn.init.constant_(model.body.weight, 100.0)
    engine = make(model, loss_scale=hs.DynamicLossScale(max_consecutive_skips=2))
    engine.train_step([torch.ones(4, 8)], mse)
    with pytest.raises(hs.ScaleCollapse, match=r"Replayed: NaN or inf at any .*aten.pow") as caught:
        engine.train_step([torch.ones(4, 8)], mse)
    assert caught.value.record is not None
    assert caught.value.record.step == 2


def test_record_with_a_diagnosis_round_trips_through_json() -> None:
    model = Squared()
    nn.init.constant_(model.body.weight, 100.0)
    record = make(model).train_step([torch.ones(4, 8)], mse).record
    text = json.dumps(record.to_dict(), allow_nan=False)
    again = StepRecord.from_dict(json.loads(text))
    assert again.diagnosis == record.diagnosis
    assert again.to_dict() == record.to_dict()


def test_window_that_fails_once_only_is_said_to_be_not_reproduced() -> None:
    factors = iter([math.inf, 1.0])
    model = nn.Linear(8, 1)
    outcome = make(model, "fp32").train_step(
        [torch.ones(4, 8)], lambda m, x: mse(m, x) * next(factors)
    )
    assert diagnosis_of(outcome).verdict == "not_reproduced"


def power_loss(model: nn.Module, exponent: int) -> Tensor:
    """A loss whose FP16 gradient is 2^exponent times the loss scale: finite up to 2^15."""
    x = torch.full((1, 1), 2.0**-10)  # keeps the gradient of the weight small
    return model(x).float().sum() * 2.0**exponent


# the scale starts at 2^16 and is tried at every second power of two, below 1 at every one
@pytest.mark.parametrize(
    ("exponent", "finite_at", "verdict"),
    [
        (1, 2.0**14, "scale_searching"),
        (2, 2.0**12, "scale_searching"),
        (15, 2.0**0, "scale_searching"),
        (16, 2.0**-1, "loss_too_large"),
        (29, 2.0**-14, "loss_too_large"),
        (30, 2.0**-15, "loss_too_large"),
    ],
)
def test_largest_finite_scale_is_its_closed_form(
    exponent: int, finite_at: float, verdict: str
) -> None:
    engine = make(nn.Linear(1, 1, bias=False))
    found = diagnosis_of(engine.train_step([exponent], power_loss))
    assert (found.finite_at_scale, found.verdict) == (finite_at, verdict)


@pytest.mark.parametrize(("min_scale", "bits"), [(1.0, 5), (0.25, 3)])
def test_scale_below_the_floor_is_no_search_and_says_how_much_too_large_the_loss_is(
    min_scale: float, bits: int
) -> None:
    # closed form: the gradient is 2^20 times the scale, finite up to a scale of 2^-5
    engine = make(
        nn.Linear(1, 1, bias=False),
        loss_scale=hs.DynamicLossScale(init_scale=4.0, min_scale=min_scale),
    )
    text = str(diagnosis_of(engine.train_step([20], power_loss)))
    assert text.startswith(
        f"no loss scale above min_scale={min_scale:g} helps: the loss is 2^{bits} too large"
        " (finite at a scale of 2^-5); divide it, or allow a lower min_scale; first in"
    )


def test_floor_that_the_needed_scale_does_not_cross_leaves_a_search() -> None:
    scale = hs.DynamicLossScale(init_scale=4.0, min_scale=2.0**-10)
    engine = make(nn.Linear(1, 1, bias=False), loss_scale=scale)
    assert diagnosis_of(engine.train_step([20], power_loss)).verdict == "scale_searching"


def test_bad_batch_names_its_field_and_sample() -> None:
    good = {"x": torch.ones(4, 8), "y": torch.ones(4)}
    bad = {"x": torch.ones(4, 8), "y": torch.ones(4)}
    bad["x"][2, 5] = math.nan
    bad["x"][3, 0] = math.inf
    engine = make(nn.Linear(8, 1))
    outcome = engine.train_step([good, bad], lambda m, batch: mse(m, batch["x"]))
    found = diagnosis_of(outcome)
    assert (found.verdict, found.bad_samples) == ("bad_batch", (2, 3))
    assert found.bad_input == "micro-batch 1, batch['x']"
    assert str(found).startswith("micro-batch 1, batch['x'], samples 2, 3, is not finite; first")
    again = StepRecord.from_dict(json.loads(json.dumps(outcome.record.to_dict())))
    assert again.diagnosis == found


def test_replay_of_a_loss_sum_divides_as_the_window_did() -> None:
    # oracle: closed form; divided by 2^10 the gradient is 2^10 times the scale, finite up to 2^5
    engine = make(nn.Linear(1, 1, bias=False))
    outcome = engine.train_step([20], lambda model, e: hs.LossSum(power_loss(model, e), 1024))
    assert diagnosis_of(outcome).finite_at_scale == 2.0**4


def test_batch_that_holds_more_than_floats_is_replayed() -> None:
    class Labelled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(1, 1, bias=False)

        def forward(self, batch: dict[str, Any]) -> Tensor:
            return power_loss(self.body, int(batch["exponent"][0]))

    batch = {"source": "a.txt", "exponent": torch.tensor([9]), "weight": 0.5, "none": None}
    outcome = make(Labelled()).train_step([batch], lambda model, each: model(each))
    assert diagnosis_of(outcome).verdict == "scale_searching"


def test_replay_draws_the_random_numbers_of_the_window() -> None:
    # the first number of this seed is 0.985, the 39 after it are below 0.91
    def loss_fn(m: nn.Module, x: Tensor) -> Tensor:
        return mse(m, x) * (math.inf if float(torch.rand(())) > 0.95 else 1.0)

    engine = make(nn.Linear(8, 1), loss_scale=hs.DynamicLossScale(2.0**4))
    torch.manual_seed(27)
    found = diagnosis_of(engine.train_step([torch.ones(4, 8)], loss_fn))
    assert found.verdict == "never_finite"


def test_infinite_loss_with_finite_gradients_is_no_reason_to_go_on_searching() -> None:
    # the loss is inf at every scale by a constant; the gradients overflow at the first scale only
    def loss_fn(m: nn.Module, x: Tensor) -> Tensor:
        return m(x).float().sum() * 2.0**110 + math.inf

    model = nn.Linear(8, 1)
    found = diagnosis_of(
        make(model, "fp32", loss_scale=2.0**20).train_step([torch.ones(4, 8)], loss_fn)
    )
    assert (found.verdict, found.finite_at_scale) == ("scale_searching", 2.0**14)

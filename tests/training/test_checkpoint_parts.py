"""Parts of a checkpoint: what was asked for is loaded with a report, or nothing is changed."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import halfstep as hs
from optimizers import CASES, make_optimizer
from snapshots import differences, snapshot

SAVED = Path(__file__).parent / "saved"
X = torch.arange(20.0).reshape(5, 4) / 10


def build(optimizer: Any = torch.optim.SGD, wrap: Any = lambda m: m, **settings: Any) -> hs.Engine:
    """A model of its own seed; the engine that trains it."""
    torch.manual_seed(settings.pop("seed", 0))
    width = settings.pop("width", 3)
    model = wrap(nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.Linear(width, 1)))
    made = optimizer(model.parameters(), lr=settings.pop("lr", 0.1))
    if "gamma" in settings:
        gamma = settings.pop("gamma")
        settings["schedule"] = torch.optim.lr_scheduler.ExponentialLR(made, gamma)
    return hs.Engine(model, made, **{"precision": "fp32", **settings})


def momentum(parameters: Any, lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9)


def train(engine: hs.Engine, steps: int = 3) -> None:
    for number in range(steps):
        engine.train_step(
            [(X + number,)], lambda m, b: hs.LossSum(m(b[0]).float().square().sum(), 5)
        )


def trained(path: Path, *arguments: Any, **settings: Any) -> hs.Engine:
    engine = build(*arguments, **settings)
    train(engine)
    hs.save_checkpoint(path, engine, extra={"epoch": 3})
    return engine


def weights(engine: hs.Engine) -> list[Tensor]:
    return [value for _, value in sorted(engine.model.state_dict().items())]


def same_weights(left: hs.Engine, right: hs.Engine) -> bool:
    return all(map(torch.equal, weights(left), weights(right)))


def everything(engine: hs.Engine) -> list[Any]:
    return snapshot(engine.model, engine.optimizer, engine)


def refused(path: Path, engine: hs.Engine, text: str, **how: Any) -> None:
    """Loading is refused in one line, and nothing moves."""
    before, generator = everything(engine), torch.get_rng_state()
    with pytest.raises(ValueError, match=text) as caught:
        hs.load_checkpoint(path, engine, **how)
    assert "\n" not in str(caught.value)
    assert differences(before, everything(engine)) == []
    assert torch.equal(generator, torch.get_rng_state())


def test_weights_alone_move_nothing_else(tmp_path: Path) -> None:
    saved = trained(tmp_path / "run.pt", momentum, ema=0.5)
    engine = build(torch.optim.AdamW, seed=1, lr=0.01)
    before = everything(engine)[1:]
    found = hs.load_checkpoint(tmp_path / "run.pt", engine, parts="model")
    assert same_weights(saved, engine)
    assert differences(before, everything(engine)[1:]) == []
    assert found == {"epoch": 3}
    assert found.report.loaded == ["model"]
    assert set(found.report.left_out) == {
        "optimizer",
        "schedule",
        "loss_scale",
        "average",
        "counters",
        "rng",
    }


def test_fp16_goes_on_in_bf16_without_its_scale(tmp_path: Path) -> None:
    saved = trained(tmp_path / "run.pt", momentum, precision="fp16", gamma=0.5)
    engine = build(momentum, precision="bf16", gamma=0.5, seed=1)
    refused(tmp_path / "run.pt", engine, r"uses no loss scale.*without='loss_scale'")
    hs.load_checkpoint(tmp_path / "run.pt", engine, without="loss_scale")
    assert same_weights(saved, engine)
    assert differences(snapshot(saved.optimizer), snapshot(engine.optimizer)) == []
    assert (engine.num_updates, engine.consumed) == (saved.num_updates, saved.consumed)
    train(engine, 1)


def test_average_that_is_left_out_starts_again_from_the_weights(tmp_path: Path) -> None:
    trained(tmp_path / "run.pt", ema=0.5)
    without = build(seed=1)
    refused(tmp_path / "run.pt", without, "with an average of the weights.*without='average'")
    hs.load_checkpoint(tmp_path / "run.pt", without, without="average")
    engine = build(seed=1, ema=0.5)
    train(engine, 1)
    found = hs.load_checkpoint(tmp_path / "run.pt", engine, without=("average", "rng"))
    assert engine.ema is not None
    averaged = engine.ema.module.state_dict()
    assert all(torch.equal(averaged[k], v) for k, v in engine.model.state_dict().items())
    assert found.report.notes == ["the average of the weights starts again from those loaded"]


def test_checkpoint_without_an_average_loads_without_it(tmp_path: Path) -> None:
    saved = trained(tmp_path / "run.pt")
    engine = build(ema=0.5, seed=1)
    refused(tmp_path / "run.pt", engine, "saved without an average.*without='average'")
    hs.load_checkpoint(tmp_path / "run.pt", engine, without="average")
    assert same_weights(saved, engine)


def test_rates_stay_where_the_schedule_is_left_out(tmp_path: Path) -> None:
    trained(tmp_path / "run.pt", momentum, gamma=0.5)
    engine = build(momentum, lr=0.03)
    hs.load_checkpoint(tmp_path / "run.pt", engine, without="schedule")
    assert engine.optimizer.param_groups[0]["lr"] == 0.03
    state = engine.optimizer.state_dict()["state"]
    assert len(state) == 6  # the momentum came


def test_token_schedule_of_another_rate_starts_from_the_new_one(tmp_path: Path) -> None:
    half = hs.TokenSchedule(lambda consumed: 0.5 if consumed else 1.0)
    trained(tmp_path / "run.pt", momentum, schedule=half)
    engine = build(momentum, lr=0.02, schedule=half)
    hs.load_checkpoint(tmp_path / "run.pt", engine, without=("schedule", "counters"))
    assert engine.optimizer.param_groups[0]["lr"] == 0.02
    train(engine, 1)
    assert engine.optimizer.param_groups[0]["lr"] == 0.01


def test_schedule_without_its_optimizer_brings_its_rate(tmp_path: Path) -> None:
    trained(tmp_path / "run.pt", momentum, gamma=0.5)
    engine = build(torch.optim.AdamW, gamma=0.5, lr=1.0)
    hs.load_checkpoint(tmp_path / "run.pt", engine, without="optimizer")
    assert engine.optimizer.param_groups[0]["lr"] == 0.1 * 0.5**3
    train(engine, 1)
    assert engine.optimizer.param_groups[0]["lr"] == 0.1 * 0.5**4


OTHERS = {
    "momentum into AdamW": (momentum, torch.optim.AdamW, "is of SGD, this engine has AdamW"),
    "Adam into AdamW": (torch.optim.Adam, torch.optim.AdamW, "is of Adam, this engine has AdamW"),
    "AdamW into SGD": (torch.optim.AdamW, torch.optim.SGD, "is of AdamW, this engine has SGD"),
    "RAdam into NAdam": (torch.optim.RAdam, torch.optim.NAdam, "is of RAdam, this engine has"),
}


@pytest.mark.parametrize("has_facts", [True, False], ids=["class saved", "earlier checkpoint"])
@pytest.mark.parametrize("case", list(OTHERS)[:3])
def test_state_of_another_optimizer_is_refused_whole(
    case: str, has_facts: bool, tmp_path: Path
) -> None:
    there, here, text = OTHERS[case]
    trained(tmp_path / "run.pt", there)
    if not has_facts:
        content = torch.load(tmp_path / "run.pt", weights_only=True)
        del content["optimizer_facts"]
        torch.save(content, tmp_path / "run.pt")
        text = "so that it is of another class than|has decoupled_weight_decay=False"
    engine = build(here, seed=1)
    refused(tmp_path / "run.pt", engine, f"({text}).*without='optimizer'")
    found = hs.load_checkpoint(tmp_path / "run.pt", engine, strict=False)
    assert "optimizer" not in found.report.loaded
    assert set(found.report.left_out) == {"optimizer"}
    train(engine, 1)


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_every_optimizer_loads_its_own_state_of_an_earlier_checkpoint(
    case: tuple[str, str], tmp_path: Path
) -> None:
    def make(parameters: Any, lr: float) -> torch.optim.Optimizer:
        return make_optimizer(case, parameters)

    saved = trained(tmp_path / "run.pt", make)
    content = torch.load(tmp_path / "run.pt", weights_only=True)
    del content["optimizer_facts"]
    torch.save(content, tmp_path / "run.pt")
    engine = build(make, seed=1)
    hs.load_checkpoint(tmp_path / "run.pt", engine)
    assert differences(snapshot(saved.optimizer), snapshot(engine.optimizer)) == []


def test_parameters_in_another_order_are_refused(tmp_path: Path) -> None:
    def backwards(parameters: Any, lr: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(list(parameters)[::-1], lr=lr, momentum=0.9)

    trained(tmp_path / "run.pt", momentum)
    text = "has 'model.0.weight' where this engine's has 'model.2.bias': the order is another"
    refused(tmp_path / "run.pt", build(backwards), text)


def test_another_width_is_refused_and_fits_in_part(tmp_path: Path) -> None:
    saved = trained(tmp_path / "run.pt", momentum)
    engine = build(momentum, width=5, seed=1)
    refused(tmp_path / "run.pt", engine, r"0.weight has the shape \(3, 4\) there and \(5, 4\) here")
    found = hs.load_checkpoint(tmp_path / "run.pt", engine, strict=False)
    assert torch.equal(engine.model.get_parameter("2.bias"), saved.model.get_parameter("2.bias"))
    assert found.report.left_out["model: 0.weight"].startswith("has the shape (3, 4)")
    assert (
        "is for model.0.weight of shape (3, 4), here it has (5, 4)"
        in found.report.left_out["optimizer"]
    )
    assert found.report.loaded == ["model", "schedule", "loss_scale", "average", "counters", "rng"]
    train(engine, 1)


def test_nothing_that_fits_is_refused_with_strict_false_too(tmp_path: Path) -> None:
    trained(tmp_path / "run.pt")
    model = nn.Embedding(3, 2)
    engine = hs.Engine(model, torch.optim.SGD(model.parameters(), lr=1.0), precision="fp32")
    refused(
        tmp_path / "run.pt",
        engine,
        "nothing that was asked for does .model: no entry of",
        parts="model",
        strict=False,
    )


def compiled(model: nn.Module) -> Any:
    return torch.compile(model, backend="eager")


class Wrapped(nn.Module):
    """As DistributedDataParallel holds a model."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Any:
        return self.module(x)


@pytest.mark.parametrize(
    ("there", "here"),
    [
        (compiled, nn.Sequential),
        (nn.Sequential, compiled),
        (Wrapped, compiled),
        (compiled, Wrapped),
        (lambda m: Wrapped(compiled(m)), compiled),
    ],
    ids=["compiled-plain", "plain-compiled", "wrapped-compiled", "compiled-wrapped", "both-one"],
)
def test_prefixes_of_wrappers_are_matched(there: Any, here: Any, tmp_path: Path) -> None:
    # nn.Sequential(m) puts "0." before each name; plain models are made by the identity
    there, here = ((lambda m: m) if wrap is nn.Sequential else wrap for wrap in (there, here))
    saved = trained(tmp_path / "run.pt", momentum, wrap=there, ema=0.5)
    engine = build(momentum, wrap=here, ema=0.5, seed=1)
    found = hs.load_checkpoint(tmp_path / "run.pt", engine)
    assert same_weights(saved, engine)
    assert differences(snapshot(saved.optimizer), snapshot(engine.optimizer)) == []
    assert any("matched without the prefix" in note for note in found.report.notes)
    average, wanted = engine.ema, saved.ema
    assert average is not None
    assert wanted is not None
    pairs = zip(average.parameters(), wanted.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_weights_of_another_dtype_are_cast_with_a_note(tmp_path: Path) -> None:
    trained(tmp_path / "run.pt")
    engine = build(wrap=lambda m: m.double())
    found = hs.load_checkpoint(tmp_path / "run.pt", engine, parts="model")
    assert found.report.notes == ["8 entries were cast from float32 to float64"]


@pytest.mark.parametrize(
    ("how", "error", "text"),
    [
        ({"parts": "weights"}, ValueError, "has the parts model, optimizer, .*got 'weights'"),
        ({"without": ["scaler"]}, ValueError, "got 'scaler' in without"),
        ({"parts": 3}, TypeError, "parts must be names of parts, got int"),
        ({"parts": "model", "without": "model"}, ValueError, "no part .* is left to load"),
    ],
)
def test_unknown_parts_are_refused(
    how: dict[str, Any], error: type[Exception], text: str, tmp_path: Path
) -> None:
    trained(tmp_path / "run.pt")
    with pytest.raises(error, match=text):
        hs.load_checkpoint(tmp_path / "run.pt", build(), **how)


def test_other_number_of_conditions_is_refused(tmp_path: Path) -> None:
    trained(tmp_path / "run.pt", veto=hs.veto.norm_spike(6))
    refused(tmp_path / "run.pt", build(), r"with 1 conditions .* has 0.*without='counters'")


class Moody(torch.optim.SGD):
    """Raises after it has taken the state."""

    def load_state_dict(self, state_dict: Any) -> None:
        super().load_state_dict(state_dict)
        if self.param_groups[0]["lr"] != 7.0:
            raise RuntimeError("not today")


def test_load_that_raises_halfway_changes_nothing(tmp_path: Path) -> None:
    trained(tmp_path / "run.pt", Moody, ema=0.5)
    engine = build(Moody, lr=7.0, ema=0.5, seed=1)
    before, generator = everything(engine), torch.get_rng_state()
    with pytest.raises(RuntimeError, match="not today"):
        hs.load_checkpoint(tmp_path / "run.pt", engine)
    assert differences(before, everything(engine)) == []
    assert torch.equal(generator, torch.get_rng_state())


def test_report_is_plain_data_and_text(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trained(tmp_path / "run.pt", momentum)
    found = hs.load_checkpoint(tmp_path / "run.pt", build(width=5), strict=False)
    assert found.report.to_dict() == {
        "loaded": found.report.loaded,
        "left_out": found.report.left_out,
        "notes": [],
    }
    assert "loaded: model, schedule" in str(found.report)
    assert "left out: optimizer (" in str(found.report)
    said = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
    assert len(said) == len(found.report.left_out)


def test_checkpoint_of_the_first_version_2_writer_loads() -> None:
    # written before kinds of loss scales and classes of optimizers were saved; the values are those
    # that the run printed
    engine = build(
        momentum,
        gamma=0.5,
        ema=0.5,
        precision="fp16",
        loss_scale=hs.DynamicLossScale(2.0**9, growth_interval=5),
        max_norm=1.0,
    )
    found = hs.load_checkpoint(SAVED / "version-2.pt", engine)
    assert found == {"epoch": 3}
    assert engine.optimizer.param_groups[0]["lr"] == 0.0125
    assert (engine.num_updates, engine.num_skipped, engine.consumed) == (3, 1, 15.0)
    scale = engine.loss_scale.state_dict()
    assert (scale["scale"], scale["_growth_tracker"]) == (2048.0, 2)
    row = [-0.003743194043636322, 0.26822203397750854, -0.4115223288536072, -0.367969274520874]
    weight = engine.model.get_parameter("0.weight")
    assert weight[0].tolist() == row
    assert engine.ema is not None
    assert engine.ema.n_averaged.item() == 3
    moment = engine.optimizer.state[weight]["momentum_buffer"][0, 0].item()
    assert moment == -1.0112541986018186e-06
    train(engine, 1)


def test_torn_engine_is_whole_again_after_a_load(tmp_path: Path) -> None:
    engine = trained(tmp_path / "run.pt")
    wanted = copy.deepcopy(everything(engine))
    train(engine, 2)
    engine._update._is_torn = True
    hs.load_checkpoint(tmp_path / "run.pt", engine)
    assert differences(wanted, everything(engine)) == []
    train(engine, 1)

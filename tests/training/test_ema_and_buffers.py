"""Averages move on committed updates only; buffers come back after a skip if asked to."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import halfstep as hs
from halfstep.training.followers.buffers import BufferRollback
from snapshots import differences, snapshot

EPS = torch.finfo(torch.float32).eps


def make(**settings: object) -> tuple[nn.Module, hs.Engine]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, hs.Engine(model, optimizer, precision="fp32", **settings)  # type: ignore[arg-type]


def batch(factor: float = 1.0) -> Tensor:
    return torch.randn(16, 4, generator=torch.Generator().manual_seed(0)) * factor


def loss_fn(model: nn.Module, x: Tensor) -> Tensor:
    loss: Tensor = model(x).square().mean()
    return loss


def test_ema_follows_the_closed_form_over_committed_updates() -> None:
    # oracle: e <- 0.9 e + 0.1 w in float64, by hand, starting from the first committed weights
    model, engine = make(ema=0.9)
    expected: list[Tensor] = []
    for factor in (1.0, 2.0, math.nan, 1.0, math.inf, 3.0):
        outcome = engine.train_step([batch(factor)], loss_fn)
        weights = [p.detach().double() for p in model.parameters()]
        if outcome.updated:
            pairs = zip(expected or weights, weights, strict=True)
            expected = [0.9 * e + 0.1 * w for e, w in pairs]
    assert engine.ema is not None
    for found, wanted in zip(engine.ema.parameters(), expected, strict=True):
        assert (found.detach() - wanted).abs().max() <= 16 * EPS
    assert int(engine.ema.n_averaged) == engine.num_updates == 4


def test_averaged_model_of_the_user_is_used() -> None:
    model, _ = make()
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    engine = hs.Engine(
        model, torch.optim.SGD(model.parameters(), lr=0.1), precision="fp32", ema=averaged
    )
    engine.train_step([batch()], loss_fn)
    assert engine.ema is averaged
    assert int(averaged.n_averaged) == 1


def test_skip_moves_no_bit_of_the_average() -> None:
    _, engine = make(ema=0.9)
    engine.train_step([batch()], loss_fn)
    assert engine.ema is not None
    before = snapshot(engine.ema)
    assert engine.train_step([batch(math.nan)], loss_fn).skipped
    assert differences(before, snapshot(engine.ema)) == []


def test_state_with_an_average_round_trips() -> None:
    straight, engine = make(ema=0.9)
    for _ in range(3):
        engine.train_step([batch()], loss_fn)
    saved = snapshot(straight, engine.optimizer, engine)
    resumed, other = make(ema=0.9)
    for owner, state in zip((resumed, other.optimizer, other), saved, strict=True):
        owner.load_state_dict(state)
    for both in (engine, other):
        both.train_step([batch()], loss_fn)
    assert differences(snapshot(engine), snapshot(other)) == []
    with pytest.raises(
        ValueError, match="saved with an average of the weights, this engine has none"
    ):
        make()[1].load_state_dict(saved[2])


@pytest.mark.parametrize(
    ("ema", "message"), [(1.0, "between 0 and 1"), (0, "between 0 and 1"), ("0.9", "got str")]
)
def test_ema_that_cannot_be_is_refused(ema: object, message: str) -> None:
    with pytest.raises(hs.HalfstepError, match=message):
        make(ema=ema)


def buffers_of(model: nn.Module) -> list[Tensor]:
    return [buffer.detach().clone() for buffer in model.buffers()]


def test_kept_buffers_hold_the_nan_of_a_skipped_window() -> None:
    model, engine = make(buffers="keep")
    assert engine.train_step([batch(math.nan)], loss_fn).skipped
    assert any(bool(buffer.isnan().any()) for buffer in model.buffers())


@pytest.mark.parametrize("by_hand", [False, True])
@pytest.mark.parametrize("steps_before", [0, 2])
def test_rolled_back_buffers_are_those_before_the_window(by_hand: bool, steps_before: int) -> None:
    model, engine = make(buffers="rollback")
    for _ in range(steps_before):
        engine.train_step([batch()], loss_fn)
    before = buffers_of(model)
    window = hs.Window([batch(), batch(math.nan)])
    if by_hand:
        for x in window:
            with engine.autocast():
                loss = loss_fn(model, x)
            engine.backward(loss)
        assert engine.step().skipped
    else:
        assert engine.train_step(window, loss_fn).skipped
    assert differences(before, buffers_of(model)) == []


def test_rolled_back_buffers_move_on_an_update() -> None:
    results = []
    for buffers in ("keep", "rollback"):
        model, engine = make(buffers=buffers)
        for _ in range(3):
            engine.train_step(hs.Window([batch(), batch(2.0)]), loss_fn)
        results.append(snapshot(model))
    assert differences(results[0], results[1]) == []


def test_rolled_back_buffers_come_back_after_an_exception() -> None:
    model, engine = make(buffers="rollback")
    before = buffers_of(model)

    def broken(m: nn.Module, x: Tensor) -> Tensor:
        loss_fn(m, x)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        engine.train_step([batch()], broken)
    assert differences(before, buffers_of(model)) == []


def test_rolled_back_buffers_come_back_when_the_step_itself_fails() -> None:
    def broken(params: list[Tensor]) -> None:
        raise ZeroDivisionError

    model, engine = make(buffers="rollback", clip=broken)
    before = buffers_of(model)
    with pytest.raises(ZeroDivisionError):
        engine.train_step([batch()], loss_fn)
    assert differences(before, buffers_of(model)) == []


def test_rolled_back_buffers_are_those_before_the_first_of_several_forwards() -> None:
    # two forwards before one backward, as contrastive losses make them
    model, engine = make(buffers="rollback")
    before = buffers_of(model)
    with engine.autocast():
        first = loss_fn(model, batch(2.0))
    with engine.autocast():
        second = loss_fn(model, batch(math.nan))
    engine.backward(first + second)
    assert engine.step().skipped
    assert differences(before, buffers_of(model)) == []


def test_buffers_are_copied_once_per_window(monkeypatch: pytest.MonkeyPatch) -> None:
    copies: list[int] = []
    remember = BufferRollback.remember
    monkeypatch.setattr(
        BufferRollback, "remember", lambda self: (copies.append(1), remember(self))[1]
    )
    _, engine = make(buffers="rollback")
    for number in (1, 2):
        engine.train_step(hs.Window([batch(), batch()]), loss_fn)
        assert len(copies) == number


def test_abort_between_windows_leaves_the_buffers_of_the_last_update() -> None:
    model, engine = make(buffers="rollback")
    engine.train_step([batch()], loss_fn)
    before = buffers_of(model)
    engine.abort()
    assert differences(before, buffers_of(model)) == []


def test_rollback_keeps_what_was_loaded_between_windows() -> None:
    model, engine = make(buffers="rollback")
    engine.train_step([batch()], loss_fn)
    other = make()[0]
    other(batch(5.0))
    model.load_state_dict(other.state_dict())
    before = buffers_of(model)
    assert engine.train_step([batch(math.nan)], loss_fn).skipped
    assert differences(before, buffers_of(model)) == []


def test_buffers_setting_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="buffers must be 'keep' or 'rollback'"):
        make(buffers="restore")


@pytest.mark.parametrize("comes_back", [False, True])
def test_buffers_come_back_by_the_flag_of_a_device(comes_back: bool) -> None:
    model = nn.BatchNorm1d(4)
    rollback = BufferRollback(model)
    before = buffers_of(model)
    rollback.remember()
    model(batch())
    moved = buffers_of(model)
    rollback.restore(torch.tensor(float(comes_back)))
    assert differences(before if comes_back else moved, buffers_of(model)) == []


@pytest.mark.usefixtures("kernel_decides")
@pytest.mark.parametrize("factor", [1.0, math.nan])
def test_rolled_back_buffers_follow_what_the_kernel_decides(factor: float) -> None:
    # oracle: a forward pass of an equal model
    model, engine = make(buffers="rollback")
    twin = make()[0]
    if not math.isnan(factor):
        twin(batch(factor))
    outcome = engine.train_step([batch(factor)], loss_fn)
    assert differences(buffers_of(twin), buffers_of(model)) == []  # before anybody looks
    assert outcome.skipped is math.isnan(factor)


def test_rolled_back_buffers_are_those_after_a_forward_of_the_users_own() -> None:
    model, engine = make(buffers="rollback")
    with engine.autocast():
        loss_fn(model, batch(3.0))  # no backward: it belongs to no window
    before = buffers_of(model)
    assert engine.train_step([batch(math.nan)], loss_fn).skipped
    assert differences(before, buffers_of(model)) == []

"""Numbers from a device: side by side in one tensor, each in its place afterwards."""

from __future__ import annotations

import torch

from emulated import emulated_device, on_device
from halfstep.update.readback import LateNumbers, any_of, read_now, side_by_side


def test_numbers_of_all_kinds_come_back_in_their_places_in_one_wait() -> None:
    with emulated_device() as counts:
        single = on_device(torch.tensor(2.5))
        values = [
            1.0,
            single,
            on_device(torch.tensor(1 / 3, dtype=torch.float64)),
            on_device(torch.tensor(True)),
            7,
            on_device(torch.tensor(2**40 + 1)),
            torch.tensor(0.1),
            single,
            on_device(torch.tensor(0.5, dtype=torch.bfloat16)),
        ]
        expected = [1.0, 2.5, 1 / 3, 1.0, 7.0, 2.0**40 + 1, float(torch.tensor(0.1)), 2.5, 0.5]
        late = LateNumbers(values)
        assert counts.waits == []
        assert late.wait() == expected
        assert counts.waits == []
        assert [wait.kind for wait in counts.events] == ["event"]
        counts.clear()
        assert read_now(values) == expected
        assert [wait.kind for wait in counts.waits] == ["tolist"]


def test_late_numbers_are_those_of_their_time() -> None:
    # the optimizer's schedule and the loss scale write to their tensors before anybody waits
    with emulated_device():
        for count in (1, 2):
            moving = [on_device(torch.tensor(float(i))) for i in range(count)]
            late = LateNumbers(moving)
            for value in moving:
                value.fill_(9.0)
            assert late.wait() == [float(i) for i in range(count)]


def test_any_of_numbers_and_flags_launches_only_where_a_flag_decides() -> None:
    with emulated_device() as counts:
        flag, other = on_device(torch.tensor(0.0)), on_device(torch.tensor(True))
        assert any_of([flag, 1.0]) == 1.0
        assert any_of([0.0, 0]) == 0.0
        assert any_of([0.0, flag]) is flag
        assert sum(counts.ops.values()) == 0
        both = any_of([flag, other])
        assert isinstance(both, torch.Tensor)
        assert both.tolist() == 1.0


def test_side_by_side_of_equal_numbers_is_one_number() -> None:
    host = torch.device("cpu")
    assert side_by_side([2.0, 2.0], host) == 2.0
    tensor = torch.ones((), dtype=torch.float64)
    same = side_by_side([tensor, tensor], host)
    assert isinstance(same, torch.Tensor)
    assert same.dim() == 0
    mixed = side_by_side([2.0, tensor], host)
    assert isinstance(mixed, torch.Tensor)
    assert mixed.tolist() == [2.0, 1.0]

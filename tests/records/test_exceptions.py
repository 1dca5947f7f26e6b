"""The exception family: built-in kinds, pickling, texts."""

from __future__ import annotations

import pickle

import pytest

from halfstep import HalfstepError, NonFiniteGradientError, ScaleCollapse
from halfstep.records import (
    BadTypeError,
    BadValueError,
    CallOrderError,
    RecipeError,
    UnsupportedTorchError,
)

KINDS: list[tuple[HalfstepError, type[Exception]]] = [
    (BadValueError("text"), ValueError),
    (BadTypeError("text"), TypeError),
    (CallOrderError("text"), RuntimeError),
    (RecipeError("text"), ValueError),
    (UnsupportedTorchError("text"), ImportError),
    (NonFiniteGradientError("text", ["head.weight", "bias"]), ArithmeticError),
    (ScaleCollapse(3, [4.0, 2.0, 1.0], ["head.weight"]), RuntimeError),
]


@pytest.mark.parametrize(("error", "kind"), KINDS, ids=lambda x: type(x).__name__)
def test_error_is_caught_as_the_builtin_and_as_ours(
    error: HalfstepError, kind: type[Exception]
) -> None:
    with pytest.raises(kind):
        raise error
    with pytest.raises(HalfstepError):
        raise error


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize(("error", "kind"), KINDS, ids=lambda x: type(x).__name__)
def test_error_through_pickle_keeps_type_text_and_attributes(
    error: HalfstepError, kind: type[Exception], protocol: int
) -> None:
    back = pickle.loads(pickle.dumps(error, protocol))
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert vars(back) == vars(error)


def test_non_finite_gradient_error_names_its_parameters() -> None:
    error = NonFiniteGradientError("text", ["b", "a"])
    assert (str(error), error.parameters) == ("text", ("b", "a"))


def test_collapse_over_several_scales_tells_first_and_last() -> None:
    text = str(ScaleCollapse(3, [4.0, 2.0, 1.0]))
    assert text.startswith(
        "3 updates in a row were skipped because of non-finite gradients, while the loss scale"
        " went from 4 to 1."
    )


def test_collapse_at_one_scale_tells_it_once() -> None:
    text = str(ScaleCollapse(50, [1.0] * 50))
    assert text.startswith(
        "50 updates in a row were skipped because of non-finite gradients at loss scale 1."
    )


def test_collapse_without_scales_does_not_speak_of_them() -> None:
    text = str(ScaleCollapse(50))
    assert text.startswith("50 updates in a row were skipped because of non-finite gradients. ")


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (1, "Non-finite gradient in p0. "),
        (3, "Non-finite gradient in p0, p1, p2. "),
        (5, "Non-finite gradient in p0, p1, p2 and 2 more. "),
    ],
)
def test_collapse_names_at_most_three_parameters(count: int, shown: str) -> None:
    assert shown in str(ScaleCollapse(2, [1.0], [f"p{n}" for n in range(count)]))


def test_collapse_says_what_to_try_in_order() -> None:
    # R32: data first, then numerical stability
    text = str(ScaleCollapse(2, [65536.0, 32768.0]))
    order = ["Look at the batch", "learning rate", "batch in FP32", "overflows in FP32", "BF16"]
    places = [text.find(words) for words in order]
    assert -1 not in places
    assert places == sorted(places)


def test_collapse_without_a_loss_scale_does_not_speak_of_fp32_or_bf16() -> None:
    text = str(ScaleCollapse(2, [1.0, 1.0]))
    assert "Look at the batch first" in text
    assert "FP32" not in text
    assert "BF16" not in text

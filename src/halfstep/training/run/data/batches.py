"""Where the batches of a run come from, and the position in them that a checkpoint keeps.

One pass is one iteration over what `Recipe.batches` returned. A position is: the passes finished,
the batches drawn in this one, and the state of every random generator at the start of this pass
and now. From the start of a pass its order follows, so that a resumed run draws and drops this
pass's batches at most; an object with a `state_dict` of its own (torchdata's StatefulDataLoader)
goes there by itself.
"""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter

from halfstep.records import BadValueError, RecipeError
from halfstep.training.run.data.checksum import data_checksum
from halfstep.training.run.data.generators import Generators, parts_of, single_pass_from_outside
from halfstep.training.run.data.stream import DataStream
from halfstep.training.run.recipe import Recipe

logger = logging.getLogger("halfstep")

END = object()
_REMEDY = "make it inside batches(), which is called once per pass then"


class Batches:
    """The batches of a recipe without end, pass after pass, on the host.

    What `batches()` returns is iterated again for every pass. An iterator can be used once, so
    `batches()` is called again for the next pass then.

    Args:
        recipe: Whose batches.
        seed: Of the run; the order of a shuffled loader without a generator of its own.
        as_before: Go on as a checkpoint without a data state demands: `batches()` is called for
            every pass and draws from the global generators.

    Attributes:
        passes: How many are finished.
        drawn: Batches drawn in the present one.
        checksum: Of the content of the last one; empty before the first.

    Raises:
        RecipeError: `batches()` returns nothing to iterate, or an iterator that was made outside.
    """

    def __init__(self, recipe: Recipe, seed: int, *, as_before: bool = False) -> None:
        self._recipe = recipe
        self._as_before = as_before
        self._stream = DataStream(seed)
        self.passes = 0
        self.drawn = 0
        self.checksum = ""
        self._iterator: Iterator[Any] | None = None
        self._first_digest: str | None = None
        self._is_fresh = True
        self._has_warned = False
        self._repeats = True  # as far as is known
        _refuse_single_pass(recipe)
        self._outside = Generators(recipe.batches, None)
        self._origin = {"stream": self._stream.state(), "generators": self._outside.state()}
        self._source = self._make()
        self._is_single = as_before or _is_iterator(self._source)
        self._is_unused = True  # so that the first pass over an iterator is over this one
        self._pass_start = self._random_state()
        self._refuse_same_iterator()
        self._warn_about_workers()

    def next(self) -> Any:
        """The next batch, of the next pass if this one is over.

        Raises:
            RecipeError: A pass without a batch.
        """
        while (batch := self.next_of_pass()) is END:
            if not self.drawn:
                raise RecipeError(self._nothing())
            self.passes, self.drawn, self._iterator = self.passes + 1, 0, None
        return batch

    def next_of_pass(self) -> Any:
        """The next batch of this pass, or `END`."""
        if self._iterator is None:
            self._begin_pass()
        batch = self._draw()
        if batch is not END:
            self.drawn += 1
            self.checksum = data_checksum(batch)
            if self._is_fresh and self._first_digest is None:
                self._first_digest = self.checksum
        return batch

    def state(self) -> dict[str, Any] | None:
        """The position, as plain data and tensors; ``None`` where only the count is known."""
        if self._as_before:
            return None
        return {
            "passes": self.passes,
            "drawn": self.drawn,
            "checksum": self.checksum,
            "repeats": self._repeats,
            "pass_start": self._pass_start,
            "now": self._random_state(),
            "source": self._own_state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go to where `state` was taken, from a fresh object.

        Args:
            state: From `state`.

        Raises:
            BadValueError: This pass has fewer batches than were drawn of it, or another one where
                the run that wrote the checkpoint drew its last.
        """
        self._is_fresh = False
        self._repeats = state.get("repeats", True)
        self.passes = state["passes"]
        self._is_unused = not self.passes
        own = state["source"] if _has_state(self._source) else None
        if state["drawn"]:
            self._set_random_state(state["pass_start"])
            self._begin_pass(own)
            batch = END
            for count in range(state["drawn"] if own is None else 0):
                if (batch := self._draw()) is END:
                    raise BadValueError(
                        f"a pass over the batches of recipe {self._recipe.name!r} ends after"
                        f" {count}, the checkpoint was saved after {state['drawn']} of one; resume"
                        " with the data of that run."
                    )
            self.drawn = state["drawn"]
            if batch is not END:
                self._compare(data_checksum(batch), state.get("checksum"))
        self._set_random_state(state["now"])

    def _compare(self, found: str, saved: str | None) -> None:
        """Whether the batch drawn last is that of the run that wrote the checkpoint."""
        if not saved or found == saved:
            return
        text = (
            f"batch {self.drawn} of pass {self.passes + 1} of recipe {self._recipe.name!r} is"
            " another one than in the run that wrote the checkpoint"
        )
        if not self._repeats:  # said when it was saved, and a run that stopped has to go on
            logger.warning("%s: the run goes on with other data than a straight one", text)
            return
        raise BadValueError(
            f"{text}: the data or its order has changed. Resume with that run's data, in an order"
            " from a generator that is seeded inside batches(), or start a new run."
        )

    def skip(self, count: int) -> None:
        """Draw and drop."""
        self._is_fresh = False
        for _ in range(count):
            self.next()

    def why_not_resumable(self) -> str | None:
        """Why a checkpoint cannot hold the position, in one sentence, if that can be found.

        A second call of `batches()` must give the first batch again; not tried with workers.
        """
        if (path := self._generators.without_state()) is not None:
            reason: str | None = f"{path} draws from the operating system, which never repeats"
        elif self._is_fresh and not self._as_before:
            reason = self._how_second_call_differs()
        else:
            reason = None
        self._repeats &= reason is None
        return reason and f"the data of this run cannot be resumed: {reason}."

    def close(self) -> None:
        """Leave generators and workers that were made outside as they were found."""
        self._iterator = None
        _end_workers(self._source)
        if not self._as_before:
            self._outside.set_state(self._origin["generators"])

    def _drawing(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self._as_before else self._stream.active()

    def _draw(self) -> Any:
        assert self._iterator is not None
        with self._drawing():
            return next(self._iterator, END)

    def _make(self) -> Any:
        with self._drawing():
            source = self._recipe.batches()
        if not hasattr(source, "__iter__") and not hasattr(source, "__getitem__"):
            raise RecipeError(
                f"batches() of recipe {self._recipe.name!r} must return something to iterate (a"
                f" DataLoader, a list, a generator), got {type(source).__name__}."
            )
        self._generators = Generators(self._recipe.batches, source)
        return source

    def _refuse_same_iterator(self) -> None:
        if self._as_before or not self._is_single:
            return
        with self._drawing():
            is_same = self._recipe.batches() is self._source
        self._set_random_state(self._pass_start)
        if is_same:
            raise RecipeError(
                f"batches() of recipe {self._recipe.name!r} returns the same"
                f" {type(self._source).__name__} at every call, which can be read once; {_REMEDY}."
            )

    def _begin_pass(self, own: dict[str, Any] | None = None) -> None:
        if not self._is_unused:
            _end_workers(self._source)
        self._pass_start = self._random_state()
        if self._is_single and not self._is_unused:
            self._source = self._make()
        self._is_unused = False
        for part in parts_of(self._source):
            if callable(tell := getattr(part, "set_epoch", None)):
                tell(self.passes)  # torch's DistributedSampler shuffles by it
        if own is not None:
            self._source.load_state_dict(own)
        with self._drawing():
            self._iterator = iter(self._source)

    def _random_state(self) -> dict[str, Any]:
        return {"stream": self._stream.state(), "generators": self._generators.state()}

    def _set_random_state(self, state: dict[str, Any]) -> None:
        self._stream.set_state(state["stream"])
        self._generators.set_state(state["generators"])

    def _own_state(self) -> dict[str, Any] | None:
        """The source's own state, where it has one that a checkpoint can hold."""
        if not _has_state(self._source):
            return None
        buffer, state = io.BytesIO(), self._source.state_dict()
        try:
            torch.save(state, buffer)
            buffer.seek(0)
            plain: dict[str, Any] = torch.load(buffer, weights_only=True)
        except Exception as error:  # any object may be in it
            self._warn_about_state(next(iter(str(error).splitlines()), type(error).__name__))
            return None
        return plain

    def _how_second_call_differs(self) -> str | None:
        if self._first_digest is None or getattr(self._source, "num_workers", None):
            return None
        now = self._random_state()
        self._set_random_state(self._origin)
        try:
            with self._drawing():
                again = self._recipe.batches()
                if again is self._source or _has_state(again):
                    return None
                batch = next(iter(again), None)
        except Exception as error:  # the user's, and training can go on
            return f"a second call of batches() failed ({type(error).__name__}: {error})"
        finally:
            self._set_random_state(now)
        if data_checksum(batch) == self._first_digest:
            return None
        return (
            "a second call of batches() gave another first batch; take its order from torch's,"
            " Python's or NumPy's global generator, or from one that is seeded inside batches()"
        )

    def _warn_about_workers(self) -> None:
        if getattr(self._source, "persistent_workers", False) and not _has_state(self._source):
            logger.warning(
                "persistent_workers=True has no effect here: workers start afresh with every pass,"
                " because no checkpoint could hold the random state of one that lives on"
            )

    def _warn_about_state(self, reason: str) -> None:
        if not self._has_warned:
            logger.warning(
                "the state of %s is not plain data (%s): a resumed run draws the batches of its"
                " pass again instead",
                type(self._source).__name__,
                reason,
            )
        self._has_warned = True

    def _nothing(self) -> str:
        text = f"batches() of recipe {self._recipe.name!r} yields nothing"
        if not self.passes:
            return f"{text}."
        return f"{text} in pass {self.passes + 1}: it uses up an iterator; {_REMEDY}."


def _refuse_single_pass(recipe: Recipe) -> None:
    if (found := single_pass_from_outside(recipe.batches)) is not None:
        name, kind = found
        raise RecipeError(
            f"batches() of recipe {recipe.name!r} uses {name!r}, a {kind} that was made outside of"
            f" it and can be read once; {_REMEDY}."
        )


def _is_iterator(source: Any) -> bool:
    """Whether it can be read once; an object with a length that returns itself starts again."""
    if isinstance(source, _BaseDataLoaderIter):  # it has the length of its loader
        return True
    if not hasattr(source, "__next__") or hasattr(source, "__len__"):
        return False
    return iter(source) is source


def _has_state(source: object) -> bool:
    return callable(getattr(source, "state_dict", None)) and callable(
        getattr(source, "load_state_dict", None)
    )


def _end_workers(source: Any) -> None:
    """Let a DataLoader start its workers again: their random state goes on over passes."""
    if getattr(source, "persistent_workers", False) and not _has_state(source):
        source._iterator = None

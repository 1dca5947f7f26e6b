"""Which optimizers an event is about: those that have the parameters concerned."""

from __future__ import annotations

from collections.abc import Hashable

from halfstep.check.values.regions import ANYTHING, Models, is_some, overlap

Known = dict[str, Models | None]


def owners(
    models: Models | None, known: Known, given: bool, alone: bool = False
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Whose parameters are surely in `models`, and whose may be.

    Args:
        models: What an event is about.
        known: The optimizers and what they have.
        given: Whether the parameters themselves were given, as to a clip. What one optimizer was
            made with is then about this one alone.
        alone: Whether nothing else in the program means the same models: an optimizer that was
            made with others is not concerned.
    """
    if alone and not any(_may_have(one, o, known) for one in models or () for o in known):
        return (), ()
    if len(known) == 1 or (not any(known.values()) and len({*map(_variable, known)}) == 1):
        return tuple(known), ()  # the one, or all items of one collection
    same = tuple(o for o, of in known.items() if of and of == models)
    if given and same:
        return same, ()
    answers = {(one, o): _has(one, o, known) for one in models or () for o in known}
    sure = {o for (_, o), answer in answers.items() if answer}
    maybe = {o for (_, o), answer in answers.items() if answer is None and not sure}
    if given and len(sure) > 1:
        maybe |= _perhaps_spared(answers, known)
    if not sure and not maybe:  # it reaches parameters in a way that was not followed
        return (), tuple(known)
    if not (given and models and all(_is_made_with(one, known) for one in models)):
        maybe |= {o for o, of in known.items() if not of}
    if ANYTHING in (models or ()):
        maybe |= {*known} - sure
    sure -= maybe
    return tuple(o for o in known if o in sure), tuple(o for o in known if o in maybe)


def _may_have(one: Hashable, optimizer: str, known: Known) -> bool:
    """Whether an optimizer may have parameters of a model that the path has seen being made.

    One that came from outside cannot; one of unknown parameters that was made here can.
    """
    if known[optimizer] is None:
        return any(mark in optimizer for mark in "#~@")
    return _has(one, optimizer, known) is not False


def _variable(optimizer: str) -> str:
    """The loop variable of an item of a collection; any other optimizer by itself."""
    return optimizer.split("~")[0] if "~" in optimizer else optimizer


def _perhaps_spared(answers: dict[tuple[Hashable, str], bool | None], known: Known) -> set[str]:
    """Optimizers of which a condition may have picked nothing: their model is frozen for now."""
    picked = {o for (one, o), answer in answers.items() if answer and is_some(one)}
    return picked - {o for one, o in answers if _is_own(one, o, known)}


def _has(one: Hashable, optimizer: str, known: Known) -> bool | None:
    if one == ("optimizer", optimizer):
        return True
    answers = {overlap(one, other) for other in known[optimizer] or ()}
    return True if True in answers else (None if None in answers else False)


def _is_made_with(one: Hashable, known: Known) -> bool:
    return any(_is_own(one, optimizer, known) for optimizer in known)


def _is_own(one: Hashable, optimizer: str, known: Known) -> bool:
    """Whether an optimizer was made with just this."""
    return one in (known[optimizer] or ()) or one == ("optimizer", optimizer)

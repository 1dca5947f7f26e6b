"""What keeps the Python of a document from being checked, as a reader is told it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from halfstep.check.documents.document import Piece, open_document
from halfstep.check.documents.files import Unreadable

_ONLY_A_TREE = 0x400  # `ast.PyCF_ONLY_AST`; most starts need nothing else of `ast`


def syntax_problems(path: str, data: bytes) -> list[str]:
    """Why a file that has nothing for any rule could not have been checked; empty if it could."""
    try:
        document = open_document(path, data)
        for piece in document.pieces:
            with as_unreadable(piece):
                compile(piece.text, path, "exec", _ONLY_A_TREE, dont_inherit=True)
    except Unreadable as problem:
        return [str(problem)]
    return document.problems


@contextmanager
def as_unreadable(piece: Piece) -> Iterator[None]:
    """Say of an error of the parser where in the document it is, in a line of the report."""
    try:
        yield
    except SyntaxError as error:
        _, line = piece.spot(error.lineno or 0)
        raise Unreadable(f"line {line}: {error.msg}") from None
    except (RecursionError, MemoryError):
        raise Unreadable("nested too deeply") from None
    except ValueError as error:
        raise Unreadable(str(error)) from None

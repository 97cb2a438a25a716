"""Tracebacks that show the user's frames, and keep nothing of ours alive."""

from __future__ import annotations

from types import CodeType
from typing import TypeVar

E = TypeVar("E", bound=BaseException)


def leading_frames_cut(error: E, own: set[CodeType] | frozenset[CodeType]) -> E:
    """Cut the leading frames that run `own` code off the traceback of `error`, in place, and return it."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_frame.f_code in own:
        traceback = traceback.tb_next
    return error.with_traceback(traceback)

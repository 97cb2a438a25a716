"""A call that nobody waits for, and that finds the master all the same."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, final

import trio
from redis.exceptions import ReadOnlyError, ResponseError

from trio_orchestrator.redis.call import Call
from trio_orchestrator.redis.link import Link, may_have_run_in_part

_logger = logging.getLogger("trio_orchestrator")


@final
class Post(Call):
    """A call to be posted on a link; refused by a server that is no longer the master, it is posted once more.

    Args:
        data: The command.
        link: On which it is posted.
        reconnect_on: Tells which refusals say that another server is to be asked.
    """

    def __init__(self, data: bytes, link: Link, reconnect_on: Callable[[ResponseError], bool]) -> None:
        super().__init__(data)
        self._link = link
        self._reconnect_on = reconnect_on

    def settle(self, answer: Any) -> None:
        """Throw the answer away, unless it says that the command never ran."""
        if isinstance(answer, ResponseError) and self._is_elsewhere(answer):
            self._link.renew(self.conversation)
            if isinstance(answer, ReadOnlyError) or not may_have_run_in_part(self.data):
                with suppress(trio.ClosedResourceError):
                    self._link.post(Call(self.data))

    def _is_elsewhere(self, refusal: ResponseError) -> bool:
        try:
            return self._reconnect_on(refusal)
        except Exception:  # a function of the user's; it is the reader of all replies who asks it
            _logger.exception("reconnect_on=%r raised about what was posted", self._reconnect_on)
            return False

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

class AsyncValue(Generic[T]):
    value: T
    def __init__(self, value: T) -> None: ...
    async def wait_value(self, value_or_predicate: Callable[[T], bool], *, held_for: float = ...) -> T: ...
    async def wait_transition(self, value_or_predicate: Callable[[T, T], bool] = ...) -> tuple[T, T]: ...

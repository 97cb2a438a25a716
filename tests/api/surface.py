"""The public API, one line a name: what a release must not change unnoticed."""

from __future__ import annotations

import enum
import importlib
import inspect
import re
import typing
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

PACKAGE = "trio_orchestrator"
MODULES = (PACKAGE, f"{PACKAGE}.abc", f"{PACKAGE}.errors", f"{PACKAGE}.redis", f"{PACKAGE}.testing")
FILE = Path(__file__).with_name("public_api.txt")


def lines() -> list[str]:
    """Return `module.name kind signature` for every public name and its public members, sorted within a module."""
    return [line for module in MODULES for line in sorted(set(_module(importlib.import_module(module))))]


def _module(module: ModuleType) -> Iterator[str]:
    for name in public_names(module.__name__):
        thing = getattr(module, name)
        yield f"{module.__name__}.{name} {_describe(thing)}".rstrip()
        if isinstance(thing, type) and (module.__name__ != PACKAGE or thing.__module__ not in MODULES):
            yield from (f"{module.__name__}.{name}.{line}".rstrip() for line in _members(thing))


def public_names(module: str) -> list[str]:
    """Return the names that `module` has to offer: its `__all__`, or what it defines itself."""
    namespace = importlib.import_module(module)
    offered: list[str] | None = getattr(namespace, "__all__", None)
    return offered or _public(name for name, thing in vars(namespace).items() if _is_defined_in(namespace, thing))


def _is_defined_in(module: ModuleType, thing: object) -> bool:
    parameter = isinstance(thing, (typing.TypeVar, typing.ParamSpec, typing.TypeVarTuple))
    return getattr(thing, "__module__", None) == module.__name__ and not parameter


def _public(names: Iterable[str]) -> list[str]:
    return [name for name in names if not name.startswith("_")]


def _describe(thing: object) -> str:
    if isinstance(thing, type):
        return f"class{_signature(thing) if _is_called_by_users(thing) else ''}"
    if inspect.isroutine(thing):
        return f"{'async function' if inspect.iscoroutinefunction(thing) else 'function'}{_signature(thing)}"
    return "module" if isinstance(thing, ModuleType) else "value"


def _is_called_by_users(cls: type) -> bool:
    """Tell whether calling the class is for users, with arguments of our choice: not those of enums, for example."""
    if issubclass(cls, enum.Enum) or typing.is_typeddict(cls) or getattr(cls, "_is_protocol", False):
        return False
    if (cls.__init__.__doc__ or "").startswith("Made by "):
        return False
    owner = next(each for each in cls.__mro__ if "__init__" in vars(each) or "__new__" in vars(each))
    return owner.__module__.startswith(PACKAGE)


def _members(cls: type) -> Iterator[str]:
    if typing.is_typeddict(cls):
        yield from (f"{name} option" for name in cls.__annotations__)
        return
    for name in _public(inspect.get_annotations(cls)):
        yield f"{name} attribute"
    for each in inspect.classify_class_attrs(cls):
        if not each.name.startswith("_") and each.defining_class.__module__.startswith(PACKAGE):
            yield f"{each.name} {_member(each.name, each.object)}"


def _member(name: str, thing: Any) -> str:
    if isinstance(thing, property):
        return "settable property" if thing.fset else "property"
    function = thing.__func__ if isinstance(thing, (classmethod, staticmethod)) else thing
    if inspect.isfunction(function):
        return f"{'async method' if inspect.iscoroutinefunction(function) else 'method'}{_signature(function)}"
    return "attribute"


def _signature(thing: Any) -> str:
    signature = inspect.signature(thing)
    typed = [
        each.replace(annotation=_Written.of(each.annotation), default=_shown(each.default))
        for each in signature.parameters.values()
    ]
    result = signature.empty if isinstance(thing, type) else _Written.of(signature.return_annotation)
    return re.sub(r" at 0x[0-9a-f]+", "", str(signature.replace(parameters=typed, return_annotation=result)))


def _shown(default: Any) -> Any:
    """Return a default whose text is the same in every run: a set of strings has another order in each."""
    if isinstance(default, frozenset):
        return _Written(f"frozenset({{{', '.join(sorted(map(repr, default)))}}})")
    return default


class _Written:
    """An annotation that shows itself as it is written in the source, on every Python."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text

    @classmethod
    def of(cls, annotation: Any) -> Any:
        if annotation is inspect.Signature.empty:
            return annotation
        return cls(getattr(annotation, "__forward_arg__", None) or str(annotation))

from __future__ import annotations

import importlib

from tests.api.surface import FILE, MODULES, lines, public_names


def test_the_public_api_is_the_one_that_is_checked_in() -> None:
    promised, real = FILE.read_text(encoding="utf-8").splitlines(), lines()
    gone = [f"- {line}" for line in promised if line not in real]
    new = [f"+ {line}" for line in real if line not in promised]
    assert not gone + new, "\n".join(["if this is meant: python -m tests.api", *gone, *new])
    assert promised == real


def test_every_public_class_and_function_has_a_docstring() -> None:
    things = [getattr(importlib.import_module(module), name) for module in MODULES for name in public_names(module)]
    assert len(things) > 50
    assert [thing for thing in things if callable(thing) and not thing.__doc__] == []

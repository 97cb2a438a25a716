"""One change to one module of the rules, with a name that unrelated edits leave alone.

The name is `module.Class.method: before -> after`: the smallest expression, or the statement, that shows the change;
with `(2)` behind it where one function has the same text twice. Strings, annotations, decorators, `__slots__` and what
`__repr__` returns are not changed.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any, final

ROOT = Path(__file__).parents[2]
RULES = ROOT / "trio_orchestrator" / "algorithms"

_COMPARED: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_CALLED = {"min": "max", "max": "min", "floor": "ceil", "ceil": "floor", "any": "all", "all": "any"}
_DELETED = (ast.Assign, ast.AugAssign, ast.Raise, ast.Delete, ast.Break, ast.Continue)
_UNTOUCHED = ("annotation", "returns", "decorator_list", "bases", "type_params", "ctx")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_CONDITIONAL = (ast.If, ast.While, ast.IfExp, ast.Assert, ast.comprehension)
_WRAPPING = (ast.UnaryOp, ast.Tuple, ast.Slice, ast.Starred, ast.keyword)  # too small to tell where a number stands


@final
@dataclass(frozen=True)
class Mutant:
    """A module with one change. Making its code is left to whoever runs it."""

    name: str
    module: str
    _tree: ast.Module
    _edit: _Edit

    def code(self) -> CodeType:
        """Compile the changed module."""
        with self._edit.made():
            return compile(ast.fix_missing_locations(self._tree), RULES / f"{self.module}.py", "exec")


def mutants(module: str) -> list[Mutant]:
    """Return every mutant of a module, in the order of its text."""
    tree = ast.parse((RULES / f"{module}.py").read_text(encoding="utf-8"))
    seen: Counter[str] = Counter()
    made = []
    for edit in _edits(tree, module, ()):
        seen[edit.text] += 1
        ordinal = f" ({seen[edit.text]})" if seen[edit.text] > 1 else ""
        made.append(Mutant(edit.text + ordinal, module, tree, edit))
    return made


@final
class _Edit:
    """Another node in the place of one, and back."""

    def __init__(self, place: tuple[ast.AST, str, int | None], new: ast.AST, scope: str, shown: ast.AST) -> None:
        self._holder, self._field, self._index = place
        self._new = new
        before = ast.unparse(shown)
        if shown is self._old():
            self.text = f"{scope}: {before} -> {ast.unparse(new)}"
            return
        with self.made():
            self.text = f"{scope}: {before} -> {ast.unparse(shown)}"

    def _old(self) -> Any:
        value = getattr(self._holder, self._field)
        return value if self._index is None else value[self._index]

    def _put(self, node: ast.AST) -> None:
        if self._index is None:
            setattr(self._holder, self._field, node)
        else:
            getattr(self._holder, self._field)[self._index] = node

    @contextmanager
    def made(self) -> Iterator[None]:
        old = self._old()
        self._put(ast.copy_location(self._new, old))
        try:
            yield
        finally:
            self._put(old)


def _edits(node: ast.AST, scope: str, above: tuple[ast.AST, ...]) -> Iterator[_Edit]:
    """Yield the edits of all that is inside `node`; `above` are the nodes around it, the nearest last."""
    above = (*above, node)
    within = any(isinstance(outer, _FUNCTIONS) for outer in above)
    for field, index, child in _children(node):
        for new in [*_expressions(child, _is_condition(node, field)), *(_statements(child) if within else ())]:
            yield _Edit((node, field, index), new, scope, _shown(child, above))
        if not _is_untouched(child):
            named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            yield from _edits(child, f"{scope}.{getattr(child, 'name', '')}" if named else scope, above)


def _children(node: ast.AST) -> Iterator[tuple[str, int | None, ast.AST]]:
    for field, value in ast.iter_fields(node):
        if field in _UNTOUCHED:
            continue
        if isinstance(value, ast.AST):
            yield field, None, value
        elif isinstance(value, list):
            yield from ((field, index, item) for index, item in enumerate(value) if isinstance(item, ast.AST))


def _is_untouched(node: ast.AST) -> bool:
    match node:
        case ast.FunctionDef(name="__repr__" | "__str__") | ast.JoinedStr():
            return True
        case ast.Assign(targets=[ast.Name(id="__slots__" | "__all__")]):
            return True
        case ast.Call(func=ast.Name(id="TypeVar")):
            return True
    return False


def _is_condition(holder: ast.AST, field: str) -> bool:
    return isinstance(holder, _CONDITIONAL) and field in ("test", "ifs")


def _shown(node: ast.AST, above: tuple[ast.AST, ...]) -> ast.AST:
    """Return the smallest node whose text tells a reader where the change is."""
    if not isinstance(node, (ast.Constant, ast.UnaryOp)):
        return node
    around = next(outer for outer in reversed(above) if not isinstance(outer, _WRAPPING))
    simple = isinstance(around, ast.expr | ast.arguments | ast.comprehension) or not hasattr(around, "body")
    return around if simple else node


def _expressions(node: ast.AST, condition: bool) -> Iterator[ast.AST]:
    """Yield what to put in the place of an expression."""
    match node:
        case ast.Compare(left, ops, comparators):
            for at, op in enumerate(ops):
                for other in _COMPARED[type(op)]:
                    yield ast.Compare(left, [*ops[:at], other(), *ops[at + 1 :]], comparators)
        case ast.BoolOp(op, values):
            yield ast.BoolOp(ast.And() if isinstance(op, ast.Or) else ast.Or(), values)
        case ast.UnaryOp(ast.Not() | ast.USub(), operand):
            yield operand
        case ast.BinOp(left, op, right) if type(op) in _COMPUTED:
            yield ast.BinOp(left, _COMPUTED[type(op)](), right)
        case ast.Constant(bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(int() | float() as value):
            yield ast.Constant(value + 1)
        case ast.Call(ast.Name(name), args, keywords) if name in _CALLED:
            yield ast.Call(ast.Name(_CALLED[name], ast.Load()), args, keywords)
        case ast.Call(ast.Attribute(ast.Name("math") as value, name), args, keywords) if name in _CALLED:
            yield ast.Call(ast.Attribute(value, _CALLED[name], ast.Load()), args, keywords)
        case ast.expr() if condition:
            yield ast.UnaryOp(ast.Not(), node)


def _is_hardly_more_than_none(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and (value.value is None or isinstance(value.value, bool))


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what to put in the place of a statement of a function."""
    match node:
        case ast.AugAssign(target, op, value) if type(op) in _COMPUTED:
            yield ast.AugAssign(target, _COMPUTED[type(op)](), value)
        case ast.Return(ast.expr() as value) if not _is_hardly_more_than_none(value):
            yield ast.Return(ast.Constant(None))
    match node:
        case ast.Expr(ast.Call()):
            yield ast.Pass()
        case ast.AnnAssign(value=ast.expr()):
            yield ast.Pass()
        case ast.stmt() if isinstance(node, _DELETED):
            yield ast.Pass()

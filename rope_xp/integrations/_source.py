"""What the source of a method says, and which objects its expressions stand for."""

import ast
import builtins
import inspect
import textwrap
from collections.abc import Iterable, Iterator
from types import FunctionType, MethodType
from typing import Any, NamedTuple

import torch

from rope_xp._contract.caches import cached


class Method(NamedTuple):
    """A function that is called on the instances of a class, or on nothing, which has NoneType."""

    kind: type
    function: Any
    """A FunctionType, which type checkers would bind to the tuple."""


def method_of(called: Any) -> Method | None:
    """Return what runs if this is called, where that is a method of a module or a function."""
    owner: Any = None
    function: Any = called
    if isinstance(called, torch.nn.Module):
        owner, function = called, type(called).forward
    elif isinstance(called, MethodType) and isinstance(called.__self__, torch.nn.Module):
        owner, function = called.__self__, called.__func__
    elif not isinstance(called, FunctionType):
        return None
    function = inspect.unwrap(function)
    return Method(type(owner), function) if isinstance(function, FunctionType) else None


def defined(kind: type) -> list[FunctionType]:
    """Return the methods that a class itself defines, but what makes an instance."""
    members = [inspect.unwrap(m) for n, m in vars(kind).items() if callable(m) and n != "__init__"]
    return [member for member in members if isinstance(member, FunctionType)]


def taken(method: Method, place: int | str) -> str | tuple[str, str] | None:
    """Return the name by which a method takes the argument at this place.

    For what comes by ``**kwargs`` that is their name and the key; None for what it does not take.
    """
    named = inspect.getfullargspec(method.function)
    if isinstance(place, int):
        place += method.kind is not type(None)  # self
        return named.args[place] if place < len(named.args) else named.varargs
    if place in (*named.args, *named.kwonlyargs):
        return place
    return None if named.varkw is None else (named.varkw, place)


@cached(1024)
def tree(function: FunctionType) -> ast.FunctionDef | None:
    """Return the source of a function, without its decorators; None where it cannot be read."""
    try:
        (found,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    except (OSError, SyntaxError, TypeError, ValueError):
        return None
    if not isinstance(found, ast.FunctionDef):
        return None
    found.decorator_list = []
    return found


def bindings(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield what a node binds names to: a target and an expression."""
    if isinstance(node, ast.Assign):
        yield from ((target, node.value) for target in node.targets)
    elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
        yield node.target, node.value
    elif isinstance(node, (ast.For, ast.comprehension)):
        yield node.target, node.iter


def parts(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions right below a node that are read."""
    for child in ast.iter_child_nodes(node):
        written = isinstance(getattr(child, "ctx", None), (ast.Store, ast.Del))
        if isinstance(child, (ast.comprehension, ast.withitem, ast.keyword)):
            yield from parts(child)
        elif isinstance(child, ast.expr) and not written:
            yield child


def flat(values: Iterable[Any]) -> list[Any]:
    """Return each value once, and what is in lists of modules in place of these."""
    found: dict[int, Any] = {}
    for value in values:
        if isinstance(value, torch.nn.ModuleDict):
            inside = flat(value.values())
        elif isinstance(value, (torch.nn.ModuleList, list, tuple)):
            inside = flat(value)
        else:
            inside = [value]
        found |= {id(each): each for each in inside if each is not None}
    return list(found.values())


class Scope:
    """What the names in a method stand for."""

    def __init__(self, method: Method, instances: list[torch.nn.Module], source: ast.AST) -> None:
        self._method, self._instances = method, instances
        self._me = next(iter(inspect.signature(method.function).parameters)) if instances else None
        self._bound: dict[str, list[ast.expr]] = {}
        for node in ast.walk(source):
            for target, value in bindings(node):
                for name in ast.walk(target):
                    if isinstance(name, ast.Name):
                        self._bound.setdefault(name.id, []).append(value)

    def objects(self, node: ast.expr, seen: frozenset[str] = frozenset()) -> list[Any]:
        """Return the modules and functions that an expression may stand for."""
        inside: Iterable[ast.expr] = ()
        if isinstance(node, ast.Name):
            if node.id == self._me:
                return self._instances
            if node.id not in self._bound:
                scope = self._method.function.__globals__
                return flat([scope.get(node.id, getattr(builtins, node.id, None))])
            inside = self._bound[node.id] if node.id not in seen else ()
            seen |= {node.id}
        elif isinstance(node, ast.Attribute):
            if ast.unparse(node.value) == "super()":
                return self._inherited(node.attr)
            owners = self.objects(node.value, seen)
            return flat(getattr(owner, node.attr, None) for owner in owners)
        elif isinstance(node, (ast.Subscript, ast.Starred)):
            inside = (node.value,)
        elif isinstance(node, (ast.IfExp, ast.BoolOp)):
            inside = parts(node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            inside = node.args if node.func.id in ("enumerate", "zip", "reversed") else ()
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            inside = (node.func.value,) if node.func.attr in ("values", "items") else ()
        return flat(each for part in inside for each in self.objects(part, seen))

    def is_nowhere(self, node: Any) -> bool:
        """Return whether an expression names what no instance has, so that it is never reached."""
        return (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == self._me
            and all(getattr(each, node.attr, None) is None for each in self._instances)
        )

    def _inherited(self, name: str) -> list[Any]:
        mro = self._method.kind.__mro__
        mine = (i for i, base in enumerate(mro) if self._method.function in defined(base))
        after = mro[next(mine, len(mro)) + 1 :]
        found = next((vars(base)[name] for base in after if name in vars(base)), None)
        return [] if found is None else [MethodType(found, self._instances[0])]

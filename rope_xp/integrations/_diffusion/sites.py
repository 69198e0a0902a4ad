"""Where methods of diffusers rotate: found in their source, and rewritten to call others.

diffusers rotates by functions that its attention processors call. Some are global, some imported
within a method, some defined there. So a method is not rebound, as those of transformers are: its
source is compiled anew, with what it imports or defines under these names left out.
"""

import __future__

import ast
import copy
import functools
import importlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any, cast

from rope_xp._contract.errors import RopeError
from rope_xp.integrations import _functions, _source

Function = FunctionType
Options = tuple[tuple[str, Any], ...]
_FUTURE = functools.reduce(
    int.__or__, (getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)
)
_NAME = re.compile(r"_?apply_\w*(rotary|rope)\w*|rope_apply")


@dataclass(frozen=True)
class Site:
    """A function that rotates, as one method calls it."""

    name: str
    function: Function
    options: frozenset[Options]
    """The constants that it is called with, by their names: one entry for each way to call it."""


def found(method: FunctionType) -> tuple[Site, ...]:
    """Return the functions that rotate which a method calls.

    Raises
    ------
    RopeError
        If its source cannot be read, or does not say how it calls them.
    """
    if not any(map(_NAME.fullmatch, _names(method.__code__))):
        return ()
    tree = _tree(method)
    functions = dict(_called(method, tree))
    calls: dict[str, set[Options]] = {name: set() for name in functions}
    called = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            name = node.func.id
            if name in calls:
                called += 1
                calls[name].add(_options(method, node))
    mentioned = sum(isinstance(n, ast.Name) and n.id in calls for n in ast.walk(tree))
    if mentioned != called:
        raise RopeError(f"cannot patch {method.__qualname__}: it hands on a function that rotates")
    return tuple(
        Site(name, function, frozenset(calls[name]))
        for name, function in functions.items()
        if calls[name]
    )


def _names(code: CodeType) -> Iterator[str]:
    """Yield the names that code and the functions inside it use or bind."""
    yield from (*code.co_names, *code.co_varnames, *code.co_cellvars)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


def _tree(method: FunctionType) -> ast.FunctionDef:
    if hasattr(method, "__wrapped__"):
        raise RopeError(f"cannot patch {method.__qualname__}: something is wrapped around it")
    tree = _source.tree(method)
    if tree is None:
        raise RopeError(f"cannot patch {method.__qualname__}: its source cannot be read")
    return tree


def _called(method: FunctionType, tree: ast.FunctionDef) -> Iterator[tuple[str, Function]]:
    for name in _names(method.__code__):
        value = method.__globals__.get(name)
        if _NAME.fullmatch(name) and isinstance(value, FunctionType):
            yield name, value
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            package = method.__globals__["__package__"] if node.level else None
            module = "." * node.level + (node.module or "")
            for alias in node.names:
                if _NAME.fullmatch(alias.asname or alias.name):
                    held = importlib.import_module(module, package)
                    yield alias.asname or alias.name, getattr(held, alias.name)
        elif isinstance(node, ast.FunctionDef) and node is not tree and _NAME.fullmatch(node.name):
            yield node.name, _defined(method, node)


def _defined(method: FunctionType, node: ast.FunctionDef) -> Function:
    """Return a function that a method defines for itself, made outside of it."""
    name = f"{method.__qualname__}.<locals>.{node.name}"
    for code in _codes(method.__code__):
        if code.co_name == node.name and code.co_firstlineno >= method.__code__.co_firstlineno:
            if code.co_freevars or node.args.defaults or node.args.kw_defaults:
                break
            return FunctionType(code, method.__globals__, name)
    raise RopeError(f"cannot patch {name}: it needs what only the method around it holds")


def _codes(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _codes(constant)


def _options(method: FunctionType, call: ast.Call) -> Options:
    made = []
    for keyword in call.keywords:
        try:
            made.append((keyword.arg or "**", ast.literal_eval(keyword.value)))
        except ValueError as error:
            what = f"it calls `{ast.unparse(call)}`, of which only a call tells what it does"
            raise RopeError(f"cannot patch {method.__qualname__}: {what}") from error
    return tuple(sorted(made))


# --- rewriting -----------------------------------------------------------------------------------


class _WithoutOwn(ast.NodeTransformer):
    """Leaves out what a method imports and defines under some names."""

    def __init__(self, names: frozenset[str]) -> None:
        self.names = names

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:  # ast's spelling
        node.names = [a for a in node.names if (a.asname or a.name) not in self.names]
        return node if node.names else ast.copy_location(ast.Pass(), node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:  # likewise
        if node.name in self.names:
            return ast.copy_location(ast.Pass(), node)
        self.generic_visit(node)
        return node


def rewritten(method: FunctionType, replacements: dict[str, Callable[..., Any]]) -> FunctionType:
    """Return a copy of a method that calls others under these names.

    The module's own globals stay as they are, so that other models are not touched.
    """
    tree = copy.deepcopy(_tree(method))  # which is kept for the next that asks
    without = _WithoutOwn(frozenset(replacements))
    tree.body = [without.visit(statement) for statement in tree.body]
    ast.increment_lineno(tree, method.__code__.co_firstlineno - 1)
    _bare(tree.args)
    tree.returns = None
    code = _compiled(tree, method.__code__)
    held = dict(zip(method.__code__.co_freevars, method.__closure__ or (), strict=True))
    cells = tuple(held[name] for name in code.co_freevars)
    return _functions.copy_of(method, code, replacements, cells)


def _bare(arguments: ast.arguments) -> None:
    """Take off what is computed where a function is defined, and a copy of it has already."""
    arguments.defaults, arguments.kw_defaults = [], [None] * len(arguments.kwonlyargs)
    for group in (arguments.posonlyargs, arguments.args, arguments.kwonlyargs):
        for argument in group:
            argument.annotation = None
    for more in (arguments.vararg, arguments.kwarg):
        if more is not None:
            more.annotation = None


def _compiled(tree: ast.FunctionDef, like: CodeType) -> CodeType:
    """Return the code of a function, within one that has what it takes from around it."""
    held = [
        ast.Assign(targets=[ast.Name(id=name, ctx=ast.Store())], value=ast.Constant(value=None))
        for name in like.co_freevars
    ]
    around = ast.parse("def around(): pass")
    outer = cast("ast.FunctionDef", around.body[0])
    outer.body = [*held, tree]
    ast.fix_missing_locations(around)
    flags = like.co_flags & _FUTURE
    compiled = compile(around, like.co_filename, "exec", flags, dont_inherit=True)
    return next(code for code in _codes(compiled) if code.co_name == tree.name)

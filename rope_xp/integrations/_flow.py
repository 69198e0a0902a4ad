"""Where the tables of a model's rotary modules go, followed through the source of its classes.

What is not understood counts as a use of tables by code that rope_xp does not replace. So a model
may be refused that would have worked, and none passes that would be patched by half.
"""

import ast
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import torch

from rope_xp._contract.errors import RopeError
from rope_xp.integrations import _classes, _functions, _source
from rope_xp.integrations._source import Method

# Methods and functions that give tables again, with the same columns, or what holds some.
_MOVES = frozenset(
    ("to", "float", "contiguous", "clone", "detach", "unsqueeze", "squeeze", "expand", "transpose")
).union(("view", "reshape", "index_select", "get", "pop", "items", "values", "copy", "append"))
_MOVING = (tuple, list, dict, zip, enumerate, reversed, torch.cat, torch.nn.functional.dropout)
# What tells something about them, and does not compute with them.
_FACTS = frozenset(("shape", "dtype", "device", "ndim", "size", "dim"))
_TELLING = (isinstance, len, type)
_HOLDING = (ast.Tuple, ast.List, ast.Dict, ast.DictComp, ast.ListComp, ast.GeneratorExp)
_CHOOSING = (ast.IfExp, ast.BoolOp, ast.Starred, ast.NamedExpr, ast.UnaryOp)


def check(
    model: torch.nn.Module, rotary: Iterable[torch.nn.Module], replaced: Collection[Any]
) -> None:
    """Check that what the rotary modules of a model return gets to replaced functions alone.

    Raises
    ------
    RopeError
        If it may get elsewhere.
    """
    flow = _Flow(model, frozenset(map(id, rotary)), replaced)
    holders = list(flow.mentioning(flow.rotary))
    for method in holders:
        flow.give(method, set())
    while flow.unread:
        _Reader(flow, flow.unread.pop()).read()
    calling = {method.kind for method in flow.calling}
    for method in holders:
        if method.kind not in calling:
            raise _refusal(method, "its source does not tell what becomes of its rotary module")


def _refusal(method: Method, what: str) -> RopeError:
    is_plain = method.kind is type(None)
    who = ("" if is_plain else f"{method.kind.__name__}.") + method.function.__name__
    return RopeError(f"cannot patch {who}: {what}; {_classes.ALONE}")


class _Flow:
    """What is known of all methods so far."""

    def __init__(
        self, model: torch.nn.Module, rotary: frozenset[int], replaced: Collection[Any]
    ) -> None:
        self.rotary, self.replaced = rotary, replaced
        self.instances: dict[type, list[torch.nn.Module]] = {}
        for module in model.modules():
            self.instances.setdefault(type(module), []).append(module)
        self.holding: dict[Method, set[str | tuple[str, str]]] = {}
        """The names that may hold tables; of what comes by ``**kwargs``, their name and the key."""
        self.returning: dict[Method, set[int] | None] = {}
        """At which places of a tuple a method may return tables; None for any."""
        self.calling: set[Method] = set()
        """The methods that have tables without being given some."""
        self.unread: list[Method] = []

    def has_rotary(self, objects: list[Any]) -> bool:
        return any(id(each) in self.rotary for each in objects)

    def mentioning(self, modules: frozenset[int], name: str = "") -> Iterator[Method]:
        """Yield the methods that mention an attribute which holds one of these, or this name."""
        for kind, owners in self.instances.items():
            children = [child for owner in owners for child in owner.named_children()]
            said = {
                attribute
                for attribute, child in children
                if not modules.isdisjoint(map(id, _source.flat([child])))
            }
            if not modules.isdisjoint(map(id, owners)):
                said.add(name)
            for base in kind.__mro__[: kind.__mro__.index(torch.nn.Module)] if said else ():
                for function in _source.defined(base):
                    if not said.isdisjoint(_functions.names(function.__code__)):
                        yield Method(kind, function)

    def give(self, method: Method, names: set[str | tuple[str, str]]) -> None:
        """Have a method read in which these names may hold tables."""
        if method not in self.holding or not names <= self.holding[method]:
            self.holding[method] = names | self.holding.get(method, set())
            self.unread.append(method)

    def calls(self, method: Method) -> None:
        if method not in self.calling:
            self.calling.add(method)
            self.read_again(method)

    def returns(self, method: Method, places: set[int] | None) -> None:
        known = self.returning.get(method, set())
        both = None if places is None or known is None else places | known
        if method not in self.returning or both != known:
            self.returning[method] = both
            self.read_again(method)

    def read_again(self, method: Method) -> None:
        """Have all be read that may call a method of which something new is known."""
        self.unread = list(self.holding)
        if method in self.returning and method in self.calling:
            instances = frozenset(map(id, self.instances.get(method.kind, ())))
            for caller in self.mentioning(instances, method.function.__name__):
                self.give(caller, set())


class _Reader:
    """Reads one method: what it does with tables, and to whom it hands them."""

    def __init__(self, flow: _Flow, method: Method) -> None:
        self.flow, self.method = flow, method
        self.names = flow.holding[method]
        source = _source.tree(method.function)
        if source is None:
            raise _refusal(method, "its source cannot be read")
        self.nodes = list(ast.walk(source))
        self.scope = _source.Scope(method, flow.instances.get(method.kind, []), source)

    def read(self) -> None:
        before = None
        while before != self.names:
            before = set(self.names)
            for node in self.nodes:
                for target, value in _source.bindings(node):
                    if self.carries(value):
                        self.bind(target, self.places(value))
                if isinstance(node, ast.stmt):
                    self.statement(node)

    def statement(self, node: ast.stmt) -> None:
        carried = [self.carries(part) for part in _source.parts(node)]
        if any(carried) and isinstance(node, ast.AugAssign):
            raise self.use(node)
        if any(carried) and isinstance(node, ast.Return) and node.value is not None:
            self.flow.returns(self.method, self.places(node.value))

    def use(self, node: ast.AST) -> RopeError:
        what = f"tables of rotary modules get to `{ast.unparse(node)}`, which is not replaced"
        return _refusal(self.method, what)

    def bind(self, target: ast.expr, places: set[int] | None) -> None:
        if isinstance(target, ast.Name):
            self.names.add(target.id)
        elif isinstance(target, (ast.Tuple, ast.List)):
            for place, part in enumerate(target.elts):
                if places is None or place in places:
                    self.bind(part, None)
        elif isinstance(target, (ast.Starred, ast.Subscript)):
            self.bind(target.value, None)
        else:
            raise self.use(target)

    def places(self, node: ast.expr) -> set[int] | None:
        """Return which parts of an expression that gives a tuple are tables; None for any."""
        if isinstance(node, ast.Tuple) and not any(isinstance(e, ast.Starred) for e in node.elts):
            return {place for place, part in enumerate(node.elts) if self.carries(part)}
        if isinstance(node, ast.Call):
            name = (
                node.func.attr if isinstance(node.func, ast.Attribute) else ast.unparse(node.func)
            )
            if name in ("items", "enumerate"):
                return {1}
            known = [self.flow.returning.get(m) for m in self.methods(node.func)]
            if known and None not in known:
                return set().union(*(places for places in known if places is not None))
        return None

    def carries(self, node: ast.expr) -> bool:
        """Return whether an expression may be a table, or hold some."""
        if isinstance(node, ast.Name):
            return node.id in self.names
        if isinstance(node, ast.Call):
            return self.call(node)
        if isinstance(node, ast.Subscript):
            return self.item(node)
        carried = [self.carries(part) for part in _source.parts(node)]
        if not any(carried) or isinstance(node, ast.Compare):
            return False
        if isinstance(node, ast.Attribute) and node.attr in _FACTS:
            return False
        if not isinstance(node, _HOLDING + _CHOOSING):
            raise self.use(node)
        return True

    def item(self, node: ast.Subscript) -> bool:
        key = node.slice.value if isinstance(node.slice, ast.Constant) else None
        if isinstance(node.value, ast.Name) and (node.value.id, key) in self.names:
            return True
        self.carries(node.slice)
        if not self.carries(node.value):
            return False
        if any(isinstance(n, ast.Constant) and n.value is ... for n in ast.walk(node.slice)):
            raise self.use(node)  # it may be of fewer columns
        return True

    def methods(self, node: ast.expr) -> list[Method]:
        called = (each for each in self.scope.objects(node) if not self.may_take(each))
        found = map(_source.method_of, called)
        return list(dict.fromkeys(method for method in found if method is not None))

    def call(self, node: ast.Call) -> bool:
        given = list(self.given(node))
        if isinstance(node.func, ast.Attribute) and self.carries(node.func.value):
            if node.func.attr not in _MOVES | _FACTS:
                raise self.use(node)
            return node.func.attr in _MOVES
        called = self.scope.objects(node.func)
        if self.flow.has_rotary(called):
            self.flow.calls(self.method)
            return True
        methods = self.methods(node.func)
        others = (each for each in called or (node.func,) if _source.method_of(each) is None)
        if given and not all(map(self.may_take, others)):
            raise self.use(node)
        for method in methods:
            names = {_source.taken(method, place) for place in given}
            if names := {name for name in names if name is not None}:
                self.flow.give(method, names)
        returning = self.flow.returning.keys() & methods
        if returning & self.flow.calling:
            self.flow.calls(self.method)
            return True
        moves = any(_is_one_of(each, _MOVING) for each in called)
        return bool(given) and (moves or bool(returning))

    def may_take(self, called: Any) -> bool:
        # A plain function is nobody's method, and still calls what the model's own file holds.
        known = self.flow.replaced if self.method.kind is not type(None) else ()
        return _is_one_of(called, (*known, *_TELLING, *_MOVING)) or self.scope.is_nowhere(called)

    def given(self, node: ast.Call) -> Iterator[int | str]:
        """Yield the places of the arguments that may hold tables."""
        for place, value in enumerate(node.args):
            if isinstance(value, ast.Attribute) and self.flow.has_rotary(self.scope.objects(value)):
                raise self.use(node)  # who gets a rotary module may call it
            if self.carries(value):
                # What stands after a star is at no known place.
                yield from range(place, 99) if isinstance(value, ast.Starred) else (place,)
        for keyword in node.keywords:
            if keyword.arg is not None:
                yield from (keyword.arg,) if self.carries(keyword.value) else ()
            elif isinstance(keyword.value, ast.Name):
                held = [each for each in self.names if isinstance(each, tuple)]
                yield from (key for name, key in held if name == keyword.value.id)
            elif self.carries(keyword.value):
                raise self.use(node)


def _is_one_of(called: Any, known: Iterable[Any]) -> bool:
    """Return whether this is one of these; what is called need not know ``==``."""
    return any(called is each for each in known)

"""The names of steps and the codes of errors, as they are found in the source."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from golden import compare

import holdfast

SOURCE = Path(holdfast.__file__).parent
KINDS = ("index", "store")
"""What codes begin with that are made for both kinds of storage in one place."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(eq=False)
class Module:
    path: Path
    tree: ast.Module
    parents: dict[ast.AST, ast.AST]

    def around(self, node: ast.AST) -> Iterator[ast.AST]:
        while node in self.parents:
            node = self.parents[node]
            yield node


class Names:
    """Follows a name to the texts it can stand for: constants, and what callers pass for a parameter."""

    def __init__(self, root: Path) -> None:
        paths = [path for path in sorted(root.rglob("*.py")) if root / "testing" not in path.parents]
        self._modules = [_parsed(path) for path in paths]
        self._by_name: dict[str, list[tuple[Module, ast.Call]]] = {}
        for module in self._modules:
            for node in ast.walk(module.tree):
                if isinstance(node, ast.Call) and (name := _name(node.func)):
                    self._by_name.setdefault(name, []).append((module, node))

    def steps(self) -> set[str]:
        """What `step(...)` is called with."""
        found = [(module, call.args[0]) for module, call in self._calls("step") if call.args]
        return {text for module, node in found for text in self._texts(module, node)}

    def codes(self) -> set[str]:
        """What errors are given as `code=...`, and what their classes have by default."""
        found: set[str] = set()
        for module in self._modules:
            for node in ast.walk(module.tree):
                if isinstance(node, ast.Call):
                    for keyword in node.keywords:
                        if keyword.arg == "code":
                            found |= self._texts(module, keyword.value)
                elif isinstance(node, ast.AnnAssign | ast.Assign) and node.value is not None:
                    targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
                    if any(isinstance(target, ast.Name) and target.id == "default_code" for target in targets):
                        found |= self._texts(module, node.value)
        return found

    def _calls(self, name: str, only: Module | None = None) -> Iterator[tuple[Module, ast.Call]]:
        for module, call in self._by_name.get(name, ()):
            if only in (None, module):
                yield module, call

    def _texts(self, module: Module, node: ast.AST) -> set[str]:
        match node:
            case ast.Constant(value=str(text)):
                return {text}
            case ast.JoinedStr(values=parts):
                return {"".join(chosen) for chosen in itertools.product(*(self._parts(module, part) for part in parts))}
            case ast.Attribute(attr="kind" | "_kind" | "codes"):
                return set(KINDS)
            case ast.Name(id="kind") if "kv" in module.path.parts:
                return set(KINDS)
            case ast.Name(id="self" | "cls"):
                return set()  # of another function of that name
            case ast.IfExp(body=one, orelse=other):
                return self._texts(module, one) | self._texts(module, other)
            case ast.BoolOp(values=several):
                return {text for one in several for text in self._texts(module, one)}
            case ast.Name(id=name):
                return self._named(module, node, name)
        return set()  # such as `error.code`: what another error has already

    def _parts(self, module: Module, part: ast.expr) -> set[str]:
        """Of an f-string."""
        found = self._texts(module, part.value if isinstance(part, ast.FormattedValue) else part)
        return found or {"{}"}

    def _named(self, module: Module, node: ast.AST, name: str) -> set[str]:
        for function in module.around(node):
            if isinstance(function, Function):
                arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
                if name in [argument.arg for argument in arguments]:
                    return self._passed(module, function, name)
                assigned = [
                    found
                    for found in ast.walk(function)
                    if isinstance(found, ast.Assign | ast.For) and name in _bound(found)
                ]
                if assigned:
                    return {text for found in assigned for text in self._assigned(module, found, name)}
        for found in ast.walk(module.tree):
            if isinstance(found, ast.Assign) and name in _bound(found):
                return self._texts(module, found.value)
        return set()

    def _assigned(self, module: Module, found: ast.Assign | ast.For, name: str) -> set[str]:
        """Of `name = value`, `one, name = value, other`, and `for one, name in ((..., ...), ...)`."""
        target, value = (found.target, found.iter) if isinstance(found, ast.For) else (found.targets[0], found.value)
        values = value.elts if isinstance(found, ast.For) and isinstance(value, ast.Tuple | ast.List) else [value]
        if isinstance(target, ast.Name):
            return {text for one in values for text in self._texts(module, one)}
        place = [_name(part) for part in target.elts].index(name) if isinstance(target, ast.Tuple) else 0
        chosen = [one.elts[place] for one in self._tuples(module, values) if len(one.elts) > place]
        return {text for one in chosen for text in self._texts(module, one)}

    def _tuples(self, module: Module, values: list[ast.expr]) -> Iterator[ast.Tuple]:
        for value in values:
            match value:
                case ast.Tuple():
                    yield value
                case ast.IfExp(body=one, orelse=other):
                    yield from self._tuples(module, [one, other])
                case ast.Call(func=ast.Attribute(value=ast.Name(id=table), attr="get"), args=[_, default]):
                    yield from self._tuples(module, [default])
                    for node in ast.walk(module.tree):
                        if isinstance(node, ast.Assign) and table in _bound(node) and isinstance(node.value, ast.Dict):
                            yield from self._tuples(module, node.value.values)

    def _passed(self, module: Module, function: Function, name: str) -> set[str]:
        """What callers give for a parameter, and its default."""
        positional = [argument.arg for argument in [*function.args.posonlyargs, *function.args.args]]
        is_method = bool(positional) and positional[0] in ("self", "cls")
        owner = next((node for node in module.around(function) if isinstance(node, ast.ClassDef)), None)
        called = owner.name if owner is not None and function.name == "__init__" else function.name
        found: set[str] = set()
        defaults = dict(zip(reversed(positional), reversed(function.args.defaults), strict=False))
        defaults |= {
            argument.arg: default
            for argument, default in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
            if default is not None
        }
        if name in defaults:
            found |= self._texts(module, defaults[name])
        for where, call in self._calls(called, module if called.startswith("_") and not is_method else None):
            place = positional.index(name) - is_method if name in positional else len(call.args)
            given = [call.args[place]] if place < len(call.args) else []
            given += [keyword.value for keyword in call.keywords if keyword.arg == name]
            for node in given:
                found |= self._texts(where, node)
        return found


def _parsed(path: Path) -> Module:
    tree = ast.parse(path.read_text())
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    return Module(path, tree, parents)


def _name(node: ast.AST) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else None


def _bound(node: ast.Assign | ast.For) -> list[str | None]:
    targets = [node.target] if isinstance(node, ast.For) else node.targets
    return [_name(part) for target in targets for part in (target.elts if isinstance(target, ast.Tuple) else [target])]


def test_step_names() -> None:
    compare("steps.json", sorted(Names(SOURCE).steps()))


def test_error_codes() -> None:
    compare("codes.json", sorted(Names(SOURCE).codes()))

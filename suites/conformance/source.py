"""Loads a test file so that only this file finds substitutes under upstream's names.

Setting `proxy_tensor.make_fx = ours` would also change torch's own callers of the name, and would miss test files that imported
the name before. So torch is left unchanged, and the syntax tree of the test file is rewritten where it accesses names:

* `from M import n` becomes `n = __conformance__.imported("M", "n")`, at top level and inside functions;
* `X.n`, where n is the last part of a substituted or moved name, becomes `__conformance__.attribute(X, "n")`;
* `patch("a.b.n", ...)` becomes `patch(__conformance__.patched("a.b.n"), ...)`.

The first two replace a value when it *is* one of upstream's entry points. So `torch.compile`, `functorch.make_fx` and an alias of
the module all reach the substitute, while a `.compile` of another object stays what it is. The third patches the substitute's own
name. Line numbers stay those of the file. Files that it imports from below `test` are loaded in the same way, and so are the
modules of torch's test harness that the suite names: newer trees trace through `optests.make_fx_check`.

Not seen: `getattr(torch, "compile")`, `from M import *`, `patch.object(torch, "compile")`. Such a test passes with the
stand-in too, and is not in the denominator.

An import that guards itself (`try: ... except ImportError`) still fails where a name is missing.
"""

from __future__ import annotations

import ast
import importlib
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path
from pkgutil import resolve_name

from suites.conformance.shims import SHIMS
from suites.conformance.stand_in import missing

_HELPER = "__conformance__"
_IMPORT_ERRORS = {"ImportError", "ModuleNotFoundError", "Exception", "BaseException"}


class Names:
    """Resolves the names that a test file uses."""

    def __init__(self, substitutes: Mapping[str, object], places: Mapping[str, str] | None = None) -> None:
        """
        substitutes: upstream dotted name -> its substitute. Empty for stock torch.
        places: upstream dotted name -> the dotted name of its substitute, which can be patched.
        """
        self._substitutes = dict(substitutes)
        self._places = dict(places or {})
        self.watched = frozenset(name.rpartition(".")[2] for name in (*substitutes, *SHIMS))
        # Keeps upstream's objects alive, since an id is unique only while its object lives.
        self._by_identity: dict[int, tuple[object, object]] = {}
        self._by_last_part: dict[str, list[tuple[object, object]]] = {}
        for name, substitute in substitutes.items():
            original = original_of(name)
            if original is not None:
                self._by_identity[id(original)] = (original, substitute)
                self._by_last_part.setdefault(name.rpartition(".")[2], []).append((original, substitute))

    def swap(self, value: object) -> object:
        """The substitute of `value` if it is an entry point of upstream, else `value`."""
        found = self._by_identity.get(id(value))
        return value if found is None else found[1]

    def attribute(self, holder: object, name: str) -> object:
        """The value of `holder.name`. Raises AttributeError if it does not exist.

        It also runs in captured code, so it calls nothing that capture does not support, such as `id`.
        """
        if isinstance(holder, types.ModuleType):
            dotted = f"{holder.__name__}.{name}"
            if dotted in self._substitutes:
                return self._substitutes[dotted]
            if not hasattr(holder, name) and (moved := _moved(dotted)) is not None:
                return self.swap(moved)
        value = getattr(holder, name)
        for original, substitute in self._by_last_part.get(name, ()):
            if value is original:
                return substitute
        return value

    def imported(self, module: str, name: str, is_guarded: bool = False) -> object:
        """The value of `from module import name`.

        Raises ImportError if it does not exist and the file handles that.
        """
        dotted = f"{module}.{name}"
        if dotted in self._substitutes:
            return self._substitutes[dotted]
        shim = SHIMS.get(dotted)
        value = None if shim is not None and shim.always else find(dotted)
        if value is None:
            value = _moved(dotted)
        if value is not None:
            return self.swap(value)
        if self._is_none(module, name):
            return None
        if is_guarded or not module.startswith("torch"):
            raise ImportError(f"cannot import name {name!r} from {module!r}", name=module)
        return missing(dotted)

    def patched(self, target: str) -> str:
        """The name that `mock.patch(target)` should patch: the substitute's own name, or the new place of a moved name."""
        holder, _, name = target.rpartition(".")
        if target in self._places:
            return self._places[target]
        if holder in self._places:  # a setting of a substituted object
            return f"{self._places[holder]}.{name}"
        shim = SHIMS.get(target)
        return target if shim is None or original_of(target) is not None else shim.found_at

    def ensure_module(self, name: str) -> None:
        """Before `import torch.a.b`: if the module no longer exists, an unusable one takes its place."""
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            if not name.startswith("torch."):
                raise
            parent, _, last = name.rpartition(".")
            self.ensure_module(parent)
            sys.modules[name] = module = _GoneModule(name)
            setattr(sys.modules[parent], last, module)

    @staticmethod
    def _is_none(module: str, name: str) -> bool:
        holder = sys.modules.get(module)
        return holder is not None and hasattr(holder, name)


class _GoneModule(types.ModuleType):
    """A module that the installed torch does not have: its attributes are unusable."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        return missing(f"{self.__name__}.{name}")


def find(dotted: str) -> object:
    """The module, class or value with that name, or None."""
    module, _, name = dotted.rpartition(".")
    try:
        holder = importlib.import_module(module)
    except ModuleNotFoundError:
        return None
    if hasattr(holder, name):
        return getattr(holder, name)
    try:
        return importlib.import_module(dotted)
    except ModuleNotFoundError:
        return None


def _moved(dotted: str) -> object:
    """The object at the name's place in the table of moved names; None if there is no row, or no such object."""
    shim = SHIMS.get(dotted)
    value = find(shim.found_at) if shim is not None else None
    return shim.adapt(value) if shim is not None and shim.adapt is not None and value is not None else value


def original_of(dotted: str) -> object:
    """Upstream's object of a substituted name, also of a class's attribute; None if the installed torch has none."""
    try:
        return resolve_name(dotted)
    except (AttributeError, ImportError):
        return None


def rewrite(tree: ast.Module, watched: frozenset[str], package: str = "") -> ast.Module:
    """Rewrite imports and watched attributes of a module so that they go through `Names`.

    package: the package for relative imports; without it they stay as they are.
    """
    return ast.fix_missing_locations(_Rewriter(watched, package).visit(tree))


class _Rewriter(ast.NodeTransformer):
    def __init__(self, watched: frozenset[str], package: str) -> None:
        self._watched = watched
        self._package = package
        self._guards = 0  # number of enclosing `try: ... except ImportError`

    def visit_Try(self, node: ast.Try) -> ast.Try:
        is_guard = any(handler.type is None or _names(handler.type) & _IMPORT_ERRORS for handler in node.handlers)
        self._guards += is_guard
        node.body = self._statements(node.body)
        self._guards -= is_guard
        node.handlers = [self.visit(handler) for handler in node.handlers]
        node.orelse = self._statements(node.orelse)
        node.finalbody = self._statements(node.finalbody)
        return node

    def _statements(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        rewritten: list[ast.stmt] = []
        for statement in body:
            done = self.visit(statement)
            rewritten += done if isinstance(done, list) else [done]
        return rewritten

    def visit_Import(self, node: ast.Import) -> ast.Import | list[ast.stmt]:
        gone = [alias.name for alias in node.names if alias.name.startswith("torch.")]
        if self._guards or not gone:
            return node
        calls = [_call("ensure_module", [ast.Constant(name)], at=node) for name in gone]
        return [*(ast.copy_location(ast.Expr(call), node) for call in calls), node]

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom | list[ast.stmt]:
        module = self._module_of(node)
        if module is None or module == "__future__" or node.names[0].name == "*":
            return node
        statements: list[ast.stmt] = []
        for alias in node.names:
            arguments: list[ast.expr] = [ast.Constant(module), ast.Constant(alias.name)]
            if self._guards:
                arguments.append(ast.Constant(True))
            target = ast.copy_location(ast.Name(alias.asname or alias.name, ast.Store()), node)
            value = _call("imported", arguments, at=node)
            statements.append(ast.copy_location(ast.Assign([target], value), node))
        return statements

    def _module_of(self, node: ast.ImportFrom) -> str | None:
        """The full name of the module that is imported from; None if it is not known."""
        if not node.level:
            return node.module
        if not self._package:
            return None
        return importlib.util.resolve_name("." * node.level + (node.module or ""), self._package)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        self.generic_visit(node)
        if node.attr in self._watched and isinstance(node.ctx, ast.Load):
            return _call("attribute", [node.value, ast.Constant(node.attr)], at=node)
        return node

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called == "patch" and node.args and isinstance(target := node.args[0], ast.Constant):
            node.args[0] = _call("patched", [target], at=target)
        return node


def _call(method: str, arguments: list[ast.expr], *, at: ast.AST) -> ast.Call:
    function = ast.Attribute(ast.Name(_HELPER, ast.Load()), method, ast.Load())
    return ast.copy_location(ast.Call(function, arguments, []), at)


def _names(node: ast.expr) -> set[str]:
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}


class _Loader(importlib.machinery.SourceFileLoader):
    """Compiles the rewritten syntax tree. It reads and writes no bytecode files, which would hold the original text."""

    names: Names

    def get_code(self, fullname: str) -> types.CodeType:
        path = self.get_filename(fullname)
        tree = ast.parse(self.get_data(path), filename=path)
        package = fullname.rpartition(".")[0]
        return compile(rewrite(tree, self.names.watched, package), path, "exec", dont_inherit=True)

    def exec_module(self, module: types.ModuleType) -> None:
        setattr(module, _HELPER, self.names)
        super().exec_module(module)


class TestFiles(MetaPathFinder):
    """Finds modules below a tree's `test` folder, for test files that import each other, and those of the harness."""

    __test__ = False  # not a test class of ours

    def __init__(self, folders: Sequence[Path], names: Names, *, harness: Sequence[str] = ()) -> None:
        """folders: folders of the test files, which are on the path as for `python test/folder/test_x.py`. harness: dotted names
        of modules of the installed torch that are part of the tests. Those that are loaded already are loaded anew: to find the
        originals of the names may have imported one.
        """
        self._folders = tuple(folders)
        self._loader = type("_NamedLoader", (_Loader,), {"names": names})
        self._finders = [importlib.machinery.FileFinder(str(folder), (self._loader, [".py"])) for folder in folders]
        self._harness = frozenset(harness)
        for module in self._harness:
            sys.modules.pop(module, None)

    def install(self) -> None:
        """Install this finder before all others, and put the folders on the path."""
        sys.meta_path.insert(0, self)
        sys.path[:0] = map(str, self._folders)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname in self._harness:
            spec = importlib.machinery.PathFinder.find_spec(fullname, path)
            if spec is not None and spec.origin is not None:
                spec.loader = self._loader(fullname, spec.origin)
            return spec
        if path is not None:  # inside a package, which has a path of its own
            return None
        for finder in self._finders:
            spec = finder.find_spec(fullname)
            if spec is not None and spec.loader is not None:  # a folder without a module must not hide a real package
                return spec
        return None

    def load(self, file: str) -> types.ModuleType:
        """Import a file of the folders. Raises what its top level raises."""
        return importlib.import_module(Path(file).stem)

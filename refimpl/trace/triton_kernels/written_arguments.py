"""Which parameters of a Triton kernel it writes: a data flow analysis of its source, and of the functions that it calls.

Counterpart: torch/_higher_order_ops/triton_kernel_wrap.py identify_accessed_tensors
Differs: upstream compiles the kernel and reads Triton's IR, which needs a compiler for the device. The source is the same for
Triton's interpreter, the compiler and a machine without a GPU.

Each variable holds the parameters that it may point to: `tl.load(x_ptr + i)` points to nothing, `x_ptr + i` to `x_ptr`. A store
writes what its pointer may point to. Where the source does not tell, everything that is passed there counts as written: calls of
functions that are not Triton's, inline assembly, a method of an unknown class, a kernel without source. A number that is cast to
a pointer may point to anything.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import FunctionType, ModuleType
from typing import Any

from refimpl.trace.triton_kernels.kernel_objects import is_function, layers_of, python_function

Pointees = frozenset[str]  # names of parameters of the launched kernel
_NOTHING: Pointees = frozenset()
# Modules of Triton's language whose functions write only where their name says so.
_LANGUAGE = {f"triton.language.{name}" for name in ("core", "standard", "math", "random", "semantic")}
_STORES = ("store", "atomic_", "scatter")
_LOADS = ("load", "gather")
_OPAQUE = ("inline_asm", "extern", "dispatch", "call")
_CASTS = ("to", "cast")
_POINTER = "pointer_type"
_UNKNOWN: Any = object()


@dataclass(frozen=True, slots=True)
class Read:
    """A name that the code reads from its globals or its closure, and what it found there."""

    function: FunctionType
    name: str
    found: Any


@dataclass(slots=True)
class _AnalysisState:
    """One analysis of a launch. Mutable."""

    everything: Pointees
    written: set[str] = field(default_factory=set)
    reads: dict[tuple[FunctionType, str], Any] = field(default_factory=dict)  # function, name -> what it found
    known: dict[tuple[Any, ...], Pointees | None] = field(
        default_factory=dict
    )  # call -> its result; None while it runs


def written_parameters(kernel: Any, tensors: frozenset[str], constants: Mapping[str, Any]) -> frozenset[str]:
    """The parameters among `tensors` that the kernel may write. constants: the other arguments, by name."""
    if _has_hooks(kernel) or any(type(value).__name__ == _POINTER for value in constants.values()):
        return tensors
    state = _AnalysisState(tensors)
    given = {name: frozenset({name}) for name in tensors}
    _analysed(python_function(kernel), given, constants, state)
    for layer in layers_of(kernel):  # an autotuner clears and restores these itself
        state.written.update(getattr(layer, "reset_to_zero", ()), getattr(layer, "restore_value", ()))
    return tensors & state.written


def code_read_by(kernel: Any) -> list[Read]:
    """The functions that decide what the kernel writes: those that its code calls, by the names that it finds them by."""
    state = _AnalysisState(_NOTHING)
    _analysed(python_function(kernel), {}, {}, state)
    return [
        Read(function, name, found)
        for (function, name), found in state.reads.items()
        if is_function(found) or isinstance(found, FunctionType)
    ]


def _has_hooks(kernel: Any) -> bool:
    """Whether functions of the program's run before or after the kernel, on its arguments."""
    for layer in layers_of(kernel):
        if getattr(layer, "pre_run_hooks", ()) or any(config.pre_hook for config in getattr(layer, "configs", ())):
            return True
        if getattr(layer, "user_defined_pre_hook", False) or getattr(layer, "user_defined_post_hook", False):
            return True
    return False


def _analysed(
    function: FunctionType, given: Mapping[str, Pointees], constants: Mapping[str, Any], state: _AnalysisState
) -> Pointees:
    """Add what a call of the function writes to `state`. Returns what its result may point to."""
    functions = {name: value for name, value in constants.items() if is_function(value)}
    key = (function, *sorted(given.items()), *sorted((name, id(value)) for name, value in functions.items()))
    passed = frozenset().union(*given.values())
    if key in state.known:
        found = state.known[key]
        if found is None:  # it calls itself
            state.written |= passed
            return passed
        return found
    state.known[key] = None
    definition = _definition_of(function)
    if definition is None:
        state.written |= passed
        found = passed
    else:
        found = _Body(function, definition, given, functions, state).result()
    state.known[key] = found
    return found


def _definition_of(function: FunctionType) -> ast.FunctionDef | None:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return None
    first = tree.body[0]
    is_it = isinstance(first, ast.FunctionDef) and first.name == function.__code__.co_name
    return first if is_it and isinstance(first, ast.FunctionDef) else None


class _Body(ast.NodeVisitor):
    """Walks the statements of one function, again until nothing changes. Branches that do not run count as well."""

    def __init__(
        self,
        function: FunctionType,
        definition: ast.FunctionDef,
        given: Mapping[str, Pointees],
        functions: Mapping[str, Any],
        state: _AnalysisState,
    ) -> None:
        self._function = function
        self._definition = definition
        self._functions = functions
        self._state = state
        self._variables = {argument.arg: _NOTHING for argument in _parameters(definition)} | dict(given)
        self._returned = _NOTHING

    def result(self) -> Pointees:
        before = None
        while before != (now := (dict(self._variables), set(self._state.written), self._returned)):
            before = now
            for statement in self._definition.body:
                self.visit(statement)
        return self._returned

    # ------------------------------------------------------------------------------------------------ statements

    def visit_Assign(self, node: ast.Assign) -> None:
        value = self._of(node.value)
        for target in node.targets:
            self._assign(target, value)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._assign(node.target, self._of(node.value))

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self._assign(node.target, self._of(node.value))

    def visit_For(self, node: ast.For) -> None:
        self._assign(node.target, self._of(node.iter))
        for statement in (*node.body, *node.orelse):
            self.visit(statement)

    def visit_With(self, node: ast.With) -> None:
        for item in node.items:
            value = self._of(item.context_expr)
            if item.optional_vars is not None:
                self._assign(item.optional_vars, value)
        for statement in node.body:
            self.visit(statement)

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None:
            self._returned |= self._of(node.value)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """A function within the kernel, which Triton does not compile: it may use all that the kernel has."""
        self._state.written |= frozenset().union(*self._variables.values())

    def generic_visit(self, node: ast.AST) -> None:
        if isinstance(node, ast.expr):
            self._of(node)
        else:
            super().generic_visit(node)

    def _assign(self, target: ast.expr, value: Pointees) -> None:
        if isinstance(target, ast.Name):
            self._variables[target.id] = self._variables.get(target.id, _NOTHING) | value
        elif isinstance(target, (ast.Tuple, ast.List)):
            for element in target.elts:
                self._assign(element, value)
        elif isinstance(target, (ast.Starred, ast.Subscript, ast.Attribute)):
            self._assign(target.value, value)

    # ------------------------------------------------------------------------------------------------ expressions

    def _of(self, node: ast.expr) -> Pointees:
        """What the value of an expression may point to."""
        if isinstance(node, ast.Name):
            return self._variables.get(node.id, _NOTHING)
        if isinstance(node, ast.Call):
            return self._of_call(node)
        if isinstance(node, ast.Attribute) and node.attr == "element_ty":  # a type of numbers
            return _NOTHING
        if isinstance(node, ast.NamedExpr):
            value = self._of(node.value)
            self._assign(node.target, value)
            return value
        if isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)):
            for generator in node.generators:
                self._assign(generator.target, self._of(generator.iter))
        parts = [self._of(part) for part in _parts_of(node)]
        return _NOTHING if isinstance(node, ast.Compare) else frozenset().union(*parts)

    def _of_call(self, node: ast.Call) -> Pointees:
        args = [self._of(arg) for arg in node.args]
        named = {keyword.arg: self._of(keyword.value) for keyword in node.keywords}
        passed = frozenset().union(*args, *named.values())
        callee = self._static(node.func)
        if callee is not _UNKNOWN:
            return self._of_static_call(callee, node, args, named, passed)
        if isinstance(node.func, ast.Attribute):
            receiver = self._of(node.func.value)
            return self._of_method(node.func.attr, receiver, passed)
        passed |= self._of(node.func)
        self._state.written |= passed
        return passed

    def _of_static_call(
        self, callee: Any, node: ast.Call, args: list[Pointees], named: dict[str | None, Pointees], passed: Pointees
    ) -> Pointees:
        module = getattr(callee.fn if is_function(callee) else callee, "__module__", "") or ""
        if is_function(callee) and not module.startswith("triton.language"):
            if None in named or any(isinstance(arg, ast.Starred) for arg in node.args):
                self._state.written |= passed
                return passed
            return self._of_kernel(callee, node, args, named)
        if module == "builtins" or module == "triton" or module.startswith("triton.runtime"):
            return passed
        name = getattr(callee, "__name__", "")
        if name == _POINTER:  # numbers become pointers
            self._state.written |= self._state.everything
        if module not in _LANGUAGE or name.startswith(_OPAQUE):
            self._state.written |= passed
            return passed
        pointer = args[0] if args else named.get("pointer", passed)
        return self._of_language(name, pointer, passed)

    def _of_language(self, name: str, pointer: Pointees, passed: Pointees) -> Pointees:
        """A function or method of Triton's language. `pointer`: what it reads or writes, if it does."""
        if name.startswith(_STORES):
            self._state.written |= pointer
            return _NOTHING
        if name.startswith(_LOADS):
            return _NOTHING
        if name in _CASTS and passed - pointer:  # `address.to(out_ptr.dtype)`
            self._state.written |= self._state.everything
        return passed

    def _of_kernel(
        self, callee: Any, node: ast.Call, args: list[Pointees], named: dict[str | None, Pointees]
    ) -> Pointees:
        function = python_function(callee)
        names = list(inspect.signature(function).parameters)
        given = dict(zip(names, args, strict=False)) | {str(name): value for name, value in named.items()}
        written_as = dict(zip(names, node.args, strict=False)) | {str(k.arg): k.value for k in node.keywords}
        functions = {name: self._static(value) for name, value in written_as.items()}
        return _analysed(function, {name: value for name, value in given.items() if value}, functions, self._state)

    def _of_method(self, name: str, receiver: Pointees, passed: Pointees) -> Pointees:
        if name.startswith((*_STORES, *_LOADS)) or name in _CASTS or _is_method_of_language(name):
            return self._of_language(name, receiver, receiver | passed)
        self._state.written |= receiver | passed
        return receiver | passed

    # ------------------------------------------------------------------------------------------------ names

    def _static(self, node: ast.expr) -> Any:
        """The object that a name, or an attribute of a module, stands for; _UNKNOWN for what is known only when it runs."""
        if isinstance(node, ast.Name):
            if node.id in self._variables:
                return self._functions.get(node.id, _UNKNOWN)
            found = _found_by(self._function, node.id)
            if found is not _UNKNOWN:
                self._state.reads[self._function, node.id] = found
            return found
        if isinstance(node, ast.Attribute):
            owner = self._static(node.value)
            return getattr(owner, node.attr, _UNKNOWN) if isinstance(owner, ModuleType) else _UNKNOWN
        return _UNKNOWN


def _parameters(definition: ast.FunctionDef) -> list[ast.arg]:
    return [*definition.args.posonlyargs, *definition.args.args, *definition.args.kwonlyargs]


def _parts_of(node: ast.AST) -> list[ast.expr]:
    """The expressions directly within a node, or within a part of it that is no expression, such as a keyword."""
    parts: list[ast.expr] = []
    for child in ast.iter_child_nodes(node):
        parts.extend([child] if isinstance(child, ast.expr) else _parts_of(child))
    return parts


def _is_method_of_language(name: str) -> bool:
    """Whether tensors and descriptors of Triton's language have such a method."""
    language = sys.modules.get("triton.language.core")
    classes = [getattr(language, kind, None) for kind in ("tensor", "tensor_descriptor", "dtype")]
    return any(class_ is not None and hasattr(class_, name) for class_ in classes)


def _found_by(function: FunctionType, name: str) -> Any:
    """What the function's code finds by a name: in its closure, its globals, or among the builtins."""
    if name in function.__code__.co_freevars:
        cell = (function.__closure__ or ())[function.__code__.co_freevars.index(name)]
        try:
            return cell.cell_contents
        except ValueError:
            return _UNKNOWN
    return function.__globals__.get(name, getattr(builtins, name, _UNKNOWN))

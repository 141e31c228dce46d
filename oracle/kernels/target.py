"""Loads FILE.py:NAME, a function in a file of the user."""

from __future__ import annotations

import ast
import difflib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from oracle.errors import UsageError
from oracle.program.user_file import package_of
from oracle.subjects.refimpl_kernels import is_kernel, triton_emulated


def load_function(target: str, option: str, *, emulated: bool) -> Callable[..., Any]:
    """The function that FILE.py:NAME names. UsageError if there is no such file or function.

    `emulated`: `import triton` in the file imports the emulator.
    """
    file, colon, name = target.rpartition(":")
    if not colon or not name.isidentifier():
        raise UsageError(
            seen=f"{option} {target!r}", expected="FILE.py:NAME", do="name a file and, after a colon, a function in it"
        )
    path = Path(file).resolve()
    if not path.is_file():
        raise UsageError(seen=f"{option} {target!r}: no file {file}", expected="a Python file", do="correct the path")
    with triton_emulated() if emulated else nullcontext():
        module = _load(path, option)
    if not hasattr(module, name):
        functions = [n for n, v in vars(module).items() if inspect.isfunction(v) and v.__module__ == module.__name__]
        near = difflib.get_close_matches(name, functions, n=2)
        raise UsageError(
            seen=f"{option} {target!r}: {path.name} defines no {name!r}",
            expected=f"one of its functions: {', '.join(functions) or 'it has none'}",
            do=f"did you mean {' or '.join(near)}?" if near else "correct the name",
        )  # fmt: skip
    found = getattr(module, name)
    if is_kernel(found):
        raise UsageError(
            seen=f"{option} {target!r}: a @triton.jit kernel", expected="a Python function that takes tensors and launches it",
            do=f"write a launcher: def run_{name}(...): out = torch.empty(...); {name}[grid](...); return out",
        )  # fmt: skip
    if not callable(found):
        raise UsageError(
            seen=f"{option} {target!r}: a {type(found).__name__}", expected="a function", do="name a function"
        )
    return found


_MODULES: dict[Path, Any] = {}


def _load(path: Path, option: str) -> Any:
    """Import the file once as a module. Its folder is added to the import path."""
    if path in _MODULES:
        return _MODULES[path]
    root, package = package_of(path, _tree(path))
    # files of one name in two folders are two modules; relative imports are those of the file's package
    name = ".".join([*package, f"kernel_file_{len(_MODULES)}_{path.stem}"])
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(seen=f"{option} {path}", expected="a Python file (.py)", do="correct the path")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UsageError(
            seen=f"{option} {path.name}: {type(error).__name__} while it is imported: {error}",
            expected="a file that can be imported", do="correct the file, or install what it imports",
        ) from error  # fmt: skip
    _MODULES[path] = module
    return module


def _tree(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return ast.Module(body=[], type_ignores=[])  # the import says what is wrong with it


def parameter_names(function: Callable[..., Any]) -> tuple[str, ...]:
    """Names of the parameters without a default."""
    parameters = inspect.signature(function).parameters.values()
    return tuple(
        p.name for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    )


def check_call(function: Callable[..., Any], option: str, names: Sequence[str]) -> None:
    """UsageError unless the function can be called with this many positional arguments."""
    try:
        inspect.signature(function).bind(*names)
    except TypeError as error:
        raise UsageError(
            seen=f"{len(names)} arguments ({', '.join(names)}) for {option} {getattr(function, '__name__', function)}"
            f"{inspect.signature(function)}: {error}",
            expected="arguments that launcher and reference both take, by position", do="correct --inputs or the functions",
        ) from error  # fmt: skip

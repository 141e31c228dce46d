"""A user's own code as a Program: `model.py:function`, `model.py:Module`, `model.py:make(3)`.

The file's text is the program's source, with a few lines at its end, so that line numbers stay those of the file. Relative
imports become absolute ones, since the source runs outside of its package. A run of the program executes the file anew.
Therefore a file that does more than compute (writes files, opens connections, starts processes) is refused, unless the user
allows it. What it does is seen in a trial: a forked process that runs the program once in eager.
"""

from __future__ import annotations

import ast
import codecs
import difflib
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from oracle.errors import UsageError
from oracle.isolate.forked import ChildDiedError, ChildLateError, in_child
from oracle.program import Call, Program, default_plan
from oracle.program.build import Instance, ProgramLoadError, instantiate
from oracle.program.input_text import parse_call

TARGET = re.compile(r"^(?P<file>.+\.py):(?P<name>[A-Za-z_]\w*)(?P<call>\(.*\))?$", re.DOTALL)
_TRIAL_S = 120.0
_SHOWN = 5
_MANY = 3_000_000  # numbers in arguments and parameters; with more, the user is told that a check takes long
# Folders of code that is not the user's: torch-oracle, Python's library, installed packages.
_OWN = str(Path(__file__).parents[2] / "oracle")
_INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})
# Audit events of code that does more than compute. "open" counts if it is for writing.
_EFFECTS = frozenset(
    [
        "os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "shutil.rmtree",
        "socket.connect", "socket.bind", "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.kill",
    ]
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class UserFile:
    """The target that a user named: a file, a name in it, and how it is called."""

    path: Path
    name: str
    call: str = ""  # "(3, dim=4)": the name is a function that makes a module, called so
    # Inputs as text (oracle.program.input_text), or the name of a function of the file that makes them.
    inputs: str = ""


def program_of_file(
    target: str,
    *,
    inputs: str = "",
    calls: int = 3,
    seed: int = 0,
    dynamic: bool | None = None,
    backward: bool | None = None,
    allow_effects: bool = False,
) -> Program:
    """The program that a target such as "model.py:Net" names, called `calls` times on other values.

    `backward=None` differentiates if an input or a parameter requires grad. Runs the program once, in a forked process.

    Raises UsageError if there is no such file or name, if the file does not import, if the inputs are missing or do not fit, if
    eager cannot run the program, and for side effects that are not allowed.
    """
    asked = _parsed(target, inputs)
    tree = _tree(asked.path)
    root, package = package_of(asked.path, tree)
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))  # the file may import its neighbours or its package; child processes inherit it
    if (folder := str(asked.path.parent.resolve())) not in sys.path:
        sys.path.append(folder)  # last: within a package a neighbour may be called as a module of Python's library
    glue, is_module, call = _glue(asked, tree)
    # A file without an end of line, or that ends in a comment, must not swallow the first line that is added.
    source = _source(asked.path, tree, package).rstrip("\n") + "\n\n" + glue
    program = Program(
        name=asked.path.name, source=source, calls=(call,), seed=seed, is_module=is_module, dynamic=dynamic
    )
    trial = _tried(program, asked)
    if trial["effects"] and not allow_effects:
        shown = "; ".join(trial["effects"][:_SHOWN])
        raise UsageError(
            seen=f"{target} has side effects: {shown}",
            expected="a program that only computes, for it is run many times",
            do="move the effects behind `if __name__ == '__main__':`, or allow them with --allow-effects",
        )
    if trial["elements"] > _MANY:
        sys.stderr.write(
            f"note: {target} has {trial['elements'] / 1e6:.0f} million numbers in its arguments and parameters. A check "
            "runs it many times and may take minutes; smaller sizes usually show the same difference.\n"
        )
    differentiated = trial["needs_grad"] if backward is None else backward
    return replace(program, calls=default_plan(replace(call, backward=differentiated), key=None, count=calls))


def _parsed(target: str, inputs: str) -> UserFile:
    found = TARGET.match(target)
    if found is None:
        raise UsageError(
            seen=f"target {target!r}", expected="FILE.py:NAME, where NAME is a function or a module of the file",
            do="write for example model.py:Net --inputs 'f32[4, 8]'",
        )  # fmt: skip
    path = Path(found["file"])
    if not path.is_file():
        raise UsageError(seen=f"no file {path}", expected="a Python file", do="check the path")
    return UserFile(path=path, name=found["name"], call=found["call"] or "", inputs=inputs.strip())


def _tree(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes())
    except (SyntaxError, ValueError) as error:
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
        raise UsageError(
            seen=f"{path}{line}: {error.args[0]}", expected="a file of Python source", do="correct the file"
        ) from error


def package_of(path: Path, tree: ast.Module) -> tuple[Path, list[str]]:
    """The folder to import from, and the package of the file: for `src/net/blocks/mlp.py`, `src` and ["net", "blocks"].

    A folder is of a package if it has an `__init__.py`, or if a relative import of the file reaches it.
    """
    levels = max((node.level for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)), default=0)
    root, package = path.parent.resolve(), list[str]()
    while root.name and (len(package) < levels or (root / "__init__.py").is_file()):
        package.insert(0, root.name)
        root = root.parent
    return root, package


_RELATIVE = re.compile(rb"from[\s\\]*\.[.\s\\]*?(?=\w)")


def _source(path: Path, tree: ast.Module, package: list[str]) -> str:
    """The text of the file with `from .blocks import Mlp` as `from net.blocks import Mlp`, and the same number of lines."""
    lines = path.read_bytes().removeprefix(codecs.BOM_UTF8).splitlines(keepends=True)
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or not node.level:
            continue
        parent = ".".join(package[: len(package) - node.level + 1])
        absolute = f"from {parent}." if node.module else f"from {parent} "
        at, line = node.col_offset, lines[node.lineno - 1]
        lines[node.lineno - 1] = line[:at] + _RELATIVE.sub(absolute.encode(), line[at:], count=1)
    return b"".join(lines).decode("utf-8")


def _glue(asked: UserFile, tree: ast.Module) -> tuple[str, bool, Call]:
    """The lines to add to the file, whether they define a factory of a module, and the call without its flags."""
    names = _top_level(tree)
    if asked.name not in names:
        near = difflib.get_close_matches(asked.name, names, n=3, cutoff=0.4)
        raise UsageError(
            seen=f"{asked.path}: no {asked.name!r} at module level", expected=f"one of {', '.join(names) or 'none'}",
            do=f"did you mean {' or '.join(near)}?" if near else "name a function or an nn.Module of the file",
        )  # fmt: skip
    node = names[asked.name]
    is_module = True
    if asked.call:
        lines = [f"program = lambda: {asked.name}{_call(asked)}"]
    elif isinstance(node, ast.FunctionDef):
        lines, is_module = [f"program = {asked.name}"], False
    elif isinstance(node, ast.ClassDef):
        lines = [f"program = {asked.name}"]
    else:  # assigned or imported: only a run shows what it is
        lines, is_module = [f"program = {asked.name}"], _is_module(asked, tree)
        if is_module:
            lines = ["import copy as _copy", f"program = lambda: _copy.deepcopy({asked.name})"]
    call, more = _inputs(asked, names)
    return "\n".join([*lines, *more]) + "\n", is_module, call


def _call(asked: UserFile) -> str:
    """The arguments in parentheses, which may use names of the file."""
    try:
        call = ast.parse(f"f{asked.call}", mode="eval").body
    except (SyntaxError, ValueError) as error:
        raise UsageError(
            seen=f"{asked.name}{asked.call}: {error.args[0]}", expected="a call in Python, such as make(3, bias=False)",
            do="check the parentheses, and quote the whole target for the shell",
        ) from error  # fmt: skip
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise UsageError(
            seen=f"{asked.name}{asked.call}", expected="one call, such as make(3, bias=False)",
            do="write a function without arguments that makes the module, and name that call, such as make()",
        )  # fmt: skip
    return asked.call


def _top_level(tree: ast.Module) -> dict[str, ast.AST]:
    """The statement that binds each name at module level; the last one if there are several."""
    found: dict[str, ast.AST] = {}
    for node in tree.body:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                found[name] = node
            case ast.Assign(targets=targets):
                found.update({target.id: node for target in targets if isinstance(target, ast.Name)})
            case ast.AnnAssign(target=ast.Name(id=name)):
                found[name] = node
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                found.update({(alias.asname or alias.name).partition(".")[0]: node for alias in names})
            case _:
                pass
    return found


def _is_module(asked: UserFile, tree: ast.Module) -> bool:
    """Whether a name that the file assigns or imports is an nn.Module. Runs the file in a forked process."""
    source = _source(asked.path, tree, package_of(asked.path, tree)[1]) + f"\n\nprogram = lambda: {asked.name}\n"
    program = Program(name=asked.path.name, source=source)
    return _answered(lambda: {"is_module": _kind(program)}, program, asked)["is_module"]


def _kind(program: Program) -> bool:
    return isinstance(instantiate(program).target(), torch.nn.Module)


def _inputs(asked: UserFile, names: dict[str, ast.AST]) -> tuple[Call, list[str]]:
    """The call, and the lines that define `inputs(call)` if a function of the file makes them."""
    if asked.inputs and asked.inputs.isidentifier() and asked.inputs in names:
        return Call(), [*_AS_CALL, f"def inputs(call, _make={asked.inputs}):", "    return _as_call(_make())"]
    if asked.inputs.isidentifier() and asked.inputs not in ("None", "True", "False"):
        near = difflib.get_close_matches(asked.inputs, names, n=3)
        raise UsageError(
            seen=f"--inputs {asked.inputs}: {asked.path} has no {asked.inputs!r} at module level",
            expected="a function of the file that makes the inputs, or inputs as text, such as 'f32[4, 8], scale=0.5'",
            do=f"did you mean {' or '.join(near)}?" if near else "define the function, or import it, at module level",
        )  # fmt: skip
    if asked.inputs:
        return parse_call(asked.inputs), []
    if isinstance(node := names.get("inputs"), ast.FunctionDef):
        is_per_call = bool(node.args.args)
        given = "call" if is_per_call else ""
        return Call(), [*_AS_CALL, "def inputs(call, _make=inputs):", f"    return _as_call(_make({given}))"]
    return Call(args=[]), []


# `(args, kwargs)`, a tuple or list of arguments, or one argument.
_AS_CALL = (
    "def _as_call(made):",
    "    if isinstance(made, (tuple, list)):",
    "        if len(made) == 2 and isinstance(made[0], (tuple, list)) and isinstance(made[1], dict):",
    "            return made",
    "        return tuple(made), {}",
    "    return (made,), {}",
)


# --------------------------------------------------------------------------------------------------------------- trial


def _tried(program: Program, asked: UserFile) -> dict[str, Any]:
    """The facts of one run in eager: {"needs_grad", "effects"}. Raises UsageError if eager cannot run the program."""
    return _answered(lambda: _needs_grad(instantiate(program)), program, asked)


def _answered(work: Callable[[], dict[str, Any]], program: Program, asked: UserFile) -> dict[str, Any]:
    """The facts about the user's code, found in a forked process. Raises UsageError if it fails there."""
    try:
        answer = in_child(lambda: _trial(work, program), timeout_s=_TRIAL_S)
    except ChildLateError as late:
        raise UsageError(
            seen=f"{asked.path}:{asked.name}: {late} in eager", expected="a shorter program",
            do="use smaller inputs, or fewer layers",
        ) from late  # fmt: skip
    except ChildDiedError as died:
        raise UsageError(
            seen=f"{asked.path}:{asked.name}: the process died in eager of {died}",
            expected="a program that eager runs",
            do="run it alone; if memory was short, use smaller sizes",
        ) from died
    if "memory" in answer:
        raise UsageError(
            seen=f"{asked.path}:{asked.name} needs more memory than there is: {answer['memory']}",
            expected="a program that fits several times: eager, compiled, and in float64",
            do="use smaller sizes, or fewer layers",
        )
    if "make" in answer:
        raise UsageError(
            seen=f"{asked.path}:{asked.name} cannot be made without arguments: {answer['make']}",
            expected="a module that is made without arguments, or a call that makes it",
            do=f"write the arguments, for example '{asked.path}:{asked.name}(8)'",
        )
    if "import" in answer:
        raise _does_not_import(asked, answer["import"], answer["trace"] + _before(answer))
    if answer.get("is_factory"):
        raise UsageError(
            seen=f"{asked.path}:{asked.name} returns a module", expected="a module, or a function that returns tensors",
            do=f"write '{asked.path}:{asked.name}()' to judge the module that it makes",
        )  # fmt: skip
    if "call" in answer and answer["takes_none"]:
        raise UsageError(
            seen=f"{asked.path}:{asked.name} takes no arguments, but there are inputs",
            expected="a module, or a function of the inputs",
            do=f"write '{asked.path}:{asked.name}()' to judge the module that it makes, or leave --inputs out",
        )  # fmt: skip
    if "call" in answer:
        trace = (f"\n{answer['trace']}" if answer["trace"] else "") + _before(answer)
        raise UsageError(
            seen=f"{asked.path}:{asked.name} raises in eager: {answer['call']}{trace}",
            expected="a program that eager runs on these inputs",
            do="correct --inputs (or leave it out, and define a function `inputs()` in the file)"
            if asked.inputs
            else "give the inputs, for example --inputs 'f32[4, 8], scale=0.5', or define a function `inputs()` in the file",
        )
    if answer.get("is_meta"):
        raise UsageError(
            seen=f"{asked.path}:{asked.name} has tensors on the device meta", expected="tensors with values to compare",
            do="make them on the CPU",
        )  # fmt: skip
    return answer


def _before(answer: dict[str, Any]) -> str:
    """A line with the side effects of a program before it raised; "" if it had none."""
    return f"\n  before that: {'; '.join(answer['effects'][:_SHOWN])}" if answer["effects"] else ""


def _does_not_import(asked: UserFile, error: str, trace: str) -> UsageError:
    if asked.call and "in <lambda>: program = lambda:" in trace:
        own = "\n".join(line for line in trace.splitlines() if "in <lambda>: program = lambda:" not in line)
        return UsageError(
            seen=f"{asked.path}:{asked.name}{asked.call} raises {error}" + (f"\n{own}" if own else ""),
            expected="a call that makes a module", do="correct its arguments; they may use names of the file",
        )  # fmt: skip
    return UsageError(
        seen=f"{asked.path} does not import: {error}\n{trace.strip()}", expected="a file that runs when it is imported",
        do="correct it; what it imports must be installed, or lie beside it",
    )  # fmt: skip


def _trial(work: Callable[[], dict[str, Any]], program: Program) -> dict[str, Any]:
    torch.set_num_threads(1)  # the parent's thread pool did not survive the fork
    sys.dont_write_bytecode = True
    effects: dict[str, None] = {}
    sys.addaudithook(_listener(effects))
    _hear_save(effects)
    try:
        return {**work(), "effects": [*effects]}
    except ProgramLoadError as error:
        cause, trace = error.__cause__, _own_frames(error.__cause__, program)
        if cause is not None and _is_of_memory(cause):
            return {"memory": _first_line(cause)}
        if program.is_module and isinstance(cause, TypeError) and not trace:  # the call of the class itself failed
            return {"make": str(cause)}
        return {"import": str(error), "trace": trace, "effects": [*effects]}
    except Exception as error:  # the user's code: told to the user
        if _is_of_memory(error):
            return {"memory": _first_line(error)}
        trace = _own_frames(error, program)
        takes_none = isinstance(error, TypeError) and "takes 0 positional arguments" in str(error) and not trace
        return {
            "call": f"{type(error).__name__}: {error}", "trace": trace, "effects": [*effects], "takes_none": takes_none
        }  # fmt: skip


def _is_of_memory(error: BaseException) -> bool:
    """Whether memory ran out. The CPU allocator raises a plain RuntimeError, so its message must be read."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "DefaultCPUAllocator" in str(error)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _needs_grad(instance: Instance) -> dict[str, Any]:
    """Runs the program once; says whether an input or a parameter requires grad, and whether a tensor has no values."""
    instance.prepare(0)
    args, kwargs = instance.inputs(0)
    leaves = tree_leaves((args, kwargs))
    if isinstance(instance.target, torch.nn.Module):
        leaves += instance.target.parameters()
    returned = instance.target(*args, **kwargs)
    needs_grad = any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves)
    is_meta = any(isinstance(leaf, torch.Tensor) and leaf.is_meta for leaf in (*leaves, *tree_leaves(returned)))
    is_factory = isinstance(returned, torch.nn.Module)
    elements = sum(leaf.numel() for leaf in leaves if isinstance(leaf, torch.Tensor))
    return {"needs_grad": needs_grad, "is_meta": is_meta, "is_factory": is_factory, "elements": elements}


def _hear_save(effects: dict[str, None]) -> None:
    """torch.save writes its file in C++, where Python's audit events do not see it."""
    save = torch.save

    def heard(obj: object, f: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(f, (str, os.PathLike)):
            effects[f"writes {os.fspath(f)}"] = None
        save(obj, f, *args, **kwargs)

    torch.save = heard  # in the forked process only


def _listener(effects: dict[str, None]) -> Callable[[str, tuple[Any, ...]], None]:
    def hear(event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, mode, flags = args
            writes = isinstance(mode, str) and any(letter in mode for letter in "wax+")
            writes = writes or (mode is None and isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR)))
            if writes and isinstance(path, str) and not path.startswith(("/dev/", "/proc/")):
                effects[f"writes {path}"] = None
        elif event in _EFFECTS:
            effects[f"{event} {', '.join(map(str, args[:2]))}"[:120]] = None

    return hear


def _own_frames(error: BaseException | None, program: Program) -> str:
    """The frames of a traceback that are in the user's file, and those in files that it imports from beside it."""
    frames = traceback.extract_tb(error.__traceback__) if error is not None else []
    lines = []
    for frame in frames:
        if frame.filename == f"<program {program.name}>":
            lines.append(f"  {program.name}:{frame.lineno}, in {frame.name}: {frame.line}")
        elif lines and not frame.filename.startswith((_OWN, *_INSTALLED, "<")):
            lines.append(f"  {os.path.relpath(frame.filename)}:{frame.lineno}, in {frame.name}: {frame.line}")
    return "\n".join(lines)

"""The command line, assembled from entry points of the group `torch_oracle.commands`, so that this module imports no command.

A command's module is imported when the command is called. The list of commands is made from docstrings in their source.

Exit codes: 0 clean, 1 findings, 2 usage or environment, 3 internal error, 4 a gate that measured nothing.
"""

from __future__ import annotations

import ast
import inspect
import sys
import traceback
from collections.abc import Callable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import typer
from rich.console import Console
from typer.core import TyperCommand, TyperGroup

from oracle.errors import TorchOracleError
from oracle.isolate import IsolateError

COMMAND_GROUP = "torch_oracle.commands"
_NAME = "torch-oracle"
# Click's base class of usage errors. Since 0.26 typer vendors click and exports only the subclasses.
_CommandLineError = cast(
    "type[typer.BadParameter]", next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")
)


def build_app() -> TyperGroup:
    """The application with every installed command, sorted by name."""
    points = sorted(entry_points(group=COMMAND_GROUP), key=lambda point: point.name)
    return TyperGroup(
        name=_NAME,
        help="Does the compiled program mean what the eager program means, and is it faster?",
        commands={point.name: _InstalledCommand(point) for point in points},
        no_args_is_help=True,
        rich_markup_mode=None,
    )


class _InstalledCommand(TyperCommand):
    """A command known by its entry point. Calling it imports its module with the options; its help is read when it is shown."""

    def __init__(self, point: EntryPoint) -> None:
        self._point = point
        super().__init__(point.name, rich_markup_mode=None)

    @property
    def help(self) -> str:
        """The command's docstring. To read those of all commands from their source takes a tenth of a second."""
        return inspect.cleandoc(_docstring(self._point))

    @help.setter
    def help(self, value: str | None) -> None:
        """The base class sets it to None."""

    def make_context(self, info_name: Any, args: Any, parent: Any = None, **extra: Any) -> Any:
        app = typer.Typer(
            add_completion=False,
            rich_markup_mode=None,  # otherwise "[subjects.NAME]" in a help text is taken for markup
            pretty_exceptions_enable=False,
        )
        app.command(self._point.name)(self._point.load())
        return typer.main.get_command(app).make_context(info_name, args, parent, **extra)


def _docstring(point: EntryPoint) -> str:
    """The command's docstring, read from its source file; its module is imported only if that does not define the function."""
    spec = find_spec(point.module)
    if spec is not None and spec.origin is not None and spec.origin.endswith(".py"):
        found = _docstrings(Path(spec.origin)).get(point.attr)
        if found is not None:
            return found
    return point.load().__doc__ or ""


@cache
def _docstrings(path: Path) -> dict[str, str]:
    """The docstrings of a file's functions. A file with ten commands is read once."""
    functions = [node for node in ast.parse(path.read_bytes()).body if isinstance(node, ast.FunctionDef)]
    return {node.name: ast.get_docstring(node) or "" for node in functions}


def main() -> None:
    """Entry point of the `torch-oracle` script."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run a command line of `torch-oracle` and return the exit code."""
    return run_app(build_app, arguments, name=_NAME)


def run_app(make_app: Callable[[], Any], arguments: list[str], *, name: str) -> int:
    """Run a command line and return the exit code. This is the process edge, where errors become messages and exit codes."""
    err = Console(stderr=True, soft_wrap=True)
    try:
        result = make_app().main(args=arguments, prog_name=name, standalone_mode=False)
        return result if isinstance(result, int) else 0
    except typer.Exit as exit_:
        return exit_.exit_code
    except _CommandLineError as error:
        error.show()
        return 2
    except (typer.Abort, KeyboardInterrupt):
        err.print("interrupted", highlight=False)
        return 2
    except BrokenPipeError:
        return 2
    except TorchOracleError as error:
        err.print(f"{name}: {error}", markup=False, highlight=False)
        return error.exit_code
    except IsolateError as error:
        err.print(f"{name}: {error}", markup=False, highlight=False)
        return 3
    except Exception:
        err.print(f"{name}: internal error, please report it with the text below", markup=False)
        err.print(traceback.format_exc(), markup=False, highlight=False)
        return 3


if __name__ == "__main__":
    main()

"""The command line: assembled from the entry points of group `torch_oracle.commands`, so that lower packages know no upper one.

Exit codes: 0 clean, 1 findings, 2 usage or environment, 3 internal error.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import cast

import typer
from rich.console import Console

from oracle.errors import TorchOracleError
from oracle.isolate import IsolateError

COMMAND_GROUP = "torch_oracle.commands"
_NAME = "torch-oracle"
# click's base of all usage errors; typer brings its own click since 0.26 and names only the leaves of it
_CommandLineError = cast(
    "type[typer.BadParameter]", next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")
)


def build_app() -> typer.Typer:
    """The application with every installed command, sorted by name."""
    app = typer.Typer(
        name=_NAME,
        help="Does the compiled program mean what the eager program means, and is it faster?",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,  # or "[subjects.NAME]" in a help text is taken for markup
        pretty_exceptions_enable=False,
    )
    for point in sorted(entry_points(group=COMMAND_GROUP), key=lambda point: point.name):
        app.command(point.name)(point.load())
    return app


def main() -> None:
    """Entry point of the `torch-oracle` script."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command line of `torch-oracle`; returns the exit code."""
    return run_app(build_app, arguments, name=_NAME)


def run_app(make_app: Callable[[], typer.Typer], arguments: list[str], *, name: str) -> int:
    """Run one command line; returns the exit code. The process edge: every error becomes a message and a code here."""
    err = Console(stderr=True, soft_wrap=True)
    try:
        result = typer.main.get_command(make_app()).main(args=arguments, prog_name=name, standalone_mode=False)
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

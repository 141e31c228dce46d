"""What the command line loads before it is needed: nothing for the list of commands, no torch for help and for lists."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import entry_points

from oracle.cli import COMMAND_GROUP

COMMANDS = sorted(point.name for point in entry_points(group=COMMAND_GROUP))
RUN = """
import json, sys
from oracle.cli import run
codes = [run(line.split()) for line in sys.argv[1:]]
print(json.dumps([codes, sorted(sys.modules)]))
"""


def run_in_one_process(*lines: str) -> tuple[list[int], set[str], str]:
    """The exit code of each command line, the modules that are loaded at the end, and what was printed."""
    done = subprocess.run([sys.executable, "-c", RUN, *lines], capture_output=True, text=True, check=True)
    printed, _, last = done.stdout.rstrip("\n").rpartition("\n")
    codes, modules = json.loads(last)
    return codes, set(modules), printed + done.stderr


def test_the_list_of_commands_imports_no_command() -> None:
    codes, loaded, printed = run_in_one_process("--help")
    assert codes == [0]
    of_commands = {"torch", "numpy", "pandas", "sqlalchemy", "suites.commands", "fuzz.campaign", "results.commands"}
    assert loaded & of_commands <= {"fuzz.campaign"}  # the package of a command, which loads nothing itself
    assert [name for name in COMMANDS if f"\n  {name} " not in printed] == []
    assert "Compare two runs case by case." in printed


def test_lists_and_the_help_of_every_command_load_no_torch() -> None:
    lines = ["list", "list subjects", "list tags", "issues", *(f"{name} --help" for name in COMMANDS)]
    codes, loaded, printed = run_in_one_process(*lines)
    assert codes == [0] * len(lines)
    assert loaded & {"torch", "scipy.stats", "refimpl"} == set()
    assert [text for text in ("\nfeatures\t", "\ninductor\t", "\nfeatures\tcontainers") if text not in printed] == []
    assert [name for name in COMMANDS if f"Usage: torch-oracle {name} " not in printed] == []


def test_a_command_line_that_cannot_run_ends_with_2() -> None:
    messages = {
        "sweeep": "Did you mean 'sweep'?",
        "sweep --suit opinfo": "No such option",
        "sweep --suite nothing": "suite 'nothing'",
        "show --db /nonexistent/results.db": "results.db",
    }
    codes, loaded, printed = run_in_one_process(*messages)
    assert codes == [2] * len(messages)
    assert [message for message in messages.values() if message not in printed] == []
    assert "torch" not in loaded

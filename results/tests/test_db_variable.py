"""One rule for all commands: the variable stands for the option or the argument that names the results database."""

from __future__ import annotations

import inspect
from importlib.metadata import entry_points
from typing import get_type_hints

import pytest

from results.files import DB_VARIABLE

COMMANDS = sorted(entry_points(group="torch_oracle.commands"), key=lambda point: point.name)


@pytest.mark.parametrize("name", [point.name for point in COMMANDS])
def test_a_command_with_a_database_reads_the_variable(name: str):
    (point,) = [point for point in COMMANDS if point.name == name]
    command = point.load()
    if "db" in inspect.signature(command).parameters:
        (option,) = get_type_hints(command, include_extras=True)["db"].__metadata__
        assert (option.envvar, option.show_envvar) == (DB_VARIABLE, True)

"""Forms of an exported program that must all compute the same: decomposed, saved and loaded, exported again."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
from torch import nn

from refimpl.export import ExportedProgram, export, load, save

STRICT = pytest.mark.parametrize("strict", [False, True], ids=["non_strict", "strict"])
TABLES = pytest.mark.parametrize("table", ["none", "empty", "default"])


def decomposed(program: ExportedProgram, table: str) -> ExportedProgram:
    """The program after the named table of decompositions; for "none", the program itself."""
    return program if table == "none" else program.run_decompositions({} if table == "empty" else None)


def exported(module: nn.Module, *args: Any, strict: bool = False, table: str = "none", **kwargs: Any) -> nn.Module:
    """A module that runs the exported and decomposed module."""
    return decomposed(export(module, args, kwargs, strict=strict), table).module()


def saved(program: ExportedProgram, **options: Any) -> io.BytesIO:
    """An archive of the program."""
    buffer = io.BytesIO()
    save(program, buffer, **options)
    buffer.seek(0)
    return buffer


def archived(program: ExportedProgram) -> ExportedProgram:
    """The program, saved and loaded again."""
    return load(saved(program))


def again(program: ExportedProgram) -> ExportedProgram:
    """Exported again, from the module that runs it."""
    assert program.example_inputs is not None
    return export(program.module(), *program.example_inputs)


FORMS: dict[str, Callable[[ExportedProgram], ExportedProgram]] = {
    "exported": lambda program: program,
    "decomposed": lambda program: program.run_decompositions(),
    "functional": lambda program: program.run_decompositions({}),
    "decomposed twice": lambda program: program.run_decompositions().run_decompositions(),
    "functional, then decomposed": lambda program: program.run_decompositions({}).run_decompositions(),
    "exported again": again,
    "exported again, decomposed": lambda program: again(program).run_decompositions(),
    "decomposed, exported again, decomposed": lambda program: again(program.run_decompositions()).run_decompositions(),
    "saved": archived,
    "decomposed, saved": lambda program: archived(program.run_decompositions()),
    "decomposed, saved, decomposed": lambda program: archived(program.run_decompositions()).run_decompositions(),
}


def in_forms(*names: str) -> pytest.MarkDecorator:
    """A test of each of the named forms."""
    return pytest.mark.parametrize("form", names)

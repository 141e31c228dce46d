"""Debug files of capture (folder, log, recorded errors), and lazily formatted graphs and bytecode.

Counterpart: torch/_dynamo/utils.py setup_compile_debug, write_record_to_file, lazy_format_graph_tabular
"""

from __future__ import annotations

import contextlib
import dis
import logging
import os
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

from torch import fx

from refimpl.capture.config import config
from refimpl.capture.public.timing import tabulate
from refimpl.capture.repro.scripts import get_debug_dir

_LOG = logging.getLogger("refimpl.capture")


def setup_compile_debug() -> contextlib.ExitStack:
    """With TORCH_COMPILE_DEBUG=1, log to a file in the debug folder until the returned stack is closed."""
    stack = contextlib.ExitStack()
    if os.environ.get("TORCH_COMPILE_DEBUG", "0") == "1":
        _log_to(Path(get_debug_dir()) / "torchdynamo" / "debug.log", stack)
    return stack


def setup_log_file() -> contextlib.ExitStack:
    """Log to `config.log_file_name`, if set, until the returned stack is closed."""
    stack = contextlib.ExitStack()
    if config.log_file_name is not None:
        _log_to(Path(config.log_file_name), stack)
    return stack


def _log_to(path: Path, stack: contextlib.ExitStack) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(path)
    _LOG.addHandler(handler)
    stack.callback(handler.close)
    stack.callback(_LOG.removeHandler, handler)


def gen_record_file_name(exc: BaseException, code: CodeType) -> str:
    """The path of the record file for an error in a function."""
    name = f"{code.co_name}_{type(exc).__name__}_{code.co_firstlineno}.rec"
    return os.path.join(get_debug_dir(), "error_recordings", name)


def write_record_to_file(filename: str, exec_record: Any) -> None:
    """Write a record by its `dump(file)`. An existing file is kept, and errors are logged, not raised."""
    path = Path(filename)
    try:
        if path.exists():
            _LOG.warning("the error record is not written, because the file exists: %s", filename)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            exec_record.dump(file)
    except Exception:  # must not hide the recorded error
        _LOG.exception("the error record cannot be written to %s", filename)


class LazyString:
    """A string that `make` formats each time it is shown."""

    def __init__(self, make: Callable[[], str]) -> None:
        self._make = make

    def __str__(self) -> str:
        return self._make()


def lazy_format_graph_tabular(fn_name: str, gm: fx.GraphModule) -> LazyString:
    """A table of the graph's nodes, formatted when it is shown."""

    def table() -> str:
        rows = [(node.op, node.name, node.target, node.args, node.kwargs) for node in gm.graph.nodes]
        return f"{fn_name}\n{tabulate(rows, headers=['opcode', 'name', 'target', 'args', 'kwargs'])}\n"

    return LazyString(table)


def format_bytecode(prefix: str, name: str, filename: str, line_no: int, code: CodeType) -> str:
    """A heading and the disassembled bytecode."""
    return f"{prefix} {name} {filename} line {line_no} \n{dis.Bytecode(code).dis()}\n"

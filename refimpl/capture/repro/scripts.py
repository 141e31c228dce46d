"""Writes a graph and its inputs as a script that compiles and runs it. Next to the script, a file holds the tensors.

Counterpart: torch/_dynamo/repro/after_dynamo.py generate_dynamo_fx_repro_string, dump_backend_state, dump_to_minify_after_dynamo;
torch/_dynamo/debug_utils.py minifier_dir; torch/_dynamo/utils.py get_debug_dir
Differs: inputs and constants are saved with their values: tensors and numbers, no other objects, so that no code runs where the
file is read. The settings of capture are not repeated.
"""

from __future__ import annotations

import datetime
import functools
import io
import os
import pickle
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx

from refimpl._torch import AUTOCAST_DEVICES, import_block
from refimpl.capture.config import config

_LAUNCHER = "minifier_launcher.py"
_SCRIPT = '''\
"""A graph on which a backend fails. `{name} run` shows it, `{name} minify` makes the graph smaller."""

{imports}

from refimpl.repro import run_repro

{classes}

if __name__ == "__main__":
    run_repro(
        __file__,
        {{{of_paths}}},
        command={command!r},
        accuracy={accuracy!r},
        backend={backend!r},
        autocast={autocast!r},
        is_grad_enabled={grad!r},
    )
'''


@functools.cache
def _folder_below(root: str) -> str:
    stamp = datetime.datetime.now().strftime("%Y_%m_%d_%H_%M_%S_%f")
    return os.path.join(root, f"run_{stamp}-pid_{os.getpid()}")


def get_debug_dir() -> str:
    """This process's debug folder below `config.debug_dir_root`, one per root. The folder is not created here."""
    return _folder_below(config.debug_dir_root)


def launcher() -> str:
    """The path of the script that makes a graph smaller."""
    return os.path.join(get_debug_dir(), "minifier", _LAUNCHER)


def write_launcher(
    gm: fx.GraphModule, example_inputs: Sequence[Any], compiler_name: str | None, *, is_accuracy: bool = False
) -> str:
    """Writes the script `minifier/minifier_launcher.py` of the debug folder, which makes the graph smaller. Returns its path."""
    return _write(Path(launcher()), gm, example_inputs, compiler_name, "minify", is_accuracy)


def write_repro(
    gm: fx.GraphModule, example_inputs: Sequence[Any], compiler_name: str | None, *, is_accuracy: bool = False
) -> str:
    """Writes the script `repro.py` in the current folder, which compiles and runs the graph. Returns its path."""
    return _write(Path.cwd() / "repro.py", gm, example_inputs, compiler_name, "run", is_accuracy)


def _write(
    path: Path, gm: fx.GraphModule, inputs: Sequence[Any], backend: str | None, command: str, is_accuracy: bool
) -> str:
    modules = dict(_graphs_of(gm))
    names = {where: "Repro" + "".join(f"_{part}" for part in where.split(".") if part) for where in modules}
    script = _SCRIPT.format(
        name=path.name, command=command, backend=backend, accuracy="accuracy" if is_accuracy else "",
        imports=_imports(modules), classes="\n\n".join(_class(names[where], each) for where, each in modules.items()),
        of_paths=", ".join(f"{where!r}: {name}" for where, name in names.items()), grad=torch.is_grad_enabled(),
        autocast={
            device: str(torch.get_autocast_dtype(device)).removeprefix("torch.")
            for device in AUTOCAST_DEVICES if torch.is_autocast_enabled(device)
        },
    )  # fmt: skip
    held = saved_tensors({"inputs": list(inputs), "attributes": _attributes(modules)})
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".pt").write_bytes(held)
    path.write_text(script, encoding="utf-8")
    return str(path)


def saved_tensors(held: dict[str, Any]) -> bytes:
    """The content of a file. Raises ValueError if there are objects that cannot be read without running their code."""
    made = io.BytesIO()
    torch.save(held, made)
    made.seek(0)
    try:
        torch.load(made, weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"a graph that reads other objects than tensors and numbers cannot be saved: {error}"
        ) from error
    return made.getvalue()


def _graphs_of(gm: fx.GraphModule) -> Iterator[tuple[str, fx.GraphModule]]:
    """The graph module and those that it calls, such as bodies of branches, with their paths."""
    for where, module in gm.named_modules():
        if isinstance(module, fx.GraphModule):
            yield where, module


def _imports(modules: dict[str, fx.GraphModule]) -> str:
    """The imports of all that the code of the graphs names. Raises ValueError where two graphs give a name to two objects."""
    found: dict[str, Any] = {"torch": torch}
    for module in modules.values():
        for name, value in module.graph.python_code("self").globals.items():
            if found.setdefault(name, value) is not value:
                raise ValueError(f"the graphs name two objects {name!r}: {found[name]!r} and {value!r}")
    return import_block(found)


def _class(name: str, module: fx.GraphModule) -> str:
    code = textwrap.indent(module.graph.python_code("self").src.strip(), "    ")
    return f"\nclass {name}(torch.nn.Module):\n{code}\n"


def _attributes(modules: dict[str, fx.GraphModule]) -> dict[str, Any]:
    """What the graphs read that is no graph: parameters, buffers, constants and modules, by their paths."""
    held: dict[str, Any] = {}
    for where, module in modules.items():
        for node in module.graph.nodes:
            if node.op in ("get_attr", "call_module"):
                value: Any = functools.reduce(getattr, node.target.split("."), module)
                if not isinstance(value, fx.GraphModule):
                    held[f"{where}.{node.target}".lstrip(".")] = value
    return held

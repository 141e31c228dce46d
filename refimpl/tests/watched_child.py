"""Runs code in a process of its own and says which functions of the packages that refimpl must not use ran in it.

Fake tensors, `autograd.Function` and public functions, which refimpl builds on, call helpers in those packages. The helpers
are named one by one here, and are no part of what is checked.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable
from typing import Any

# Files, below torch, of helpers that fake kernels, `torch._disable_dynamo` and `autograd.Function.apply` call.
_ALLOWED = (
    "compiler/__init__.py",
    "_dynamo/decorators.py",
    "_dynamo/eval_frame.py",
    "_functorch/functional_call.py",  # torch.func.functional_call, public: runs a module with other parameters
    "_functorch/utils.py",
    "fx/experimental/sym_node.py",
    "fx/experimental/symbolic_shapes.py",
)

_CHILD = """
import json, sys, threading
from pathlib import Path
import torch
import torch._dynamo  # the first fake tensor loads it, and with it most of what must not run; loading is not running
SETUP

root = Path(torch.__file__).parent
FORBIDDEN = tuple(
    str(root / part)
    for part in ("_dynamo", "_functorch", "_inductor", "_export", "export", "compiler", "fx/experimental",
                 "_subclasses/functional_tensor")
)
ran = set()

def watch(frame, event, argument):
    if event == "call" and frame.f_code.co_filename.startswith(FORBIDDEN):
        ran.add((str(Path(frame.f_code.co_filename).relative_to(root)), frame.f_code.co_name))

count = 0
sys.setprofile(watch)
threading.setprofile(watch)
try:
WATCHED
finally:
    sys.setprofile(None)
    threading.setprofile(None)
print(json.dumps({"ran": sorted(ran), "count": count}))
"""


def forbidden_calls(
    run: Callable[[str], Any], setup: str, watched: str, *, provokes: bool = False
) -> tuple[set[str], int]:
    """`file:function` of each forbidden function that ran in `watched`, and the number that it counted in `count`.

    `setup` runs before, unwatched. In both, `PROVOKE` is True where torch's own compilers are to run, to show that they are seen.
    """
    source = _CHILD.replace("SETUP", setup).replace("WATCHED", textwrap.indent(watched.strip("\n"), "    "))
    report = report_of_child(run, source, provokes=provokes)
    return {f"{file}:{function}" for file, function in report["ran"] if file not in _ALLOWED}, report["count"]


def report_of_child(run: Callable[[str], Any], source: str, *, provokes: bool = False) -> dict[str, Any]:
    """The JSON that the source prints last. `PROVOKE` in it is the value of `provokes`.

    What refimpl runs is watched by `run_fresh`, where no cache holds what forbidden code has returned. `run_forked` may run
    torch's own compilers: a fork of the test process runs less at most, and the test fails where it should see them.
    """
    child = run(source.replace("PROVOKE", str(provokes)))
    assert child.returncode == 0, child.stderr[-3000:]
    return json.loads(child.stdout.splitlines()[-1])

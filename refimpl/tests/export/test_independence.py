"""An export, strict or not, what becomes of it, and its archive run nothing of torch's own export, capture, AOT or tracer.

As in `aot/test_independence.py`, helpers that fake tensors and public functions call are named one by one, and no part of what
is checked.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from refimpl.tests.aot.test_independence import ALLOWED

ROOT = Path(__file__).parents[3]

CHILD = """
import io, json, sys, threading
from pathlib import Path
import torch
import torch._dynamo  # the first fake tensor loads it, and with it most of what must not run; loading is not running
import refimpl.tests.export.modules as modules
if PROVOKE:
    from torch.export import Dim, export
else:
    from refimpl.export import Dim, draft_export, export, load, save, unflatten
    from refimpl.export.torchscript.converter import TS2EPConverter
    script = torch.jit.script(modules.Losing())

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

n = Dim("n", min=3, max=100)
count = 0
sys.setprofile(watch)
threading.setprofile(watch)
try:
    for strict in (False, True):
        programs = (
            (modules.Mutating(), (torch.ones(4),), {"x": {0: n}}),
            (modules.EverythingModule(), (torch.randn(4, 3), 2), {"x": {0: n}, "factor": None}),
            (modules.Normalised(), (torch.randn(4, 3),), None),
            (modules.Switching(), (torch.randn(4, 3),), None),
            (modules.Shifted(), (torch.ones(4), torch.ones(5)), ({0: n}, {0: n + 1})),
        )
        for module, args, shapes in programs[:1] if PROVOKE else programs:
            program = export(module, args, dynamic_shapes=shapes, strict=strict)
            program.module()(*args)
            if not PROVOKE:
                for table in ({}, None):
                    program.run_decompositions(table).module()(*args)
                str(program)
                archive = io.BytesIO()
                save(program, archive)
                load(io.BytesIO(archive.getvalue())).module()(*args)
                unflatten(program)(*args)
            count += 1
    if not PROVOKE:
        draft_export(modules.Deciding(), (torch.ones(3),)).module()(torch.ones(3))
        TS2EPConverter(script, (torch.ones(2, 3),)).convert().module()(torch.ones(2, 3))
        export(modules.Losing(), (torch.ones(2, 3),)).forward_backward()
        count += 3
finally:
    sys.setprofile(None)
    threading.setprofile(None)
print(json.dumps({"ran": sorted(ran), "count": count}))
"""


def _run_child(*, provoke: bool) -> set[str]:
    """Files that ran, but for the helpers."""
    source = CHILD.replace("PROVOKE", str(provoke))
    child = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=240, cwd=ROOT, check=False
    )
    assert child.returncode == 0, child.stderr[-3000:]
    report = json.loads(child.stdout.splitlines()[-1])
    assert report["count"] == (2 if provoke else 13)
    return {f"{file}:{function}" for file, function in report["ran"] if file not in ALLOWED}


def test_an_export_runs_no_forbidden_code() -> None:
    assert _run_child(provoke=False) == set()


def test_the_watch_sees_torch_when_it_exports() -> None:
    ran = _run_child(provoke=True)
    assert any(line.startswith("export/_trace.py") for line in ran)
    assert any(line.startswith("_dynamo/symbolic_convert.py") for line in ran)

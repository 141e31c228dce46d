"""An ahead-of-time compile and what it compiles run nothing of torch's own AOT autograd, tracer, partitioner or compilers.

Fake tensors and autograd.Function, which it builds on, call helpers that live in forbidden packages: those are named one by
one here, and are no part of what is checked. `test_independence.py` asks the same of real-mode traces without any allowance.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]

# File, below torch, of helpers that fake kernels, `torch._disable_dynamo` and `autograd.Function.apply` call.
ALLOWED = (
    "compiler/__init__.py",
    "_dynamo/decorators.py",
    "_dynamo/eval_frame.py",
    "_functorch/functional_call.py",  # torch.func.functional_call, public: runs a module with other parameters
    "_functorch/utils.py",
    "fx/experimental/sym_node.py",
    "fx/experimental/symbolic_shapes.py",
)

CHILD = """
import json, sys, threading
from pathlib import Path
import torch
import torch._dynamo  # the first fake tensor loads it, and with it most of what must not run; loading is not running
from refimpl.pipeline import compile_aot
from refimpl.aot.export.module import aot_export_module
from refimpl.tests.aot.test_corpus import WAYS
from refimpl.tests.corpus import PROGRAMS
from refimpl.tests.corpus.compare import observe

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

if PROVOKE:
    from torch._functorch.aot_autograd import aot_function
    def compiled(program, **options):
        return aot_function(program, lambda graph_module, _: graph_module)
else:
    compiled = compile_aot

count = 0
sys.setprofile(watch)
threading.setprofile(watch)
try:
    # Each way with one program, and two others by the first way.
    runs = [("in_place", options) for options in (WAYS.values() if not PROVOKE else [{}])]
    others = () if PROVOKE else (("siblings", runs[0][1]), ("metadata_and_data", runs[0][1]))
    for name, options in [*runs, *others]:
        observe(compiled(PROGRAMS[name].build(), **options), lambda: PROGRAMS[name].make(True))
        count += 1
    if not PROVOKE:
        observe(compiled(PROGRAMS["write_first-overlapping"].build()), lambda: PROGRAMS["write_first-overlapping"].make(True))
        module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
        compiled(module, partition="min_cut")(torch.randn(3, 4)).sum().backward()

        class Wrapped(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = module

            def forward(self, x):
                return (self.inner(x),)

        aot_export_module(Wrapped(), (torch.randn(3, 4),), trace_joint=False)
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
    assert report["count"] > 0
    return {f"{file}:{function}" for file, function in report["ran"] if file not in ALLOWED}


def test_an_ahead_of_time_compile_runs_no_forbidden_code() -> None:
    assert _run_child(provoke=False) == set()


def test_the_watch_sees_torch_when_it_compiles() -> None:
    ran = _run_child(provoke=True)
    assert any(line.startswith("_functorch/_aot_autograd/") for line in ran)
    assert any(line.startswith("fx/experimental/proxy_tensor.py") for line in ran)

"""An ahead-of-time compile and what it compiles run nothing of torch's own AOT autograd, tracer, partitioner or compilers.

`test_independence.py` asks the same of real-mode traces without any allowance.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from refimpl.tests.watched_child import forbidden_calls

SETUP = """
from refimpl.pipeline import compile_aot
from refimpl.aot.export.module import aot_export_module
from refimpl.tests.aot.test_corpus import WAYS
from refimpl.tests.corpus import PROGRAMS
from refimpl.tests.corpus.compare import observe
if PROVOKE:
    from torch._functorch.aot_autograd import aot_function
    def compiled(program, **options):
        return aot_function(program, lambda graph_module, _: graph_module)
else:
    compiled = compile_aot
"""
WATCHED = """
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
"""


def test_an_ahead_of_time_compile_runs_no_forbidden_code(run_fresh: Callable[[str], Any]) -> None:
    ran, count = forbidden_calls(run_fresh, SETUP, WATCHED)
    assert (ran, count > 0) == (set(), True)


def test_the_watch_sees_torch_when_it_compiles(run_forked: Callable[[str], Any]) -> None:
    ran, _ = forbidden_calls(run_forked, SETUP, WATCHED, provokes=True)
    assert any(line.startswith("_functorch/_aot_autograd/") for line in ran)
    assert any(line.startswith("fx/experimental/proxy_tensor.py") for line in ran)

"""An export, strict or not, what becomes of it, and its archive run nothing of torch's own export, capture, AOT or tracer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from refimpl.tests.watched_child import forbidden_calls

SETUP = """
import io
import refimpl.tests.export.modules as modules
if PROVOKE:
    from torch.export import Dim, export
else:
    from refimpl.export import Dim, draft_export, export, load, save, unflatten
    from refimpl.export.torchscript.converter import TS2EPConverter
    script = torch.jit.script(modules.Losing())
n = Dim("n", min=3, max=100)
"""
WATCHED = """
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
"""


def test_an_export_runs_no_forbidden_code(run_fresh: Callable[[str], Any]) -> None:
    assert forbidden_calls(run_fresh, SETUP, WATCHED) == (set(), 13)


def test_the_watch_sees_torch_when_it_exports(run_forked: Callable[[str], Any]) -> None:
    ran, count = forbidden_calls(run_forked, SETUP, WATCHED, provokes=True)
    assert count == 2
    assert any(line.startswith("export/_trace.py") for line in ran)
    assert any(line.startswith("_dynamo/symbolic_convert.py") for line in ran)

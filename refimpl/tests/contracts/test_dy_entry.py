"""Contracts of capture's entry points (rows DY of docs/contracts.md): backends, optimize, hooks, explain, threads."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import fx

import refimpl
from refimpl.capture.captured import GuardFail
from refimpl.capture.compile import get_compiler_fn
from refimpl.capture.config import config
from refimpl.capture.entry_points.contexts import (
    DisableContext,
    NullDecorator,
    OptimizeContext,
)
from refimpl.capture.public.errors import BackendCompilerFailed, InvalidBackend, Unsupported
from refimpl.capture.public.running import CAPTURE, running
from refimpl.capture.repro.backend import innermost_backend
from refimpl.tests.contracts.contract_backend import Backend, backend, breaking, nothing_is_left, plus_one

__all__ = ["backend", "nothing_is_left"]  # fixtures

Tensor = torch.Tensor


# ---------------------------------------------------------------------------------------------------------- entry points


def test_backends_by_name_by_object_and_by_callable(backend: Backend) -> None:
    """DY-18"""
    assert innermost_backend(get_compiler_fn(backend)) is backend
    for name in ("eager", "aot_eager", "aot_eager_decomp_partition"):
        assert torch.equal(refimpl.compile(plus_one, backend=name)(torch.ones(2)), torch.full((2,), 2.0))

    class Named:
        compiler_name = "eager"

    found, by_name = get_compiler_fn(Named()), get_compiler_fn("eager")
    assert (innermost_backend(found), found.__name__) == (innermost_backend(by_name), "eager")
    with pytest.raises(AssertionError, match="compiler_name=3"):
        get_compiler_fn(type("Misnamed", (), {"compiler_name": 3})())
    with pytest.raises(InvalidBackend, match="no_such_backend"):
        refimpl.compile(plus_one, backend="no_such_backend")
    with pytest.raises(InvalidBackend, match="backend=3"):
        refimpl.optimize(3)


def test_disabled_optimize_gives_the_function_itself(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """DY-19, DY-21"""
    nothing = refimpl.optimize(backend, disable=True)
    not_a_function: Any = 3
    assert isinstance(nothing, NullDecorator)
    assert nothing(plus_one) is plus_one
    with nothing:
        pass
    with pytest.raises(AssertionError, match="no callable"):
        nothing(not_a_function)
    assert refimpl.compile(plus_one, backend=backend, disable=True) is plus_one
    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    refimpl.optimize(backend)(plus_one)(torch.ones(2))
    assert backend.n == 0


def test_torch_s_switch_turns_capture_off(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """DY-21"""
    asked: list[str] = []
    monkeypatch.setattr("torch._utils_internal.justknobs_check", lambda name, default=True: asked.append(name))
    assert refimpl.optimize(backend)(plus_one) is plus_one
    assert asked == ["pytorch/compiler:enable_dynamo"]
    monkeypatch.undo()
    refimpl.optimize(backend)(plus_one)(torch.ones(2))
    assert backend.n == 1


def test_a_graph_break_makes_two_graphs_or_an_error(backend: Backend) -> None:
    """DY-22"""
    assert refimpl.optimize(backend)(breaking)(torch.ones(2)).tolist() == [4, 4]
    assert backend.n == 2
    for strict in (refimpl.optimize(backend, nopython=True), refimpl.optimize_assert(backend)):
        with pytest.raises(Unsupported, match=r"graph_break(?s:.*)in breaking"):
            strict(breaking)(torch.ones(2))
    assert refimpl.optimize_assert(backend)(plus_one)(torch.ones(2)).tolist() == [2, 2]


def test_what_a_backend_gets_and_gives(backend: Backend) -> None:
    """DY-23, DY-26"""

    def program(d: dict[str, Tensor], unused: Tensor) -> dict[str, Any]:
        return {"sum": d["a"] + d["b"], "rest": (d["a"], [d["b"] * 2])}

    a, b = torch.ones(2), torch.full((2,), 3.0)
    result = refimpl.optimize(backend)(program)({"a": a, "b": b}, torch.ones(3))
    assert result["sum"].tolist() == [4, 4]
    assert result["rest"][0] is a
    (graph,) = backend.graphs
    assert [node.target for node in graph.graph.nodes if node.op == "placeholder"] == ["L_d_a_", "L_d_b_"]
    assert len(backend.examples[0]) == 2
    assert all(given is mine for given, mine in zip(backend.examples[0], (a, b), strict=True))
    (output,) = (node for node in graph.graph.nodes if node.op == "output")
    assert type(output.args[0]) is tuple
    assert len(output.args[0]) == 2


def test_what_a_backend_may_have(backend: Backend) -> None:
    """DY-23"""
    entered: list[str] = []

    class Full(Backend):
        compiler_name = "full"

        def backend_ctx_ctor(self) -> Any:
            entered.append("context")
            return contextlib.nullcontext()

        def get_compiler_config(self) -> dict[str, int]:
            return {"level": 3}

    full = Full()
    compiled = refimpl.optimize(full)(plus_one)
    assert compiled(torch.ones(2)).tolist() == [2, 2]
    assert entered == ["context"]
    assert compiled.get_compiler_config() == {"level": 3}
    assert get_compiler_fn(full).__name__ == "full"
    assert full.resets == 0
    refimpl.reset()
    assert (full.resets, full.n) == (1, 1)

    class Refusing(Full):
        def __call__(self, graph: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
            raise OSError

    with pytest.raises(BackendCompilerFailed) as caught:
        refimpl.optimize(Refusing())(plus_one)(torch.ones(2))
    assert caught.value.backend_name == "full"


def test_a_backend_that_raises_is_named_and_its_error_kept() -> None:
    """DY-23"""

    def broken(graph: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        raise OSError("no compiler here")

    with pytest.raises(BackendCompilerFailed, match=r"broken(?s:.*)no compiler here") as caught:
        refimpl.compile(plus_one, backend=broken)(torch.ones(2))
    assert isinstance(caught.value.inner_exception, OSError)
    with config.patch(suppress_errors=True):
        assert refimpl.compile(plus_one, backend=broken)(torch.ones(2)).tolist() == [2, 2]


def test_hooks_get_the_guards_made_and_the_one_that_failed(backend: Backend) -> None:
    """DY-24"""
    made: list[Any] = []
    failed: list[GuardFail] = []
    compiled = refimpl.optimize(backend, guard_export_fn=made.append, guard_fail_fn=failed.append)(plus_one)
    other = refimpl.optimize(backend)(plus_one)
    compiled(torch.ones(2))
    assert (len(made), len(failed)) == (1, 0)
    assert any("L['x']" in str(guard) for guard in made[0])
    compiled(torch.ones(2, dtype=torch.int64))
    compiled(torch.ones(2))
    other(torch.ones(2, dtype=torch.int32))
    assert (len(made), len(failed)) == (2, 1), "hooks belong to one context"
    assert "L['x']" in failed[0].reason
    assert failed[0].orig_code is plus_one.__code__


def test_explain_tells_graphs_breaks_and_ops(backend: Backend) -> None:
    """DY-25"""
    said = refimpl.explain(breaking)(torch.ones(2))
    assert (said.graph_count, said.graph_break_count, said.op_count) == (2, 1, 2)
    assert [len(ops) for ops in said.ops_per_graph] == [1, 1]
    assert len(said.break_reasons) == 1
    assert said.out_guards
    assert len(said.graphs) == 2
    assert "Graph Count: 2" in str(said)
    assert "graph_break" in str(said)
    with pytest.warns(FutureWarning, match="deprecated") as warned:
        assert refimpl.explain(plus_one, torch.ones(2)).graph_count == 1
    assert warned[0].filename == __file__
    compiled = refimpl.optimize(backend)(plus_one)
    compiled(torch.ones(2))
    refimpl.explain(plus_one)(torch.ones(2))
    compiled(torch.ones(2))
    assert backend.n == 2, "explain forgets what was captured before"


def test_the_mode_belongs_to_the_thread(backend: Backend) -> None:
    """DY-45"""
    compiled = refimpl.optimize(backend)(plus_one)
    seen: list[int] = []
    with config.patch(raise_on_ctx_manager_usage=False), DisableContext():
        compiled(torch.ones(2))
        assert backend.n == 0
        thread = threading.Thread(target=lambda: (seen.append(running.mode), compiled(torch.ones(2))))
        thread.start()
        thread.join()
    assert seen == [CAPTURE]
    assert backend.n == 1


def test_contexts_say_what_they_are_made_of() -> None:
    """DY-17, DY-21"""
    context = refimpl.optimize("eager", dynamic=False)
    assert isinstance(context, OptimizeContext)
    assert innermost_backend(context.callback) is innermost_backend(get_compiler_fn("eager"))
    assert context.first_ctx
    assert context.dynamic is False
    assert context.compiler_config is None


def test_what_is_forbidden_is_an_error_where_it_is_reached(backend: Backend) -> None:
    """DY-22, XC-09"""

    def marking(x: Tensor) -> Tensor:
        if x.shape[0] == 3:
            return x
        refimpl.mark_dynamic(x, 0)
        return x * x

    compiled = refimpl.optimize(backend, dynamic=False)(marking)
    assert compiled(torch.ones(3)).tolist() == [1, 1, 1]
    with pytest.raises(AssertionError, match="Attempt to trace forbidden callable"):
        compiled(torch.ones(2))


def test_a_tensor_that_is_marked_in_another_dimension_is_captured_for_that(backend: Backend) -> None:
    """DY-09"""

    def marked(*dims: int) -> Tensor:
        x = torch.ones(3, 3, 3)
        for dim in dims:
            refimpl.mark_dynamic(x, dim)
        return x

    compiled = refimpl.optimize(backend)(plus_one)
    counts: list[int] = []
    for dims in ((0,), (), (0,), (1,), (0, 1), (1,), (2,), ()):
        compiled(marked(*dims))
        counts.append(backend.n)
    assert counts == [1, 1, 1, 2, 3, 3, 4, 4]

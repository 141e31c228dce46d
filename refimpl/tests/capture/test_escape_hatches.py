"""Functions that capture runs, substitutes or gives arrays to, and questions about symbolic numbers."""

from __future__ import annotations

import operator
from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from torch.fx.experimental import symbolic_shapes as symbols

from refimpl.backend_registry import list_backends
from refimpl.capture.compile import compile
from refimpl.capture.config import config
from refimpl.capture.entry_points.decorators import graph_break, substitute_in_graph
from refimpl.capture.higher_order.nonstrict import nonstrict_trace, wrap_numpy
from refimpl.capture.public import marks
from refimpl.capture.public.errors import BackendCompilerFailed, InvalidBackend, Unsupported
from refimpl.errors import BadParameter
from refimpl.tests.capture.capturing import Recorder, each_of
from refimpl.tests.corpus.compare import assert_same, observe
from refimpl.upstream.backends import aot_autograd, lookup_backend, register_backend

Pair = namedtuple("Pair", ["first", "second"])
_KEPT = torch.tensor([2.0, 3.0, 4.0])


def _assert_same(program: Any, *shapes: tuple[int, ...], backend: Any = "aot_eager") -> None:
    def make() -> tuple[list[torch.Tensor], list[Any]]:
        given = [torch.randn(shape, requires_grad=True) for shape in shapes]
        return given, [*given]

    assert_same(observe(program, make), observe(compile(program, backend=backend, fullgraph=True), make))


@nonstrict_trace
def _tree(x: torch.Tensor, options: dict[str, Any], *, by: float) -> dict[str, Any]:
    graph_break()
    return {"pair": Pair(x * by, [x + options["shift"], 7]), "count": len(options)}


@nonstrict_trace
def _reads_a_constant(x: torch.Tensor) -> torch.Tensor:
    graph_break()
    return x * _KEPT


@nonstrict_trace
def _nothing(x: torch.Tensor) -> None:
    graph_break()


def containers_in_and_out(x: torch.Tensor) -> Any:
    found = _tree(x, {"shift": x.sum(), "more": (1, 2)}, by=1.5)
    return found["pair"].first * found["count"], found["pair"].second[0] + found["pair"].second[1]


def a_constant_tensor(x: torch.Tensor) -> torch.Tensor:
    return _reads_a_constant(x.sin()) + 1


def no_result(x: torch.Tensor) -> Any:
    return x * 2, _nothing(x)


def marked_in_the_program(x: torch.Tensor) -> torch.Tensor:
    return nonstrict_trace(_product)(x, 3) - 1


def _product(x: torch.Tensor, by: int) -> torch.Tensor:
    graph_break()
    return x * by


@each_of(containers_in_and_out, a_constant_tensor, no_result, marked_in_the_program)
def test_a_function_that_is_run_is_one_node(program: Any) -> None:
    _assert_same(program, (3,))


def test_a_function_that_is_run_is_in_the_graph_under_its_name() -> None:
    recorder: Any = Recorder()
    compile(a_constant_tensor, backend=recorder, fullgraph=True)(torch.ones(3))
    assert recorder.targets == ["sin", "_reads_a_constant", "getitem", "add"]


def test_another_function_is_captured_again() -> None:
    functions = [nonstrict_trace(lambda x: x + 1), nonstrict_trace(lambda x: x - 1)]

    def program(x: torch.Tensor, index: int) -> torch.Tensor:
        return functions[index](x)

    compiled = compile(program, fullgraph=True)
    x = torch.zeros(2)
    assert [compiled(x, index).sum().item() for index in (0, 1, 0)] == [2, -2, 2]


def test_a_function_made_in_the_program_is_not_run() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return nonstrict_trace(lambda v: v + x)(x)

    with pytest.raises(Unsupported, match="nonstrict_trace"):
        compile(program, fullgraph=True)(torch.ones(2))
    with pytest.raises(BadParameter):
        nonstrict_trace(3)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------------------------ numpy


@wrap_numpy
def _normalised(x: Any, y: Any) -> Any:
    return {"unit": x / np.sqrt(np.sum(x * x)), "dot": np.sum(x * y)}


def arrays_with_gradients(x: torch.Tensor, y: torch.Tensor) -> Any:
    found = _normalised(x, y)
    return found["unit"] * 2, found["dot"].exp()


def test_a_function_of_arrays_has_gradients() -> None:
    def expected(x: torch.Tensor, y: torch.Tensor) -> Any:
        return x / (x * x).sum().sqrt() * 2, (x * y).sum().exp()

    x, y = (torch.randn(4, requires_grad=True) for _ in range(2))
    found = compile(arrays_with_gradients, backend="aot_eager", fullgraph=True)(x, y)
    for one, other in zip(found, expected(x, y), strict=True):
        torch.testing.assert_close(one, other)
        for gradient, true in zip(
            torch.autograd.grad(one.sum(), [x, y], allow_unused=True, retain_graph=True),
            torch.autograd.grad(other.sum(), [x, y], materialize_grads=True, retain_graph=True),
            strict=True,
        ):
            torch.testing.assert_close(torch.zeros(4) if gradient is None else gradient, true)


def test_a_function_of_arrays_runs_as_it_is() -> None:
    found = _normalised(torch.tensor([3.0, 4.0]), torch.tensor([1.0, 1.0]))
    assert torch.equal(found["unit"], torch.tensor([0.6, 0.8]))
    assert found["dot"] == 7


# ----------------------------------------------------------------------------------------------------------- substitution


@pytest.fixture
def no_substitutes() -> Any:
    before = dict(marks.SUBSTITUTED)
    yield
    marks.SUBSTITUTED.clear()
    marks.SUBSTITUTED.update(before)


@pytest.mark.usefixtures("no_substitutes")
def test_a_substitute_is_captured_in_place_of_a_function() -> None:
    @substitute_in_graph(operator.length_hint)
    def length_hint(obj: Any, default: int = 0, /) -> int:
        return len(obj) + 100

    def program(x: torch.Tensor, items: list[int]) -> torch.Tensor:
        return x * operator.length_hint(items)

    assert torch.equal(compile(program, fullgraph=True)(torch.ones(1), [1, 2]), torch.tensor([102.0]))
    assert operator.length_hint([1, 2]) == 2
    with pytest.raises(ValueError, match="substituted already"):
        substitute_in_graph(operator.length_hint)(length_hint)


@pytest.mark.usefixtures("no_substitutes")
def test_a_substitute_has_the_parameters_of_the_function() -> None:
    with pytest.raises(TypeError, match="parameters"):
        substitute_in_graph(operator.countOf)(lambda a: 0)
    substitute_in_graph(operator.countOf, skip_signature_check=True)(lambda a: 0)
    with pytest.raises(TypeError, match="expects a function"):
        substitute_in_graph(3)  # type: ignore[arg-type]


# --------------------------------------------------------------------------------------------------- questions of symbols


def open_questions(x: torch.Tensor) -> Any:
    n = x.sum().item()
    found = [symbols.guard_or_false(n == 3), symbols.guard_or_true(n == 3), symbols.statically_known_true(n > 2)]
    return x * n, found, [symbols.statically_known_false(n > 2), symbols.guard_or_false(True)]


def test_questions_of_data_stay_open() -> None:
    with config.patch(capture_scalar_outputs=True):
        found = compile(open_questions, fullgraph=True)(torch.tensor([1, 2]))
    assert torch.equal(found[0], torch.tensor([3, 6]))
    assert found[1:] == ([False, True, False], [False, True])


def test_a_question_that_warns_that_it_is_deprecated() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if symbols.guard_size_oblivious(x.shape[0] == 4) else x

    compiled = compile(program, backend="eager", fullgraph=True, dynamic=True)
    for size in (4, 5):
        assert torch.equal(compiled(torch.ones(size)), torch.full((size,), 2.0 if size == 4 else 1.0))


def joined_checks(x: torch.Tensor) -> torch.Tensor:
    a, b = x[0].item(), x[1].item()
    torch._check(symbols.sym_and(a > 0, b > 0, a != b))
    torch._check(symbols.sym_or(a > 5, symbols.sym_eq((a, 2), (b - 1, 2))))
    return x + a


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_joined_conditions_are_checked_when_the_graph_runs(backend: str) -> None:
    with config.patch(capture_scalar_outputs=True):
        compiled = compile(joined_checks, backend=backend, fullgraph=True)
        assert torch.equal(compiled(torch.tensor([1, 2])), torch.tensor([2, 3]))
        assert torch.equal(compiled(torch.tensor([7, 2])), torch.tensor([14, 9]))
        for wrong in ([0, 1], [2, 2], [3, 5], [7, 0]):
            with pytest.raises(RuntimeError):
                compiled(torch.tensor(wrong))


def hints(x: torch.Tensor) -> Any:
    size = symbols.optimization_hint(x.shape[0], fallback=3)
    return x + size, symbols.guarding_hint_or_throw(x.shape[0])


def test_a_hint_adds_no_guard() -> None:
    recorder: Any = Recorder()
    compiled = compile(hints, backend=recorder, fullgraph=True, dynamic=True)
    assert compiled(torch.zeros(6))[1] == 6
    assert compiled(torch.zeros(9))[1] == 6  # what was seen while the graph was made
    assert len(recorder.graphs) == 1


def test_a_question_of_a_size_is_asked_at_each_capture() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x * 2 if symbols.guard_or_false(x.shape[0] > 4) else x

    compiled = compile(program, fullgraph=True, dynamic=True)
    assert [int(compiled(torch.ones(n)).sum()) for n in (6, 3, 9)] == [12, 3, 18]


# --------------------------------------------------------------------------------------------------------------- backends


def test_backends_by_upstream_s_names() -> None:
    @register_backend(name="escape_hatch")
    def backend(graph: torch.fx.GraphModule, example_inputs: Any) -> Any:
        return graph.forward

    assert lookup_backend("escape_hatch") is backend
    assert torch.equal(compile(lambda x: x + 1, backend="escape_hatch")(torch.ones(1)), torch.tensor([2.0]))
    with pytest.raises(AssertionError):
        register_backend(lambda graph, inputs: graph, name="escape_hatch")
    with pytest.raises(InvalidBackend, match="no_such_backend"):
        lookup_backend("no_such_backend")


def test_inductor_is_another_name_of_refimpl_s_code_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_upstream(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("PyTorch's Inductor runs")

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", compile_upstream)
    assert lookup_backend("inductor") is lookup_backend("triton")
    assert list_backends().count("inductor") == 1
    _assert_same(lambda x: (x.sin() * 2).sum(-1), (3, 4), backend="inductor")
    strict = compile(torch.special.i0e, backend="inductor", options={"strict": True, "num_warps": 2})
    with pytest.raises(
        BackendCompilerFailed, match="options num_warps"
    ):  # an option of Inductor's, which refimpl does not have
        strict(torch.ones(2))
    with pytest.raises(InvalidBackend, match=r"'inducter'(.|\n)*inductor, interpreter"):
        compile(torch.sin, backend="inducter")


def test_compilers_get_graphs_of_forward_and_backward() -> None:
    kinds: list[str] = []

    def compiler(kind: str) -> Any:
        def compile_graph(graph: torch.fx.GraphModule, example_inputs: Any) -> Any:
            kinds.append(kind)
            return graph.forward

        return compile_graph

    backend = aot_autograd(
        fw_compiler=compiler("forward"), bw_compiler=compiler("backward"), inference_compiler=compiler("inference")
    )
    _assert_same(lambda x: x.sin() * x, (3,), backend=backend)
    assert kinds == ["forward", "backward"]
    compile(lambda x: x.sin() * x, backend=backend)(torch.ones(3))
    assert kinds[2:] == ["inference"]

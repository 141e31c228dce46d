"""A result is a view for autograd exactly if it is one in eager mode, whatever the graph, a decomposition or a backend does."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import refimpl
from refimpl.codegen.decompositions import codegen_decompositions
from refimpl.functionalize.aliases import AliasMap
from refimpl.pipeline import compile_aot

Tensor = torch.Tensor
Program = Callable[[Tensor, Tensor], Any]


def _compilers() -> dict[str, Callable[[Program], Callable[..., Any]]]:
    table = codegen_decompositions()
    return {
        "operators": compile_aot,
        "decomposed": lambda program: compile_aot(program, decompositions=table),
        "symbolic": lambda program: compile_aot(program, decompositions=table, dynamic=True),
        "kernels": lambda program: refimpl.compile(program, backend="triton"),
    }


COMPILERS = _compilers()


def _pixels(x: Tensor) -> Tensor:
    return x.reshape(1, 1, 4, 4).repeat(1, 4, 1, 1)


# Of x, 4 by 4, and v, of 4 numbers. Some give views in eager mode, of what nobody sees, the others memory of their own.
OPERATORS: dict[str, Program] = {
    "mv": lambda x, v: x.mv(v),
    "matmul": lambda x, v: torch.matmul(v, x),
    "inner": lambda x, v: torch.inner(x, v),
    "kron": lambda x, v: torch.kron(x, v),
    "linear": lambda x, v: F.linear(x[None], x, v),
    "tensordot": lambda x, v: torch.tensordot(x, x, dims=1),
    "multi_dot": lambda x, v: torch.linalg.multi_dot([v, x, x]),
    "logsumexp": lambda x, v: x.detach().logsumexp(0),  # whose gradient reads it
    "stack": lambda x, v: torch.stack([v, v]),
    "rot90": lambda x, v: x.rot90(),
    "quantile": lambda x, v: x.quantile(v / 8, 0),
    "index_fill": lambda x, v: x.index_fill(0, torch.tensor([1]), 2.0),
    "put": lambda x, v: x.put(torch.tensor([1, 6]), v[:2]),
    "repeat_interleave": lambda x, v: x.repeat_interleave(2),
    "group_norm": lambda x, v: torch.native_group_norm(_pixels(x), v, v, 1, 4, 16, 2, 1e-5),
    "instance_norm": lambda x, v: F.instance_norm(_pixels(x)),
    "pixel_shuffle": lambda x, v: F.pixel_shuffle(_pixels(x), 2),
    "pixel_unshuffle": lambda x, v: F.pixel_unshuffle(_pixels(x), 2),
    "channel_shuffle": lambda x, v: F.channel_shuffle(_pixels(x), 2),
    "unfold": lambda x, v: F.unfold(_pixels(x), 2),
    "attention_of_vectors": lambda x, v: F.scaled_dot_product_attention(x, x, x),
    "attention": lambda x, v: F.scaled_dot_product_attention(_pixels(x), _pixels(x), _pixels(x)),
    "avg_pool1d": lambda x, v: F.avg_pool1d(x, 2),
    "max_pool1d": lambda x, v: F.max_pool1d(x, 2),
    "max_pool1d_with_indices": lambda x, v: F.max_pool1d(x, 2, return_indices=True),
    "max_unpool2d": lambda x, v: F.max_unpool2d(*F.max_pool2d(_pixels(x), 2, return_indices=True), [2, 2]),
    "empty_permuted": lambda x, v: x.new_zeros(2).add(torch.empty_permuted((2, 2), (1, 0)).fill_(1)),
    "stft": lambda x, v: torch.stft(x, 4, window=v, return_complex=True),
    "svd": lambda x, v: torch.svd(x),
    "conj": lambda x, v: (x * x).to(torch.complex64).conj(),
    "real": lambda x, v: torch.view_as_real((x * x).to(torch.complex64)),
    "expand": lambda x, v: (x * x).expand(2, 4, 4),
    "transposed": lambda x, v: x.mm(x).t(),
    "transposed_in_place": lambda x, v: x.mm(x).t_(),
    "one_of_parts": lambda x, v: x.mm(x).chunk(2)[0],
    "one_of_rows": lambda x, v: x.mm(x).unbind()[1],
    "squeezed_in_place": lambda x, v: x[:1].mul(2).squeeze_(),
}
SEVERAL: dict[str, Program] = {
    "with_a_view": lambda x, v: _with(x.mv(v), lambda y: y[0]),
    "with_views": lambda x, v: _with(F.linear(x[None], x), lambda y: y.view(-1), lambda y: y.detach()),
    "views_alone": lambda x, v: _with(x.mv(v), lambda y: y[None], lambda y: y[1:])[1:],
    "beside_a_view_of_an_argument": lambda x, v: (x.mv(v), x.t()),
    "written": lambda x, v: _with(torch.stack([v, v]), lambda y: y[1:].mul_(2)),
    "written_before": lambda x, v: _with(x.logsumexp(0).exp_(), lambda y: y.view(2, 2)),
    "without_gradients": lambda x, v: _quietly(lambda: x.mm(x).t()),
    "without_gradients_and_views": lambda x, v: _quietly(lambda: x.mv(v)),
    "one_of_parts_without_gradients": lambda x, v: _quietly(lambda: x.mm(x).split(2)[1]),
    "part_of_one_of_parts": lambda x, v: x.mm(x).chunk(2)[0][0],
    "detached_inside": lambda x, v: x.mv(v).detach_(),
}
PROGRAMS = {**OPERATORS, **SEVERAL}


def _with(y: Tensor, *views: Callable[[Tensor], Tensor]) -> tuple[Tensor, ...]:
    return (y, *(view(y) for view in views))


def _quietly(compute: Callable[[], Tensor]) -> Tensor:
    with torch.no_grad():
        return compute()


def _results(function: Program, *, requires_grad: bool) -> tuple[list[Tensor], list[Tensor]]:
    """Results, and what they are computed of."""
    x = torch.linspace(0.1, 1.6, 16).view(4, 4) + torch.eye(4)
    v = torch.linspace(0.5, 2, 4)
    arguments = [x.requires_grad_(requires_grad), v.requires_grad_(requires_grad)]
    results = function(*arguments)
    return [*results] if isinstance(results, (tuple, list)) else [results], arguments


def _attempt(run: Callable[[], Any]) -> Any:
    """What it gives, or that it raises."""
    try:
        return run()
    except RuntimeError:
        return "RuntimeError"


def _facts(function: Program, *, requires_grad: bool) -> list[Any]:
    """Which results are views, and of which others; for each, what `detach_` does."""
    results, _ = _results(function, requires_grad=requires_grad)
    bases = [next((i for i, other in enumerate(results) if other is r._base), r._base is not None) for r in results]

    def detached(place: int) -> bool:
        return _results(function, requires_grad=requires_grad)[0][place].detach_().requires_grad

    return [
        [r._is_view() for r in results],
        bases,
        [_attempt(functools.partial(detached, i)) for i in range(len(results))],
    ]


def _gradients_after_a_write(function: Program, place: int, *, requires_grad: bool) -> list[Tensor | None]:
    results, arguments = _results(function, requires_grad=requires_grad)
    factor = torch.tensor(0.5, requires_grad=True)
    if results[place].is_floating_point():
        results[place].mul_(factor)
    ends = [r.abs().square().sum() for r in results if r.requires_grad]
    wanted = [factor, *(a for a in arguments if a.requires_grad)]
    return list(torch.autograd.grad(ends, wanted, allow_unused=True)) if ends else []


@pytest.mark.fractional
@pytest.mark.parametrize("requires_grad", [False, True], ids=["without_gradient", "with_gradient"])
@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_results_are_views_where_they_are_in_eager_mode(name: str, compiler: str, requires_grad: bool) -> None:
    if name == "quantile" and torch.__version__ < "2.12":
        pytest.skip("until torch 2.12 the operator reads which quantiles are asked for, which a trace does not know")
    program = PROGRAMS[name]
    compiled = COMPILERS[compiler](program)
    facts = _facts(program, requires_grad=requires_grad)
    assert _facts(compiled, requires_grad=requires_grad) == facts
    for place in range(len(facts[0])):
        found = [
            _attempt(functools.partial(_gradients_after_a_write, function, place, requires_grad=requires_grad))
            for function in (program, compiled)
        ]
        if isinstance(found[0], str):
            assert found[1] == found[0]
            continue
        assert [g is None for g in found[1]] == [g is None for g in found[0]]
        known = [[g for g in gradients if g is not None] for gradients in found]
        torch.testing.assert_close(known[1], known[0], rtol=1e-3, atol=1e-3)


def test_programs_without_gradients_give_what_can_be_written_with_one() -> None:
    with torch.no_grad():
        made = [_results(f, requires_grad=True)[0][0] for f in (PROGRAMS["mv"], compile_aot(PROGRAMS["mv"]))]
    factor = torch.tensor(0.5, requires_grad=True)
    found = [torch.autograd.grad(result.mul_(factor).sum(), factor) for result in made]
    torch.testing.assert_close(found[1], found[0])


def test_an_owner_is_no_view_of_what_it_is_made_of() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    made = graph.call_function(torch.ops.aten.mul.Tensor, (x, 2))
    whole = graph.call_function(torch.ops.aten.view.default, (made, [-1]))
    part = graph.call_function(torch.ops.aten.select.int, (whole, 0, 0))
    assert AliasMap(graph).base_of(part) is made
    aliases = AliasMap(graph, owners={whole})
    assert aliases.base_of(part) is whole
    assert [step.node for step in aliases.steps_of(part)] == [part]

"""What a call may write to: traced and captured programs raise eager mode's errors, and only these."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import refimpl
from refimpl.trace.decompositions import decomposition_table
from refimpl.trace.refusals import check_mutations

_INDEX = torch.tensor([0, 2])


def _doubles(size: int = 2) -> torch.Tensor:
    return torch.zeros(size, dtype=torch.float64)


def _expanded(x: torch.Tensor, size: int = 2) -> torch.Tensor:
    return x[:1].expand(size)


_aten = torch.ops.aten
_RULES = {  # what writes anywhere
    _aten.take.out: lambda x, i, out: out.copy_(x.reshape(-1)[i]),
    _aten.index_select.out: lambda x, dim, i, out: out.fill_(1),
    _aten.add.out: lambda x, y, alpha=1, out=None: x + y,
    _aten.scatter_.value: lambda x, dim, i, value: x.fill_(value),
}
REFUSED: dict[str, tuple[Any, str]] = {
    "index_select, other dtype": (lambda x, i: torch.index_select(x, 0, i, out=_doubles()), "same scalar type"),
    "index_select, its input": (lambda x, i: torch.index_select(x, 0, i, out=x[:2]), "some elements of the input"),
    "index_select, expanded": (lambda x, i: torch.index_select(x, 0, i, out=_expanded(x + 1)), "more than one element"),
    "take, its input": (lambda x, i: torch.take(x, i, out=x[:2]), "some elements of the input"),
    "take, other dtype": (lambda x, i: torch.take(x, i, out=i), "same dtype"),
    "complex, other dtype": (lambda x, i: torch.complex(x, x, out=_doubles(6).to(torch.complex128)), "ComplexDouble"),
    "multinomial, other dtype": (lambda x, i: torch.multinomial(x, 2, out=torch.zeros(2)), "expects Long tensor"),
    "add, shifted": (lambda x, i: torch.add(x[1:], 1, out=x[:-1]), "some elements of the input"),
    "add, integers": (lambda x, i: torch.add(x, x, out=i), "cast"),
    "sort, indices of floats": (lambda x, i: torch.sort(x, out=(x * 2, torch.zeros(6))), "dtype"),
    "copy_, shifted": (lambda x, i: x[1:].copy_(x[:-1]), "some elements of the input"),
    "scatter_, expanded": (lambda x, i: _expanded(x, 4).scatter_(0, i, 2.0), "more than one element"),
}
ACCEPTED: dict[str, Any] = {
    "index_select, larger memory": lambda x, i: torch.index_select(x, 0, i, out=torch.ones(8)[2:4]),
    "add, its input": lambda x, i: torch.add(x, 1, out=x),
    "add, the other half": lambda x, i: torch.add(x[:3], 1, out=x[3:]),
    "add, wider": lambda x, i: torch.add(x, 1, out=_doubles(6)),
    "mm, resized": lambda x, i: torch.mm(x.view(2, 3), x.view(3, 2), out=torch.zeros(0)),
    "fill_, expanded": lambda x, i: _expanded(x + 1).fill_(2.0),
    "cholesky, which raises for a matrix of ones": lambda x, i: torch.cholesky(
        torch.diag(x + 1), out=torch.zeros(6, 6)
    ),
    "multinomial": lambda x, i: torch.multinomial(x, 2, out=torch.zeros(2, dtype=torch.int64)),
}


def _arguments() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(6.0), _INDEX.clone()


@pytest.mark.parametrize("tracing_mode", ["fake", "symbolic"])
@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_mode_refuses_is_refused_in_a_trace(name, tracing_mode):
    program, message = REFUSED[name]
    with pytest.raises(RuntimeError, match=message) as expected:
        program(*_arguments())
    with pytest.raises(RuntimeError) as seen:
        refimpl.make_fx(program, tracing_mode=tracing_mode)(*_arguments())
    assert str(seen.value) == str(expected.value)


@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_mode_refuses_is_refused_by_a_compiled_program(name):
    program, _ = REFUSED[name]
    with pytest.raises(RuntimeError):
        refimpl.optimize("eager")(program)(*_arguments())


@pytest.mark.parametrize("name", ["take, its input", "index_select, its input", "add, shifted", "scatter_, expanded"])
def test_what_eager_mode_refuses_is_refused_where_a_decomposition_would_accept_it(name):
    program, _ = REFUSED[name]
    with pytest.raises(RuntimeError, match="unsupported operation"):
        refimpl.make_fx(program, decomposition_table=dict(_RULES), tracing_mode="fake")(*_arguments())


@pytest.mark.parametrize("tracing_mode", ["fake", "symbolic"])
@pytest.mark.parametrize("name", ACCEPTED)
def test_what_eager_mode_accepts_is_traced(name, tracing_mode):
    program = ACCEPTED[name]
    torch.manual_seed(3)
    expected = program(*_arguments())
    torch.manual_seed(3)
    traced = refimpl.make_fx(program, tracing_mode=tracing_mode)(*_arguments())
    assert torch.equal(expected, traced(*_arguments()))


def test_trying_a_call_draws_no_random_numbers():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    refimpl.make_fx(ACCEPTED["multinomial"], tracing_mode="fake")(*_arguments())
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "triton"])
@pytest.mark.parametrize("size", [0, 3, 5, 7])
def test_an_output_of_another_size_is_resized(size, backend):
    x, out = torch.arange(5.0), torch.ones(size)
    refimpl.optimize(backend)(lambda x, out: torch.add(x, x, out=out))(x, out)
    assert torch.equal(out, x + x)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_an_operator_that_writes_no_output_on_fake_tensors_runs_eagerly(backend):
    out = torch.tensor(0)
    refimpl.optimize(backend)(lambda x, out: torch.linalg.matrix_rank(x, out=out))(torch.eye(3), out)
    assert out.item() == 3


def test_outputs_within_an_operator_that_are_resized_are_where_it_put_them():
    """`linalg.solve` hands empty tensors to the operator that it consists of."""
    a, b, out = torch.eye(3) * 2, torch.ones(3), torch.zeros(3)
    refimpl.optimize("aot_eager")(lambda a, b, out: torch.linalg.solve(a, b, out=out))(a, b, out)
    assert out.tolist() == [0.5] * 3


@pytest.mark.parametrize("decompositions", [{}, dict(decomposition_table)], ids=["whole", "decomposed"])
def test_a_fake_kernel_that_stumbles_over_a_size_of_zero_raises_eager_error(decompositions):
    def program(x):
        return torch.nn.functional.interpolate(x, size=3)

    with pytest.raises(RuntimeError, match="sizes should be greater than 0") as ours:
        refimpl.make_fx(program, decompositions, tracing_mode="fake")(torch.ones(1, 1, 0))
    with pytest.raises(RuntimeError) as eagers:
        program(torch.ones(1, 1, 0))
    assert str(ours.value) == str(eagers.value)


@pytest.mark.parametrize(
    ("function", "given"),
    [
        (lambda w: torch.nn.functional.embedding(torch.tensor([1]), w), torch.ones(2, 2, 2)),
        (lambda x: torch.amax(x, 1), torch.ones(3, 0)),
        (lambda x: torch.narrow_copy(x, 3, 0, 1), torch.ones(2, 2, 2)),
        (lambda x: torch.nn.functional.gelu(x, approximate="sinh"), torch.ones(2)),
    ],
    ids=["an assert of a fake kernel", "no elements", "dimension", "string"],
)
def test_a_wrong_call_raises_eager_s_type_of_error(function, given):
    with pytest.raises(Exception) as eagers:
        function(given)
    with pytest.raises(eagers.type):
        refimpl.optimize("triton")(function)(given)
    with pytest.raises(eagers.type):
        refimpl.compile_aot(function)(given)


@pytest.mark.parametrize("backend", ["aot_eager", "triton"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_one_element_that_is_expanded_is_filled_and_not_copied_to(backend, dynamic):
    def filled(function):
        given = torch.tensor([7.0]).expand(3)
        function(given)
        return given

    compiled = refimpl.optimize(backend, dynamic=dynamic)
    for program in (lambda x: x.fill_(2), lambda x: x[1:].zero_()):
        expected, actual = filled(program), filled(compiled(program))
        assert torch.equal(actual, expected)
        assert actual.stride() == expected.stride()
    for program in (lambda x: x.copy_(torch.ones(3)), lambda x: x.mul_(2)):
        with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
            filled(compiled(program))


class _SeesCalls(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


def test_the_trial_on_real_tensors_is_hidden_from_every_mode() -> None:
    # A mode that answers from memory gave the trial a fake of zeros of that size, where the trace had made one before.
    with FakeTensorMode(), _SeesCalls() as mode:
        x, out = torch.empty(3, dtype=torch.float64), torch.empty((), dtype=torch.float64)
        mode.seen.clear()
        check_mutations(_aten.amax.out, (x, [0]), {"out": out})
    assert _aten.zeros.default not in mode.seen
    assert _aten.set_.source_Storage_storage_offset not in mode.seen

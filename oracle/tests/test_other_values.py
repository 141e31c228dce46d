"""Later calls are made on other values, of which a program may go on to believe what it believed of those given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import oracle
from oracle.case import CaseOptions, EagerState, judge_subject
from oracle.errors import UsageError
from oracle.program import Call, Program, default_plan
from oracle.program.build import instantiate
from oracle.program.clone import clone_tree
from oracle.program.other_values import change_values
from oracle.subjects.registry import load, of_callable, resolve
from oracle.verdict import Status, Verdict

Backend = Callable[..., Any]


def changed(*tensors: Any, call: int = 1, moves: bool = True) -> list[Any]:
    copies = clone_tree(list(tensors))
    change_values(copies, call=call, moves=moves)
    return copies


def verdict_on(source: str, backend: Any, call: Call = Call(), **fields: Any) -> Verdict:  # noqa: B008 - frozen
    program = Program(name="t", source="import torch\n" + source, calls=default_plan(call, key="t"), **fields)
    subject = load(resolve(backend)) if isinstance(backend, str) else of_callable(backend)
    state = EagerState(make=lambda: instantiate(program))
    return judge_subject(eager=state, subject=subject, options=CaseOptions()).verdict


# ------------------------------------------------------------------------------------------------- the values


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64, torch.float8_e4m3fn])
def test_floats_change_at_every_call_and_keep_zeros_and_ranges(dtype: torch.dtype) -> None:
    given = torch.tensor([[0.0, 0.5, 1.0], [0.25, 0.75, 0.0], [1.0, 0.0, 0.125]]).to(dtype)
    seen = [given, *(changed(given, call=call)[0] for call in (1, 2, 3))]
    wide = [tensor.to(torch.complex128) for tensor in seen]
    assert all(not torch.equal(a, b) for i, a in enumerate(wide) for b in wide[:i])
    assert {int((tensor == 0).sum()) for tensor in wide} == {3}
    assert all(float(tensor.abs().min()) >= 0 and float(tensor.abs().max()) <= 1 for tensor in wide)
    assert {(tensor.shape, tensor.stride(), tensor.dtype) for tensor in seen} == {(given.shape, given.stride(), dtype)}


def test_nan_and_infinity_stay_as_many() -> None:
    given = torch.tensor([float("nan"), float("inf"), -float("inf"), 3.0, -1.0])
    (other,) = changed(given)
    assert [int(f(other).sum()) for f in (torch.isnan, torch.isposinf, torch.isneginf)] == [1, 1, 1]


@pytest.mark.parametrize(
    ("given", "keeps"),
    [
        (torch.linspace(-3, 3, 9), lambda x: bool((x.diff() > 0).all())),
        (torch.linspace(3, -3, 9), lambda x: bool((x.diff() < 0).all())),
        (torch.linspace(-3, 3, 9).repeat(4, 1), lambda x: bool((x.diff() > 0).all())),
        (torch.eye(4) * 2 + 1, lambda x: torch.equal(x, x.mT)),
        ((torch.eye(4) * 2 + 1).repeat(3, 1, 1) + torch.arange(3.0)[:, None, None], lambda x: torch.equal(x, x.mT)),
        (torch.complex(torch.eye(3), torch.tensor([[0.0, 1, 2], [-1, 0, 3], [-2, -3, 0]])), lambda x: torch.equal(x, x.mH)),
        (torch.randn(4, 4).tril(), lambda x: not x.triu(1).any()),
        (torch.randn(4, 4).triu(), lambda x: not x.tril(-1).any()),
    ],
)  # fmt: skip
def test_an_order_and_the_structure_of_a_matrix_are_kept(given: torch.Tensor, keeps: Callable[[Any], bool]) -> None:
    assert keeps(given)
    for call in (1, 2):
        (other,) = changed(given, call=call)
        assert keeps(other)
        assert not torch.equal(other, given)


def test_integers_beside_floats_are_kept_and_integers_alone_are_moved() -> None:
    index, mask = torch.tensor([[3, 0], [1, 2], [0, 1]]), torch.tensor([True, False, False])
    _, kept, kept_mask = changed(torch.randn(4), index, mask)
    assert torch.equal(kept, index)
    assert torch.equal(kept_mask, mask)
    moved, moved_mask = changed(index, mask)
    assert not torch.equal(moved, index)
    assert not torch.equal(moved_mask, mask)
    assert sorted(moved.flatten().tolist()) == sorted(index.flatten().tolist())
    assert all(len(set(row)) == 2 for row in moved.tolist())  # indices that differ in a row go on to differ


def test_aliases_expanded_and_transposed_tensors_keep_their_relations() -> None:
    base = torch.randn(4, 6)
    copies = changed(base, base[1:3], base.T, torch.randn(1, 5).expand(3, 5), torch.randn(6, 4).T, torch.randn(8)[::2])
    one, part, transposed, expanded, turned, gaps = copies
    assert torch.equal(one[1:3], part)
    assert torch.equal(one.T, transposed)
    assert not torch.equal(one, base)
    assert expanded.stride() == (0, 1)
    assert (turned.stride(), gaps.stride()) == ((1, 4), (2,))


def test_one_memory_read_as_floats_and_as_integers_is_kept() -> None:
    base = torch.randn(4)
    one, bits = changed(base, base.view(torch.int32))
    assert torch.equal(one, base)
    assert torch.equal(bits, base.view(torch.int32))


def test_sparse_values_change_and_their_indices_do_not() -> None:
    given = torch.eye(3).to_sparse().requires_grad_()
    (other,) = changed(given)
    assert torch.equal(other.detach()._indices(), given.detach()._indices())
    assert not torch.equal(other.to_dense(), given.to_dense())
    rows = torch.eye(3).to_sparse_csr()
    assert torch.equal(changed(rows)[0].values(), rows.values() * 0.75)


def test_a_leaf_that_requires_grad_stays_one_of_version_zero() -> None:
    (other,) = changed(torch.randn(3, 4).requires_grad_())
    assert (other.is_leaf, other.requires_grad, other._version) == (True, True, 0)


def test_a_word_that_is_no_change_is_refused() -> None:
    with pytest.raises(UsageError, match="values 'random'"):
        Program(name="t", source="", calls=(Call(values="random"),))


# ------------------------------------------------------------------------------------------------ what they find


def first_result_again(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Backend:
    kept: list[Any] = []

    def run(*args: Any) -> Any:
        kept[:] = kept or [gm.forward(*args)]
        return tuple(tensor.clone() for tensor in kept[0])

    return run


def last_result_but_one(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Backend:
    """Right in the first and in the second call."""
    kept: list[Any] = []

    def run(*args: Any) -> Any:
        kept.append(gm.forward(*args))
        return tuple(tensor.clone() for tensor in (kept[1] if len(kept) == 3 else kept[-1]))

    return run


def error_in_the_third_call(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Backend:
    calls: list[int] = []

    def run(*args: Any) -> Any:
        calls.append(0)
        if len(calls) == 3:
            raise RuntimeError("the pool is empty")
        return gm.forward(*args)

    return run


PROGRAMS = [
    ("torch.randn(3, 4)", "x.sin()"),
    ("torch.randn(3, 4)", "x.sum()"),
    ("torch.randn(30)", "x.argmax()"),
    ("torch.randn(4, 5)", "torch.nn.functional.normalize(x.flatten(), dim=0)"),
    ("torch.rand(5, 5).softmax(0)", "x > 0.2"),
    ("torch.randint(0, 9, (7,))", "x + 1"),
    ("torch.tensor([True, False, False])", "~x"),
    ("torch.eye(3) + torch.ones(3, 3)", "torch.linalg.cholesky(x)"),
    ("torch.rand(4) + 1.1", "x.acosh() + x"),
    ("torch.randn(4).to(torch.bfloat16)", "x.float()"),
]


@pytest.mark.fractional
@pytest.mark.parametrize(("value", "body"), [row for row in PROGRAMS if "acosh" not in row[1]])
@pytest.mark.parametrize(("backend", "call"), [(first_result_again, 1), (last_result_but_one, 2)])
def test_a_compiler_that_returns_an_earlier_result_is_found(value: str, body: str, backend: Any, call: int) -> None:
    source = f"def inputs(call): return ({value},), {{}}\ndef program(x): return {body}\n"
    verdict = verdict_on(source, backend)
    assert (verdict.status, verdict.call) == (Status.FAIL_GUARD, call), verdict


def test_the_same_is_found_where_the_values_are_the_users() -> None:
    (verdict,) = oracle.check(torch.sin, torch.randn(5), subjects=[first_result_again]).values()
    assert (verdict.status, verdict.call) == (Status.FAIL_GUARD, 1), verdict


@pytest.mark.parametrize(("value", "body"), PROGRAMS)
def test_a_right_compiler_passes_on_other_values(value: str, body: str) -> None:
    source = f"def inputs(call): return ({value},), {{}}\ndef program(x): return {body}\n"
    assert verdict_on(source, "dynamo").status is Status.PASS


def test_an_error_in_the_third_call_is_found() -> None:
    source = "def inputs(call): return (torch.randn(3),), {}\ndef program(x): return x.sin()\n"
    verdict = verdict_on(source, error_in_the_third_call)
    assert verdict.call == 2
    assert "the pool is empty" in verdict.symptom


@pytest.mark.parametrize(
    ("value", "body", "instead"),
    [
        ("torch.rand(4) + 1.1", "x.acosh()", "given"),  # NaN below 1
        ("torch.tensor([[3.0, 0.5], [0.25, 2.0]])", "torch.linalg.cholesky(x)", "scaled"),  # rows do not change places
        ("torch.tensor([2.0])", "torch.ones(2).view(1, int(x.item()))", "given"),
    ],
)
def test_values_that_eager_does_not_take_are_left_and_it_is_said(value: str, body: str, instead: str) -> None:
    source = f"def inputs(call): return ({value},), {{}}\ndef program(x): return {body}\n"
    verdict = verdict_on(source, "eager")
    assert verdict.status is Status.PASS
    assert any(f"made on {instead} values" in text for text in verdict.explained), verdict.explained


# ------------------------------------------------------------------------------------ results that the caller keeps


def one_buffer_for_all_calls(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Backend:
    buffer: list[torch.Tensor] = []

    def run(*args: Any) -> Any:
        (result,) = gm.forward(*args)
        buffer[:] = buffer or [torch.empty_like(result)]
        return (buffer[0].copy_(result).view_as(result),)

    return run


@pytest.mark.parametrize(("value", "body"), [
    ("torch.randn(3)", "x.sin()"),
    ("torch.empty_strided((1,), (2,)).normal_()", "x.clone()"),  # a stride that views of bytes refuse
])  # fmt: skip
def test_a_result_that_a_later_call_overwrites_is_found(value: str, body: str) -> None:
    source = f"def inputs(call): return ({value},), {{}}\ndef program(x): return {body}\n"
    verdict = verdict_on(source, one_buffer_for_all_calls)
    assert verdict.status is Status.FAIL_GUARD
    assert verdict.symptom == "call 2: output of call 0 is overwritten by a later call, but should not be"


def test_a_result_that_the_program_itself_overwrites_is_no_finding() -> None:
    source = (
        "class program(torch.nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.register_buffer('kept', torch.zeros(3))\n"
        "    def forward(self, x):\n"
        "        self.kept.add_(x)\n"
        "        return self.kept, x * float('nan')\n"
        "def inputs(call): return (torch.randn(3),), {}\n"
    )
    assert verdict_on(source, "dynamo", is_module=True).status is Status.PASS

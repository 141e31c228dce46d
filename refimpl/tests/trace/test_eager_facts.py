"""What is asked of eager's kernels is what they do, also while a program is traced; rules hold on a processor without fused
multiplications, too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import refimpl
from refimpl.trace import eager_facts

aten = torch.ops.aten
QUESTIONS = {
    "vectors": (eager_facts.row_vector_bytes, ()),
    **{f"products of {d}": (eager_facts.rounds_products_of_sums, (d,)) for d in (torch.float32, torch.bfloat16)},
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_answer_is_the_same_under_modes_that_would_answer_without_numbers(name: str) -> None:
    question, arguments = QUESTIONS[name]
    question.cache_clear()
    with torch._subclasses.FakeTensorMode(), torch.device("meta"):
        found = question(*arguments)
    question.cache_clear()
    assert question(*arguments) == found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_vectors_of_rows_are_as_wide_as_the_kernel_shows(dtype: torch.dtype) -> None:
    """The first number of each whole vector, and no other, makes the variance NaN where its square overflows."""
    width = eager_facts.row_vector_bytes()
    rows = torch.eye(2 * width // dtype.itemsize, dtype=dtype) * (1e200 if dtype is torch.float64 else 1e30)
    _, _, rstd = aten.native_layer_norm.default(rows, [len(rows)], None, None, 1e-5)
    lanes = width // max(dtype.itemsize, 4)  # half types are computed in float32
    assert rstd.flatten().isnan().nonzero().flatten().tolist() == list(range(0, len(rows), lanes))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("count", [1, 7, 64])
def test_sums_addcmul_and_layer_norm_backward_round_products_alike(count: int, dtype: torch.dtype) -> None:
    """One question answers for sums with a factor, for products that are added, and for gradients of rows."""
    largest = torch.full((count,), torch.finfo(dtype).max, dtype=dtype)
    row = largest[None] / 4, largest.new_full((1, count), 3.0 / count)
    moments = largest[:1, None] / 2, largest.new_zeros(1, 1)
    of_row = aten.native_layer_norm_backward.default(
        row[1], row[0], [count], *moments, None, None, [True, False, False]
    )
    sums = (
        torch.sub(largest, largest, alpha=2),
        torch.addcmul(-largest, largest, torch.full_like(largest, 2.0)),
        of_row[0],
    )
    assert [not x.isfinite().any() for x in sums] == [eager_facts.rounds_products_of_sums(dtype)] * 3


RULES = {
    "refimpl/tests/codegen/test_regressions.py": ["a_factor_of_an_addend", "a_product_of_addcmul"],
    "refimpl/tests/codegen/test_programs.py": ["operands_of_half_types_are_rounded_as_in_eager and sums"],
    "refimpl/tests/codegen/test_error_bounds.py": ["stay_within_their_bounds and pow"],
    "refimpl/tests/decompositions/test_norms.py": ["rows_with_an_infinite_variance"],
}


def test_rules_follow_kernels_without_fused_multiplications() -> None:
    root = Path(__file__).resolve().parents[3]
    chosen = " or ".join(f"({name})" for names in RULES.values() for name in names)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *RULES, "-k", chosen], cwd=root, check=False,
        env={**os.environ, "ATEN_CPU_CAPABILITY": "default"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def _x(*shape: int) -> torch.Tensor:
    return torch.randn(*shape)


def _channels_last() -> torch.Tensor:
    return _x(1, 8, 30, 30).to(memory_format=torch.channels_last)


ASKED = {
    "transposed operand": (aten.mul.Tensor, (_x(3, 4).t(), 2.0)),
    "channels last": (
        aten._adaptive_avg_pool2d.default,
        (_x(1, 3, 4, 4).to(memory_format=torch.channels_last), [2, 2]),
    ),
    "no elements": (aten.sum.dim_IntList, (_x(2, 0, 5), [0], True)),
    "several results": (aten.native_layer_norm.default, (_x(3, 4).t(), [3], None, None, 1e-5)),
    "a list of results": (aten._foreach_add.Scalar, ([_x(3, 4).t(), _x(2, 2)], 1)),
    "an index": (aten.index.Tensor, (_x(4, 3, 2).transpose(0, 2), [None, torch.tensor([0, 2])])),
    "many elements": (aten.mul.Tensor, (_x(65, 80).t(), 2.0)),
    "many elements and a plain number": (
        aten.native_group_norm.default,
        (_channels_last(), None, None, 1, 8, 900, 4, 1e-5),
    ),
    "a size among the arguments": (aten._adaptive_avg_pool2d.default, (_channels_last(), [20, 10])),
    "zeros are refused": (aten.multinomial.default, (_x(4).abs(), 2)),
    "a lazily conjugated operand": (aten.add.Tensor, (torch.randn(3, 4, dtype=torch.complex64).t().conj(), 1)),
}
NOT_ASKED = {
    "a view": (aten.t.default, (_x(3, 4),)),
    "a write": (aten.add_.Tensor, (_x(3, 4), 1)),
    "views that the schema calls new": (aten.unsafe_split.Tensor, (_x(4, 3), 2)),
    "many elements and a layout by sizes": (
        aten.convolution.default,
        (_x(1, 2, 65, 65), _x(2, 2, 3, 3), None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1),
    ),
    "many elements that overlap": (aten.roll.default, (_x(40000).as_strided((200, 200), (1, 1)), [7, 5], [0, 1])),
    "pivots, which the kernel trusts": (
        aten.linalg_lu_solve.default,
        (_x(2, 2), torch.ones(2, dtype=torch.int32), _x(2, 2)),
    ),
    "a shape that depends on data": (aten.nonzero.default, (_x(3),)),
    "no tensor": (aten.ones.default, ([2],)),
    "a generator, which the draw would move on": (aten.bernoulli.default, (_x(3).abs().clamp(max=1),)),
    "another layout": (aten.abs.default, (_x(3, 4).to_sparse(),)),
}


def _fakes(value: Any) -> Any:
    mode = FakeTensorMode()
    return pytree.tree_map_only(torch.Tensor, mode.from_tensor, value)


@pytest.mark.parametrize("name", ASKED)
def test_strides_are_those_that_the_kernel_gives_for_any_numbers(name: str) -> None:
    func, args = ASKED[name]
    expected = [tuple(leaf.stride()) for leaf in pytree.tree_leaves(func(*args))]
    given = _fakes(args)
    assert eager_facts.result_strides(func, given, {}, func(*given)) == expected


@pytest.mark.parametrize("name", NOT_ASKED)
def test_the_kernel_is_not_asked_where_it_would_not_answer_for_the_call(name: str) -> None:
    func, args = NOT_ASKED[name]
    kwargs = {"generator": torch.Generator()} if "generator" in name else {}
    assert eager_facts.result_strides(func, args, kwargs, func(*args, **kwargs)) is None


def test_a_result_that_the_fake_kernel_gives_another_shape_has_no_strides() -> None:
    x = _x(3, 4)
    assert eager_facts.result_strides(aten.abs.default, (x,), {}, x.new_empty(4, 3)) is None


def test_asking_draws_no_random_numbers_and_is_seen_by_no_mode() -> None:
    class Seen(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            Seen.calls += 1
            return func(*args, **(kwargs or {}))

    args = (_x(3, 4).t(), 0.5, True)
    result = aten.native_dropout.default(*args)
    state = torch.get_rng_state()
    with Seen():
        strides = eager_facts.result_strides(aten.native_dropout.default, args, {}, result)
    assert strides == [tuple(leaf.stride()) for leaf in result]
    assert Seen.calls == 0
    assert torch.equal(torch.get_rng_state(), state)


def test_a_trace_has_the_kernels_strides_where_fake_kernels_have_others() -> None:
    """The sum over a transposed tensor without elements: a fake kernel gives it another stride than eager does."""
    x = torch.ones(1, 0, 5)
    graph_module = refimpl.make_fx(lambda x: x.eq(1).sum([0], True), tracing_mode="fake")(x)
    (node,) = (node for node in graph_module.graph.nodes if "sum" in node.name)
    assert node.meta["val"].stride() == x.eq(1).sum([0], True).stride()


_DTYPES = (
    torch.bool,
    torch.uint8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
)
_SQUARE = torch.eye(4)
_PLACES = torch.tensor([0, 2, 1, 3])
_ROWS = (_SQUARE, [4], None, None, 1e-5)
_CALLS: dict[str, tuple[Any, tuple[Any, ...], int]] = {
    # operator, arguments, the argument whose dtype changes
    "one operand of several": (aten.addmv.default, (_SQUARE[0], _SQUARE, _SQUARE[0]), 1),
    "a gradient": (aten._softmax_backward_data.default, (_SQUARE, _SQUARE, 0, torch.float32), 0),
    "an input": (aten.native_layer_norm.default, _ROWS, 0),
    "a weight": (aten.native_layer_norm.default, (_SQUARE, [4], _SQUARE[0], None, 1e-5), 2),
    "an index": (aten.index_select.default, (_SQUARE, 0, _PLACES), 2),
    "an index of 64 bits": (aten.take.default, (_SQUARE, _PLACES), 1),
    "a target": (aten.nll_loss_forward.default, (_SQUARE, _PLACES, None, 1, -100), 1),
    "an operand with a target": (
        aten.nll_loss_backward.default,
        (torch.tensor(1.0), _SQUARE, _PLACES, None, 1, -100, torch.tensor(4.0)),
        1,
    ),
    "integers alone": (aten.bitwise_not.default, (_PLACES,), 0),
    "numbers": (aten.trunc.default, (_SQUARE,), 0),
    "wide floats": (aten.polar.default, (_SQUARE, _SQUARE), 0),
    "pixels": (aten.upsample_nearest2d.default, (_SQUARE.reshape(1, 1, 4, 4), [8, 8]), 0),
}


@pytest.mark.parametrize("dtype", _DTYPES, ids=str)
@pytest.mark.parametrize("what", _CALLS)
def test_dtypes_are_refused_that_the_kernel_refuses(what: str, dtype: torch.dtype) -> None:
    func, given, changed = _CALLS[what]
    args = tuple(arg.to(dtype) if at == changed else arg for at, arg in enumerate(given))
    try:
        func(*args)
    except (RuntimeError, IndexError):
        is_refused = True
    else:
        is_refused = False
    assert eager_facts.refuses_dtypes(func, args, {}) is is_refused


@pytest.mark.parametrize("order", [("mean", "sum"), ("sum", "mean")], ids="-".join)
def test_a_dtype_that_one_reduction_refuses_is_not_refused_by_another(
    order: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eager_facts, "_REFUSED", {})
    mask = _SQUARE[0] > 0
    with pytest.raises(RuntimeError, match="not implemented for 'Bool'"):
        aten.scatter_reduce.two(mask, 0, _PLACES, mask, "mean")
    for reduction in order:
        args = mask, 0, _PLACES, mask, reduction
        assert eager_facts.refuses_dtypes(aten.scatter_reduce.two, args, {}) is (reduction == "mean")


def test_a_number_that_a_kernel_refuses_says_nothing_of_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eager_facts, "_REFUSED", {})
    with pytest.raises(RuntimeError, match="negative"):
        aten.pow.Tensor_Scalar(_PLACES, -1)
    for exponent in (-1, 2):
        assert not eager_facts.refuses_dtypes(aten.pow.Tensor_Scalar, (_PLACES, exponent), {})
    for number, is_refused in ((True, True), (1, False), (1.0, False)):
        assert eager_facts.refuses_dtypes(aten.rsub.Scalar, (_SQUARE, number), {}) is is_refused


def test_sizes_that_a_kernel_refuses_say_nothing_of_dtypes() -> None:
    with pytest.raises(RuntimeError):
        aten.addmv.default(torch.ones(3), torch.ones(2, 5), torch.ones(3))
    assert not eager_facts.refuses_dtypes(aten.addmv.default, (torch.ones(3), torch.ones(2, 5), torch.ones(3)), {})
    assert eager_facts.refuses_dtypes(aten.addmv.default, (torch.ones(2), torch.ones(2, 5), torch.ones(5).double()), {})


_ROWS = torch.ones(2, 3)
_WRONG_CALLS: dict[str, Any] = {
    "string": (aten.gelu.default, (_ROWS,), {"approximate": "sinh"}),
    "sizes": (aten.native_layer_norm.default, (_ROWS, [2, 2], None, None, 1e-5), {}),
    "no elements": (aten._chunk_cat.default, ([torch.ones(0), torch.ones(2)], 0, 2), {}),
}
_RIGHT_CALLS: dict[str, Any] = {
    "string": (aten.gelu.default, (_ROWS,), {"approximate": "tanh"}),
    "sizes": (aten.native_layer_norm.default, (_ROWS, [3], None, None, 1e-5), {}),
    "singular ones": (aten.linalg_inv_ex.default, (torch.eye(3),), {"check_errors": True}),
    "all zeros": (aten.multinomial.default, (_ROWS, 2), {}),
    "places": (aten.embedding.default, (_ROWS, torch.tensor([1])), {}),
}


@pytest.mark.parametrize("what", _WRONG_CALLS)
def test_a_call_that_the_kernel_refuses_is_refused(what: str) -> None:
    func, args, kwargs = _WRONG_CALLS[what]
    with pytest.raises(RuntimeError):
        func(*args, **kwargs)
    assert eager_facts.refuses_call(func, args, kwargs)


@pytest.mark.parametrize("what", _RIGHT_CALLS)
def test_a_call_is_not_refused_for_values_of_trial_operands(what: str) -> None:
    func, args, kwargs = _RIGHT_CALLS[what]
    func(*args, **kwargs)
    assert not eager_facts.refuses_call(func, args, kwargs)


def test_no_kernel_gets_narrow_integers_beside_floats_that_are_no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[torch.dtype, ...]] = []
    original = eager_facts._called

    def called(func: Any, args: Any, kwargs: Any, trial_operands: Any, fill: int, dtypes: Any = None) -> Any:
        asked.append(tuple(dtypes))
        return original(func, args, kwargs, trial_operands, fill, dtypes)

    monkeypatch.setattr(eager_facts, "_called", called)
    monkeypatch.setattr(eager_facts, "_REFUSED", {})
    bag = torch.ones(5, 3), torch.tensor([1, 2]), torch.tensor([0], dtype=torch.int32)
    eager_facts.refuses_dtypes(aten._embedding_bag.default, bag, {})
    assert asked
    assert all(torch.int32 not in dtypes for dtypes in asked)


def _given(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype)


_G = _given(3, 4)  # is zeros
_X = _given(3, 4)
_I = _given(2, dtype=torch.int64)
_GIVE_ZEROS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "a product": (aten.mul.Tensor, (_X, _G)),
    "a quotient": (aten.div.Tensor, (_G, _X)),
    "a product with a matrix": (aten.mm.default, (_given(2, 3), _G)),
    "rows": (aten.index.Tensor, (_G, [_I])),
    "where it is, or zero": (aten.masked_fill.Scalar, (_G, _X > 0, 0)),
    "a backward kernel of a random one": (aten.native_dropout_backward.default, (_G, _X > 0, 2.0)),
    "a view": (aten.t.default, (_G,)),
    "a write": (aten.mul_.Tensor, (_X, _G)),
}
_GIVE_OTHERS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "a sum": (aten.add.Tensor, (_G, _X)),
    "what 0 divides": (aten.div.Tensor, (_X, _G)),
    "the larger one": (aten.maximum.default, (_G, _X)),
    "one of two, by a third": (aten.where.self, (_X > 0, _G, _X)),
    "a power that may be 0": (aten.pow.Tensor_Tensor, (_G, _X)),
    "a bias": (aten.addmm.default, (_given(4), _given(2, 3), _G)),
    "a cosine": (aten.cos.default, (_G,)),
    "a comparison": (aten.gt.Scalar, (_G, 1)),
    "memory that is not initialized": (aten.new_empty.default, (_G, [3])),
    "where it is not zero": (aten.nonzero.default, (_G,)),
}


@pytest.mark.parametrize("name", [*_GIVE_ZEROS, *_GIVE_OTHERS])
def test_zeros_stay_zeros_where_no_other_operand_can_change_that(name: str) -> None:
    func, args = {**_GIVE_ZEROS, **_GIVE_OTHERS}[name]
    assert eager_facts.gives_zeros(func, args, {}, {id(_G)}) == (name in _GIVE_ZEROS)

"""What kernels are asked: they tell what rounds, what chooses, where a domain ends, what is written, how long a sum is."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from oracle.reruns import kernel_facts
from oracle.reruns.kernel_facts import KernelFacts, facts_of, own_errors

aten = torch.ops.aten
X = torch.randn(6, 6, generator=torch.Generator().manual_seed(0))
INDEX = torch.tensor([0, 2, 2, 5])


def of(func: Any, *args: Any, **kwargs: Any) -> KernelFacts:
    return facts_of(func, args, kwargs)


MOVES: dict[str, Callable[[], KernelFacts]] = {
    "copy": lambda: of(aten.clone.default, X),
    "join": lambda: of(aten.cat.default, [X, X]),
    "index": lambda: of(aten.index.Tensor, X, [INDEX]),
    "write by index": lambda: of(aten.index_put.default, X, [INDEX[:1]], X[:1]),
    "select by a mask": lambda: of(aten.where.self, X > 0, X, X.neg()),
    "fill": lambda: of(aten.masked_fill.Scalar, X, X > 0, 1.5),
    "to a wider dtype": lambda: of(aten._to_copy.default, X, dtype=torch.float64),
    "product with 1": lambda: of(aten.mul.Tensor, X, 1.0),
}
CHOOSES: dict[str, Callable[[], KernelFacts]] = {
    "larger of two": lambda: of(aten.maximum.default, X, X + 1),
    "largest": lambda: of(aten.amax.default, X, [1]),
    "order": lambda: of(aten.sort.default, X),
    "bounds": lambda: of(aten.clamp.default, X, -0.5, 0.5),
    "bounds of few elements": lambda: of(aten.clamp.default, X[0, :1], -5.0),
    "or zero": lambda: of(aten.relu.default, X),
    "in place": lambda: of(aten.relu_.default, X),
    "largest of what meets at an index": lambda: of(
        aten.scatter_reduce.two, X, 0, torch.zeros(6, 6, dtype=torch.int64), X, "amax"
    ),
}
COMPUTES: dict[str, Callable[[], KernelFacts]] = {
    "floor": lambda: of(aten.floor.default, X),
    "sign": lambda: of(aten.sign.default, X),
    "remainder of a division": lambda: of(aten.fmod.Scalar, X, 0.3),
    "rounded quotient": lambda: of(aten.div.Tensor_mode, X, torch.tensor(0.1), rounding_mode="floor"),
    "product with 2": lambda: of(aten.mul.Tensor, X, 2.0),
}
ROUNDS: dict[str, Callable[[], KernelFacts]] = {
    "sum of two": lambda: of(aten.add.Tensor, X, X),
    "sum of two numbers": lambda: of(aten.add.Tensor, X[0, 0], X[0, 1]),
    "product": lambda: of(aten.mul.Tensor, X, X),
    "sum": lambda: of(aten.sum.default, X),
    "matrix product": lambda: of(aten.mm.default, X, X),
    "exponential": lambda: of(aten.exp.default, X),
    "to a narrower dtype": lambda: of(aten._to_copy.default, X, dtype=torch.bfloat16),
    "to single precision": lambda: of(aten._to_copy.default, X.double(), dtype=torch.float32),
    "double precision": lambda: of(aten.add.Tensor, X.double(), X.double()),
    "quotient of integers": lambda: of(aten.div.Tensor, INDEX, INDEX + 3),
    "added up at an index": lambda: of(aten.index_put.default, X, [INDEX], X[:4], True),
    "put, added up": lambda: of(aten.put.default, X, INDEX, X[0, :4], True),
    "negative numbers, asked with positive ones": lambda: of(aten.elu.default, X[0, :1].abs()),
}


@pytest.mark.parametrize("name", MOVES)
def test_what_moves_numbers_is_exact_and_chooses_nothing(name: str) -> None:
    facts = MOVES[name]()
    assert (facts.is_exact, facts.moves, facts.chooses, facts.negates) == (True, True, False, False)


@pytest.mark.parametrize("name", CHOOSES)
def test_what_chooses_by_comparing_is_exact_and_does_not_move(name: str) -> None:
    facts = CHOOSES[name]()
    assert (facts.is_exact, facts.moves, facts.chooses) == (True, False, True)


@pytest.mark.parametrize("name", COMPUTES)
def test_what_computes_without_rounding_is_exact(name: str) -> None:
    facts = COMPUTES[name]()
    assert (facts.is_exact, facts.moves, facts.chooses) == (True, False, False)


@pytest.mark.parametrize("name", ROUNDS)
def test_what_rounds_is_not_exact(name: str) -> None:
    assert not ROUNDS[name]().is_exact


def test_a_negation_moves_numbers_and_their_signs() -> None:
    assert of(aten.neg.default, X).moves
    assert of(aten.neg.default, X).negates


def test_zero_is_among_what_a_rectifier_chooses_from() -> None:
    assert of(aten.relu.default, X).chooses_zero
    assert not of(aten.maximum.default, X, X + 1).chooses_zero


def test_each_result_is_asked_about() -> None:
    """The loss of classes rounds; the mask of targets that comes with it is made of 0 and 1."""
    assert of(aten.multilabel_margin_loss_forward.default, X, torch.tensor([[0, 1, -1, 0, 0, 0]] * 6), 1).exact == (
        False,
        True,
    )


def test_literals_make_a_difference() -> None:
    assert of(aten.pow.Tensor_Scalar, X, 1).is_exact
    assert not of(aten.pow.Tensor_Scalar, X, 2).is_exact
    assert of(aten.linalg_vector_norm.default, X, math.inf).is_exact
    assert not of(aten.linalg_vector_norm.default, X, 2).is_exact


@pytest.mark.parametrize("func", [aten.add.Tensor, aten.mul.Tensor, aten.mm.default], ids=str)
def test_sums_and_products_of_integers_are_exact(func: Any) -> None:
    assert of(func, X, X).is_ring


@pytest.mark.parametrize("func", [aten.div.Tensor, aten.pow.Tensor_Tensor], ids=str)
def test_quotients_and_powers_of_integers_are_not(func: Any) -> None:
    assert not of(func, X, X).is_ring


@pytest.mark.parametrize(
    "name", ["acos", "acosh", "atanh", "erfinv", "logit", "log1p", "digamma", "lgamma", "special_ndtri"]
)
def test_a_domain_that_ends_at_another_number_than_zero_is_found(name: str) -> None:
    assert of(getattr(aten, name).default, X).has_edge


@pytest.mark.parametrize("name", ["log", "sqrt", "rsqrt", "reciprocal"])
def test_a_domain_that_ends_at_zero_has_no_edge_that_rounding_crosses(name: str) -> None:
    facts = of(getattr(aten, name).default, X)
    assert facts.has_domain
    assert not facts.has_edge


@pytest.mark.parametrize("name", ["exp", "sin", "tanh", "sigmoid", "gelu"])
def test_a_function_of_all_numbers_has_no_domain(name: str) -> None:
    assert not of(getattr(aten, name).default, X).has_domain


@pytest.mark.parametrize(
    ("name", "bounds"),
    [
        ("sigmoid", (0, 1)),
        ("tanh", (-1, 1)),
        ("cos", (-1, 1)),
        ("erf", (-1, 1)),
        ("exp", (0, math.inf)),
        ("asinh", (-math.inf, math.inf)),
    ],
)
def test_results_are_bounded_as_the_function_is(name: str, bounds: tuple[float, float]) -> None:
    assert of(getattr(aten, name).default, X).bounds == bounds


def test_probabilities_and_their_logarithms_are_bounded() -> None:
    assert of(aten._softmax.default, X, 1, False).bounds == (0, 1)
    assert of(aten._log_softmax.default, X, 1, False).bounds == (-math.inf, 0)


def test_what_the_schema_calls_read_only_and_the_kernel_writes_is_found() -> None:
    training, evaluation = (
        of(aten.native_batch_norm.default, X, None, None, X.mean(0), X.var(0), is_training, 0.1, 1e-5)
        for is_training in (True, False)
    )
    assert training.undeclared_writes == {3, 4}
    assert evaluation.undeclared_writes == frozenset()


@pytest.mark.parametrize(
    ("facts", "terms"),
    [
        (lambda: of(aten.sum.dim_IntList, X, [1]), 6),
        (lambda: of(aten.mean.default, X), 36),
        (lambda: of(aten._softmax.default, X, 1, False), 6),
        (lambda: of(aten.mm.default, X[:2], X), 6),
        (lambda: of(aten.native_layer_norm.default, X, [6], None, None, 1e-5), 6),
        (
            lambda: of(
                aten.convolution.default,
                X[None, None],
                X[:3, :3][None, None],
                None,
                [1, 1],
                [0, 0],
                [1, 1],
                False,
                [0, 0],
                1,
            ),
            9,
        ),
        (lambda: of(aten.index_add.default, X[0], 0, torch.zeros(6, dtype=torch.int64), X[1]), 7),
        (lambda: of(aten.exp.default, X), 1),
    ],
)
def test_the_length_of_a_sum_is_what_an_element_depends_on(facts: Callable[[], KernelFacts], terms: int) -> None:
    assert facts().terms == terms


def test_asking_changes_neither_operands_nor_generators() -> None:
    x, out = X.clone(), X.clone()
    state = torch.get_rng_state()
    for func, args, kwargs in (
        (aten.add_.Tensor, (x, x), {}),
        (aten.add.out, (x, x), {"out": out}),
        (aten._scaled_dot_product_flash_attention_for_cpu.default, (x[None, None],) * 3, {}),
    ):
        facts_of(func, args, kwargs)
    assert torch.equal(x, X)
    assert torch.equal(out, X)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    "operand",
    [torch.ones(1).expand(4), torch.ones(8)[::2], torch.empty_strided((1,), (2,)).fill_(1.0)],
    ids=["expanded", "every second element", "one element of a stride of 2"],
)
def test_operands_of_any_strides_are_asked_about(operand: torch.Tensor) -> None:
    assert not of(aten.exp.default, operand).is_exact


def test_an_operator_that_refuses_every_stand_in_is_taken_to_round() -> None:
    facts = of(aten.linalg_cholesky.default, torch.ones(0, 3))
    assert not facts.is_exact
    assert facts.has_domain


def test_the_error_of_a_kernel_is_found_where_it_is_more_than_an_epsilon() -> None:
    """log(1 + e^-5.5) is small, and has the error of the 1 that it is computed with."""
    x = torch.tensor([0.0, -5.5])
    (small,) = own_errors(aten._log_softmax.default, (x, 0, False), {}, aten._log_softmax.default(x, 0, False))
    (ordinary,) = own_errors(aten.mul.Tensor, (x, x), {}, x * x)
    assert small is not None
    assert 0 < small[0] < 2e-7
    assert ordinary is None


@pytest.mark.parametrize(
    ("func", "args", "terms"),
    [
        (aten.mm.default, (X, X[:, :2]), 6.0),
        (aten.sum.default, (X,), 36.0),
        (aten._softmax.default, (X, 1, False), 6.0),
    ],
)
def test_of_a_large_call_the_first_trial_serves_twice(
    func: Any, args: tuple[Any, ...], terms: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[Any] = []
    run = kernel_facts._Trial._run
    monkeypatch.setattr(kernel_facts, "_FACTS", {})
    monkeypatch.setattr(kernel_facts._Trial, "_run", lambda trial, *given: runs.append(given) or run(trial, *given))
    monkeypatch.setattr(kernel_facts, "_LARGE", 1)
    facts = of(func, *args)
    first = runs[0][0]
    assert sum(all(map(torch.equal, given[0], first)) for given in runs) == 2  # in its dtype and in float64
    assert not any(facts.exact)
    assert facts.terms >= terms / 2

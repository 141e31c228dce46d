"""Rounding noise moves what rounding could move, by as much, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from oracle.program.clone import bytes_of
from oracle.reruns.noise import RoundingNoise

torch.manual_seed(0)
X = torch.randn(6, 6)
IDS = torch.tensor([0, 2, 2, 5])


def noisy(fn: Callable[[], Any], seed: int = 0, scale: float = 1.0) -> Any:
    with RoundingNoise(seed, scale=scale):
        return fn()


def spread(fn: Callable[[], torch.Tensor], runs: int = 30) -> torch.Tensor:
    """Standard deviation over seeds, element by element, in float64."""
    return torch.stack([noisy(fn, seed).double() for seed in range(runs)]).std(0)


EXACT: dict[str, Callable[[], Any]] = {
    "view": lambda: X.view(-1)[3:].t(),
    "clone": lambda: X.clone(),
    "cat": lambda: torch.cat([X, X]),
    "gather": lambda: X.gather(1, IDS[:, None]),
    "index": lambda: X[IDS],
    "index_put": lambda: torch.zeros(6, 6).index_put((IDS,), X[:4]),
    "scatter": lambda: torch.zeros(6, 6).scatter(1, IDS[:, None], X),
    "where": lambda: torch.where(X > 0, X, -X),
    "masked_fill": lambda: X.masked_fill(X > 0, 1.5),
    "masked_select": lambda: X.masked_select(X > 0),
    "neg abs relu clamp": lambda: X.neg().abs().relu().clamp(0.1, 0.9),
    "max": lambda: X.max(1),
    "amin": lambda: X.amin(),
    "sort": lambda: X.sort(1),
    "topk": lambda: X.topk(3),
    "argmax": lambda: X.argmax(),
    "comparisons": lambda: (X > 0.3, X == X, X.t() >= X),
    "floor": lambda: (X * 1).floor(),
    "round": lambda: X.round(),
    "floor_divide": lambda: torch.tensor(1.0) // torch.tensor(0.1),
    "div floor": lambda: torch.div(X, 0.1, rounding_mode="floor"),
    "fmod": lambda: X.fmod(0.3),
    "widening cast": lambda: X.to(torch.float64),
    "same cast": lambda: X.to(torch.float32, copy=True),
    "factories": lambda: (torch.full((3,), 0.1), torch.arange(0, 1, 0.1), torch.zeros(2), torch.linspace(0, 1, 7)),
    "pad": lambda: F.pad(X, (1, 1), value=0.1),
    "max_pool2d": lambda: F.max_pool2d(X[None, None], 2),
    "nearest": lambda: F.interpolate(X[None, None], scale_factor=2, mode="nearest"),
    "embedding": lambda: F.embedding(IDS, X),
    "isnan": lambda: X.isnan(),
    "item": lambda: X[0, 0].item(),
    "integers": lambda: (IDS + 1, IDS @ IDS, IDS.float().sum(), (X > 0).float().sum(), (X > 0).sum()),
    "small integer matmul": lambda: IDS[:, None].float() @ IDS[None].float(),
    "in place": lambda: X.clone().fill_(0.1).copy_(X).masked_fill_(X > 0, 0.7),
    "maximum norms": lambda: (torch.linalg.vector_norm(X, float("inf")), torch.cdist(X, X.t(), p=float("inf"))),
    "quantise": lambda: torch.fake_quantize_per_tensor_affine(X, 0.1, 0, -10, 10),
}


@pytest.mark.parametrize("name", EXACT)
def test_exact_operators_are_left_alone(name: str) -> None:
    expected, actual = EXACT[name](), noisy(EXACT[name])
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


INEXACT: dict[str, Callable[[], torch.Tensor]] = {
    "exp": lambda: X.exp(),
    "add": lambda: X + 0.1,
    "mul": lambda: X * X,
    "div": lambda: X / 3,
    "sum": lambda: X.sum(0),
    "mean": lambda: X.mean(0),
    "matmul": lambda: X @ X,
    "softmax": lambda: X.softmax(0),
    "layer_norm": lambda: F.layer_norm(X, (6,)),
    "batch_norm": lambda: F.batch_norm(X, None, None, training=True),
    "conv2d": lambda: F.conv2d(X[None, None], X[:3, :3][None, None]),
    "bilinear": lambda: F.interpolate(X[None, None], scale_factor=2.0, mode="bilinear"),
    "narrowing cast": lambda: X.exp().to(torch.bfloat16),
    "scatter_add": lambda: torch.zeros(6, 6).scatter_add(0, IDS[:, None].expand(4, 6), X[:4]),
    "accumulate": lambda: torch.zeros(6, 6).index_put((IDS,), X[:4], accumulate=True),
    "in place": lambda: X.clone().mul_(1.3).add_(X),
    "out": lambda: torch.add(X, 0.3, out=torch.empty(6, 6)),
    "foreach": lambda: torch._foreach_mul([X], 1.3)[0],
    "sdpa": lambda: F.scaled_dot_product_attention(X[None, None], X[None, None], X[None, None]),
    "acos": lambda: X.clamp(-1, 1).acos(),
}


@pytest.mark.parametrize("name", INEXACT)
def test_inexact_operators_move_by_about_one_unit(name: str) -> None:
    expected = INEXACT[name]()
    moved = spread(INEXACT[name])
    eps = torch.finfo(expected.dtype).eps
    assert moved.max() > 0
    assert moved.max() < 40 * eps * max(1.0, expected.abs().max().item())
    assert not moved.isnan().any()


@pytest.mark.parametrize(("terms", "factor"), [(10, 1.0), (1000, (1000 / 16) ** 0.5), (100_000, (100_000 / 16) ** 0.5)])
def test_a_sum_moves_by_eps_times_the_norm_and_more_the_more_terms_it_has(terms: int, factor: float) -> None:
    x = torch.randn(terms, generator=torch.Generator().manual_seed(9))
    expected = torch.finfo(torch.float32).eps / 3**0.5 * x.double().norm() * factor
    assert expected / 3 < spread(x.sum, runs=60) < expected * 3


@pytest.mark.parametrize("terms", [1000, 10_000, 100_000])
def test_one_running_sum_is_within_eight_times_the_noise(terms: int) -> None:
    for seed in range(5):
        x = torch.randn(terms, generator=torch.Generator().manual_seed(seed))
        running = x.cumsum(0)[-1] if terms < 5000 else torch.tensor(sum_in_order(x))
        assert abs(running - x.sum()) < 8 * spread(x.sum, runs=4)


def sum_in_order(x: torch.Tensor) -> float:
    return float(np.add.accumulate(x.numpy(), dtype=np.float32)[-1])


def test_noise_scales() -> None:
    x = torch.linspace(1, 2, 200)
    one = (noisy(x.exp, scale=1.0) - x.exp()).abs().mean()
    many = (noisy(x.exp, scale=64.0) - x.exp()).abs().mean()
    assert 20 < many / one < 200


def test_noise_has_no_bias() -> None:
    x = torch.full((100_000,), 1.3)
    moved = noisy(lambda: x * 1.7).double() / (x * 1.7).double() - 1
    assert abs(moved.mean()) < 3e-9
    assert moved.std() > 3e-8


def test_only_near_ties_flip() -> None:
    values = torch.tensor([[[0.1, 0.3, 0.7, 0.2]]])
    near = F.interpolate(values, scale_factor=3.0, mode="linear").reshape(-1)
    threshold = near.clone()
    threshold[::2] += 0.01  # every other comparison is clear

    def program() -> torch.Tensor:
        return F.interpolate(values, scale_factor=3.0, mode="linear").reshape(-1) > threshold

    results = torch.stack([noisy(program, seed) for seed in range(20)])
    flips = results.any(0) & ~results.all(0)
    assert flips[1::2].any()
    assert not flips[::2].any()


def test_gradients_get_noise() -> None:
    def gradient() -> torch.Tensor:
        leaf = X.clone().requires_grad_()
        (leaf.sin() @ leaf).sum().backward()
        assert leaf.grad is not None
        return leaf.grad

    moved = spread(gradient)
    assert 0 < moved.max() < 1e-4

    leaf = X.clone().requires_grad_()
    loss = leaf.exp().sum()  # the forward pass outside
    with RoundingNoise(0) as mode:
        loss.backward()
    assert mode.moved_ops > 0
    assert not torch.equal(leaf.grad, X.exp())  # pyright: ignore


def test_gradients_that_look_for_the_maximum_find_it() -> None:
    for fn in (
        lambda x: x.norm(float("inf")),
        lambda x: torch.cdist(x, x.detach() + 1, p=float("inf")).sum(),
        torch.amax,
    ):
        leaf = X.clone().requires_grad_()
        noisy(lambda fn=fn, leaf=leaf: fn(leaf).backward())
        assert leaf.grad is not None
        assert leaf.grad.isfinite().all()
        assert leaf.grad.abs().sum() > 0.5


def test_equal_seeds_give_equal_results_and_others_do_not() -> None:
    def program() -> torch.Tensor:
        return (X @ X).softmax(-1).exp()

    assert noisy(program, 3).equal(noisy(program, 3))
    assert not noisy(program, 3).equal(noisy(program, 4))


RANDOM: dict[str, Callable[[], torch.Tensor]] = {
    "rand": lambda: torch.rand(9),
    "dropout": lambda: F.dropout(X, 0.5),
    "normal_": lambda: torch.empty(9).normal_(),
    "bernoulli": lambda: torch.bernoulli(torch.full((9,), 0.5)),
    "multinomial": lambda: torch.multinomial(torch.full((9,), 0.5), 3),
}


@pytest.mark.parametrize("name", RANDOM)
def test_random_operators_draw_the_same_numbers(name: str) -> None:
    torch.manual_seed(1)
    expected, state = RANDOM[name](), torch.get_rng_state()
    torch.manual_seed(1)
    actual = noisy(RANDOM[name])
    torch.testing.assert_close(actual, expected)
    assert (actual == 0).equal(expected == 0)
    assert torch.get_rng_state().equal(state)


def test_the_global_generator_is_untouched_and_uncorrelated() -> None:
    before = torch.get_rng_state()
    noisy(lambda: X.exp() @ X)
    assert torch.get_rng_state().equal(before)
    torch.manual_seed(5)
    x = torch.rand(2000) + 1  # drawn from the seed that the noise has too
    moved = noisy(lambda: x * 1.5, seed=5).double() - x.double() * 1.5
    assert abs(torch.corrcoef(torch.stack([moved / x, x.double()]))[0, 1]) < 0.1


def test_special_values_stay() -> None:
    x = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan"), torch.finfo(torch.float32).max])
    for seed in range(5):
        result = noisy(lambda: x * torch.tensor(1.0), seed)
        assert result.isfinite().tolist() == [True, True, False, False, False, True]
        assert result.signbit()[:4].tolist() == [False, True, False, True]


def test_masks_made_of_the_smallest_number_stay_finite() -> None:
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        mask = torch.tensor([[0.0, 1.0], [1.0, 1.0]], dtype=dtype)
        for seed in range(5):
            weights = noisy(lambda mask=mask: (mask * torch.finfo(mask.dtype).min).softmax(-1), seed)
            torch.testing.assert_close(weights, torch.tensor([[1.0, 0.0], [0.5, 0.5]], dtype=dtype), atol=0.1, rtol=0)


def test_strides_stay() -> None:
    for value in (X.t(), X[:, ::2], X[:1].expand(4, 6), X[None, None].to(memory_format=torch.channels_last)):
        assert noisy(lambda value=value: value.exp()).stride() == value.exp().stride()
        assert noisy(lambda value=value: value * 2.5).stride() == (value * 2.5).stride()
    assert (
        noisy(lambda: torch.linalg.qr(torch.empty(5, 0))[0]).stride() == torch.linalg.qr(torch.empty(5, 0))[0].stride()
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.complex64, torch.complex128])
def test_every_dtype_moves_by_its_own_epsilon(dtype: torch.dtype) -> None:
    x = (X[0].abs() + 0.5).to(dtype)
    moved = torch.stack([(noisy(lambda: x * x, seed) - x * x).abs() for seed in range(20)]).max(0).values
    relative = (moved / (x * x).abs()).max()
    eps = torch.finfo(dtype).eps
    assert eps / 4 < relative < 8 * eps


def test_conversion_to_float8_is_left_in_range() -> None:
    x = torch.full((50,), 448.0)  # the largest float8_e4m3fn
    result = noisy(lambda: (x * 0.999).to(torch.float8_e4m3fn))
    assert result.float().isfinite().all()


def test_in_place_operators_keep_their_aliases() -> None:
    def program() -> tuple[torch.Tensor, torch.Tensor]:
        base = X.clone()
        view = base[1]
        view.mul_(1.3)
        return base, view

    base, view = noisy(program)
    assert base[1].equal(view)
    assert view.data_ptr() == base[1].data_ptr()
    assert not view.equal(X[1] * 1.3)


@pytest.mark.parametrize("scale", [0.0, 1.0])
def test_a_list_operator_reads_what_it_has_written_before(scale: float) -> None:
    def program() -> tuple[torch.Tensor, ...]:
        a, b = X.clone(), X.sin()
        torch._foreach_add_([a, b, a], [b, a, X])
        return a, b

    torch.testing.assert_close(noisy(program, scale=scale), program())


def test_hidden_mutation_still_happens() -> None:
    mean, variance = torch.zeros(6), torch.ones(6)
    noisy(lambda: F.batch_norm(X, mean, variance, training=True))
    expected = 0.1 * X.mean(0)
    torch.testing.assert_close(mean, expected)
    assert not variance.equal(torch.ones(6))


def test_domains_are_not_left() -> None:
    probabilities = torch.tensor([0.0, 1.0, 1.0, 0.0])
    for seed in range(5):
        loss = noisy(lambda: F.binary_cross_entropy(probabilities, probabilities), seed)
        assert loss.isfinite()
        assert not noisy(lambda: probabilities.acos(), seed).isnan().any()


@pytest.mark.parametrize(
    ("function", "least", "most"),
    [
        (torch.sigmoid, 0.0, 1.0),
        (lambda x: torch.softmax(x, 0), 0.0, 1.0),
        (torch.tanh, -1.0, 1.0),
        (torch.cos, -1.0, 1.0),
    ],
    ids=["sigmoid", "softmax", "tanh", "cosine"],
)
@pytest.mark.parametrize("shape", [(64,), (1, 64)])
def test_results_stay_where_the_function_ends(function: Any, least: float, most: float, shape: tuple[int, ...]) -> None:
    """Drawing by a probability above 1 is an error."""
    x = torch.zeros(shape).fill_diagonal_(200.0) if len(shape) == 2 else torch.arange(64.0) * 1e3
    x = x.new_zeros(64) if function is torch.cos else x
    for seed in range(3):
        moved = noisy(lambda: function(x), seed)
        assert bool(((moved >= least) & (moved <= most)).all())
        assert moved.stride() == function(x).stride()
        noisy(lambda: torch.bernoulli(function(x).abs()), seed)
    in_place = noisy(lambda: x.clone().fill_(200.0).sigmoid_(), 0)
    assert bool((in_place <= 1).all())
    assert not bool((in_place == 1).all())


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_what_is_left_of_a_difference_from_one_moves_by_a_rounding_of_one(approximate: str) -> None:
    """No wider dtype shows eager's own error in float64, and relative to the result it is large."""
    x = torch.tensor([-4.75, -3.0, 2.0, -9.0, 30.0, -torch.inf], dtype=torch.float64)
    calls = (
        lambda: torch.nn.functional.gelu(x, approximate=approximate),
        lambda: torch.ops.aten.gelu_backward(x.clone(), x, approximate=approximate),
    )
    for call in calls:
        plain = call()
        moves = torch.stack([(noisy(call, seed) - plain).abs() for seed in range(8)]).amax(0)
        assert bool((moves[:2] > 1e-16).all())
        assert bool((moves[:3] < 1e-13).all())
        assert bool((moves[3:5] <= 1e-6 * plain[3:5].abs()).all())  # nothing is left there
        assert torch.equal(noisy(call, 0)[5], plain[5]) or bool(plain[5].isnan())


def test_masks_that_a_backward_checks_stay() -> None:
    leaf = X.clone().requires_grad_()
    for seed in range(5):
        noisy(lambda: F.multilabel_margin_loss(leaf, torch.tensor([[0, 1, -1, 0, 0, 0]] * 6)).backward(), seed)
    assert leaf.grad is not None


def test_sparse_and_quantised_inputs_are_left_alone() -> None:
    sparse = torch.eye(3).to_sparse()
    noisy(lambda: torch.sparse.mm(sparse, torch.ones(3, 2)))
    quantised = torch.quantize_per_tensor(X, 0.1, 0, torch.quint8)
    assert noisy(quantised.dequantize).equal(quantised.dequantize())


def test_exact_programs_are_known_as_such() -> None:
    with RoundingNoise(0) as mode:
        X.t().contiguous().argmin()
    assert mode.moved_ops == 0


def test_training_a_small_network_works_under_noise() -> None:
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), torch.nn.MaxPool2d(2), torch.nn.Flatten()
    )
    optimizer = torch.optim.Adam(model.parameters())
    before = [parameter.detach().clone() for parameter in model.parameters()]
    with RoundingNoise(0):
        model(torch.randn(2, 1, 8, 8)).square().sum().backward()
        optimizer.step()
    assert all(not a.equal(b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_a_remainder_moves_by_a_rounding_of_its_first_input_and_never_by_a_whole_divisor() -> None:
    a, b = torch.linspace(-9, 9, 1000), torch.tensor(0.1)
    exact = a % b
    for seed in range(5):
        with RoundingNoise(seed):
            moved = a % b
            written = a.clone().remainder_(b)
        error = (moved.double() - exact.double()).abs()
        assert 0 < error.max() <= 9 * 1.01 * torch.finfo(torch.float32).eps
        assert (written.double() - exact.double()).abs().max() <= 9 * 1.01 * torch.finfo(torch.float32).eps


def test_a_remainder_of_small_integers_stays() -> None:
    a = torch.arange(100.0)
    with RoundingNoise(0):
        assert torch.equal(a % 7, torch.remainder(a, 7.0))
        assert torch.equal((a % 7).to(torch.int64), torch.arange(100) % 7)


def test_the_sign_of_a_zero_stays_through_arithmetic_on_elements_and_is_open_after_a_sum() -> None:
    zeros = torch.zeros(200) * torch.tensor([1.0, -1.0] * 100)
    with RoundingNoise(0):
        products = zeros * 1.5
        sums = zeros.view(100, 2).sum(1)
    assert torch.equal(products.signbit(), zeros.signbit())
    assert 10 < int(sums.signbit().sum()) < 90
    assert not sums.any()


@pytest.mark.parametrize(
    "choose",
    [
        lambda x: torch.maximum(x, -x),
        lambda x: x.view(1, 10, 20).amax(2, keepdim=True).expand(1, 10, 20),
        lambda x: torch.nn.functional.max_pool1d(x.view(1, 1, 200), 2),
        lambda x: x.clamp(min=0.0),
        lambda x: x.clone().relu_(),
        lambda x: torch.fmin(x, x.flip(0), out=torch.empty(200)),
        lambda x: x.view(100, 2).max(1).values,
        lambda x: torch.scatter_reduce(x, 0, torch.arange(200), x.flip(0), "amin"),
    ],
)
def test_of_two_zeros_of_different_sign_either_may_be_chosen(choose: Callable[[torch.Tensor], torch.Tensor]) -> None:
    zeros = torch.zeros(200) * torch.tensor([1.0, -1.0] * 100)
    expected = choose(zeros)
    signs = []
    for seed in range(4):
        with RoundingNoise(seed):
            chosen = choose(zeros)
        assert torch.equal(chosen, expected)  # as numbers
        assert chosen.stride() == expected.stride()
        signs.append(chosen.signbit())
    assert any(not torch.equal(signs[0], other) for other in signs[1:])


def test_a_choice_without_two_zeros_keeps_its_sign() -> None:
    negative = torch.tensor([-0.0, -1.0, -0.0, -2.0])
    with RoundingNoise(0):
        assert negative.clamp(min=-5.0).signbit().all()
        assert negative.view(2, 2).amax(1).signbit().all()
        assert not torch.tensor([0.0, 1.0, 0.0]).relu().signbit().any()


COMPUTES_NAN: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "power": lambda x: (-x.nan_to_num(1.0)).pow(0.5),
    "sum in place": lambda x: x.clone().add_(1),
    "sum, out=": lambda x: torch.add(x, 1, out=torch.empty_like(x)),
    "maximum": lambda x: torch.maximum(x, torch.ones_like(x)),
    "bounds in place": lambda x: x.clone().clamp_(0, 1),
    "fmod": lambda x: x.fmod(2.0),
    "remainder in place": lambda x: x.clone().remainder_(2.0),
    "conversion": lambda x: x.to(torch.float16 if x.dtype is torch.float64 else torch.float64).to(x.dtype),
    "in two steps": lambda x: (x * 2).exp(),
    "read through a view": lambda x: x.clone().view(2, -1).mul_(2).view(-1),
}
KEEPS_NAN: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "copy": lambda x: x.clone(),
    "negation": lambda x: x.neg().neg_(),
    "sign": lambda x: x.abs().copysign(x),
    "choice": lambda x: torch.where(x.signbit(), x, x.flip(0).flip(0)),
    "index": lambda x: torch.zeros_like(x).index_put((torch.arange(x.numel()),), x),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", COMPUTES_NAN)
def test_the_sign_of_a_computed_nan_is_open(name: str, dtype: torch.dtype) -> None:
    numbers = torch.tensor([torch.nan] * 40, dtype=dtype).copysign(torch.tensor([1.0, -1.0] * 20, dtype=dtype))
    runs = [noisy(lambda: COMPUTES_NAN[name](numbers), seed) for seed in range(3)]
    for run in runs:
        assert run.dtype is dtype
        assert run.isnan().all()
    assert not runs[0].signbit().any()
    assert runs[1].signbit().all()
    assert 5 < int(runs[2].signbit().sum()) < 35


def test_the_sign_of_a_negated_nan_is_open_in_bfloat16() -> None:
    """Eager's vector loop changes it, its scalar loop gives the NaN of a conversion."""
    numbers = torch.tensor([torch.nan] * 40, dtype=torch.bfloat16)
    for seed in range(2):
        for negated in (noisy(lambda: numbers.neg(), seed), noisy(lambda: numbers.clone().neg_(), seed)):
            assert negated.signbit().tolist() == [bool(seed)] * 40


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize("name", KEEPS_NAN)
def test_the_sign_of_nan_stays_where_it_is_told(name: str, dtype: torch.dtype) -> None:
    numbers = torch.tensor([torch.nan] * 40, dtype=dtype).copysign(torch.tensor([1.0, -1.0] * 20, dtype=dtype))
    for seed in range(3):
        assert torch.equal(noisy(lambda: KEEPS_NAN[name](numbers), seed).signbit(), numbers.signbit())


def test_elements_that_are_one_in_memory_are_moved_together_and_apart() -> None:
    expanded = torch.tensor([0.3]).expand(8)
    spreads = []
    for seed in range(4):
        with RoundingNoise(seed):
            moved = expanded * 1.5
        spreads.append(float(moved.max() - moved.min()))
    with RoundingNoise(1):
        centred = expanded - expanded.mean()
    assert min(spreads) <= 4e-8 * 8
    assert centred.abs().max() > 0


def test_of_a_loss_with_a_mask_the_loss_is_moved() -> None:
    x, target = torch.tensor([0.3, -1.2, 0.7, 2.1]), torch.tensor([2, 0, -1, -1])
    exact = F.multilabel_margin_loss(x, target)
    moved = []
    for seed in range(4):
        with RoundingNoise(seed):
            moved.append(float(F.multilabel_margin_loss(x, target)))
    assert len({*moved, float(exact)}) > 1
    assert max(abs(value - float(exact)) for value in moved) < 1e-6


@pytest.mark.parametrize(
    ("interpolate", "shape"),
    [
        (
            lambda x: torch.nn.functional.interpolate(x, scale_factor=1.5, mode="bicubic", align_corners=True),
            (1, 1, 8, 8),
        ),
        (lambda x: torch.nn.functional.interpolate(x, scale_factor=3.0, mode="bilinear"), (1, 2, 5, 3)),
        (lambda x: torch.nn.functional.interpolate(x, size=7, mode="linear"), (2, 3, 4)),
        (
            lambda x: torch.nn.functional.grid_sample(x, torch.zeros(1, 2, 2, 2) + 0.1, align_corners=False),
            (1, 1, 6, 6),
        ),
    ],
)
def test_what_is_interpolated_moves_as_coordinates_are_rounded(interpolate: Any, shape: tuple[int, ...]) -> None:
    x = torch.rand(shape, generator=torch.Generator().manual_seed(0)) * 6 - 3
    exact = interpolate(x)
    moves = []
    for seed in range(20):
        with RoundingNoise(seed):
            moves.append((interpolate(x) - exact).abs().max())
    most = float(torch.stack(moves).max())
    eps = torch.finfo(torch.float32).eps
    assert 6 * eps < most < 6 * max(exact.shape) * eps * 4
    with RoundingNoise(0):
        still = interpolate(torch.zeros(shape))
    assert torch.equal(still, torch.zeros_like(still))


@pytest.mark.parametrize("window", [torch.hann_window, torch.bartlett_window, torch.blackman_window])
def test_a_window_moves_by_a_rounding_of_one_also_where_it_is_zero(window: Callable[..., torch.Tensor]) -> None:
    exact = window(5, periodic=False)
    with RoundingNoise(0):
        moved = window(5, periodic=False)
    assert bool((moved != exact).any())
    assert moved[0] != exact[0]
    assert float((moved - exact).abs().max()) <= 2 * torch.finfo(torch.float32).eps


def test_integers_that_are_added_up_as_floats_are_rounded_first() -> None:
    """They are numbers of the dtype asked for, of which another order gives another sum."""
    x = torch.tensor([2**62, 1, -(2**62)])
    runs = [noisy(lambda: x.sum(dtype=torch.float32), seed).item() for seed in range(6)]
    assert max(map(abs, runs)) > 2**30
    assert max(map(abs, runs)) < 2**43
    small = torch.tensor([3, 1, -4])
    assert all(noisy(lambda: small.sum(dtype=torch.float32), seed).item() == 0.0 for seed in range(6))


def test_a_sum_in_a_wider_dtype_moves_by_the_epsilon_of_that() -> None:
    x = torch.tensor([1.0, 0.1, -1.1])
    assert spread(lambda: x.sum(dtype=torch.float64)).item() < 1e-15


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["log_softmax", "logsumexp"])
def test_a_logarithm_of_a_sum_moves_by_a_rounding_of_one_however_small_it_is(name: str, dtype: torch.dtype) -> None:
    """log(1 + 0.004) has the absolute error of 1.004, in eager as in every implementation that adds up before."""
    x = torch.tensor([0.0, -5.5], dtype=dtype)
    eps = torch.finfo(dtype).eps
    moved = spread(lambda: getattr(torch, name)(x, 0)).reshape(-1)[0].item()
    assert eps / 8 < moved < 2 * eps


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_what_is_left_of_a_logarithm_of_a_sum_may_be_nothing(dtype: torch.dtype) -> None:
    """-1 + log2(2): eager keeps a part of a rounding of 1 where it multiplies and adds in one step, others nothing."""
    x = torch.tensor([-1.0, 1.0], dtype=dtype)
    runs = [noisy(lambda: torch.logaddexp2(x, x), seed) for seed in range(16)]
    assert {(run[0] == 0).item() for run in runs} == {True, False}
    assert all(run[0].abs() <= 4 * torch.finfo(dtype).eps for run in runs)
    assert all(run[1].sub(2).abs() <= 8 * torch.finfo(dtype).eps for run in runs)


def test_an_almost_certain_class_is_moved_below_zero_only() -> None:
    x = torch.tensor([0.0, -80.0], dtype=torch.float64)
    assert all(noisy(lambda: torch.log_softmax(x, 0), seed)[0].item() <= 0.0 for seed in range(8))


@pytest.mark.parametrize(
    ("where", "name", "other"),
    [
        ("kernel_facts", "_CHUNK", 16),
        ("noise", "largest_magnitude", lambda tensor: math.inf),
        ("kernel_facts", "_Trial.has_dense_operands", lambda trial: False),
    ],
)
def test_shortcuts_for_large_tensors_give_the_same_noise(
    where: str, name: str, other: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(12, 10, generator=torch.Generator().manual_seed(0))
    x[0, :3], x[1, :3] = 0.0, -0.0

    def program(special: float) -> list[torch.Tensor]:
        y = x.clone()
        y[2, 2] = special
        leaf = y.t().requires_grad_()
        shares = torch.softmax(leaf * 3, 0)
        (shares * torch.log1p(leaf.abs()).cumsum(1) + (leaf - y.t().cumsum(0))).sum().backward()
        assert leaf.grad is not None
        return [shares.detach(), leaf.grad]

    def runs() -> list[torch.Tensor]:
        return [
            bytes_of(found)
            for special in (1.0, math.inf)
            for seed, scale in ((0, 1.0), (1, 1.0), (2, 8.0))
            for found in noisy(lambda special=special: program(special), seed, scale)
        ]

    expected = runs()
    monkeypatch.setattr(f"oracle.reruns.{where}.{name}", other)
    assert [torch.equal(*pair) for pair in zip(expected, runs(), strict=True)] == [True] * 12


def test_noise_of_a_large_tensor_is_as_independent_as_that_of_small_ones() -> None:
    x = 1.0 + torch.rand(1 << 21, generator=torch.Generator().manual_seed(0))

    def in_units(seed: int) -> torch.Tensor:
        found = noisy(lambda: x.sqrt(), seed).double() - x.double().sqrt()
        return found / torch.finfo(torch.float32).eps

    runs = torch.stack([in_units(seed) for seed in range(24)])
    runs -= runs.mean(0)  # of the kernel's own error
    typical = runs.square().mean(1).sqrt()
    assert bool(((typical > 0.5) & (typical < 2.0)).all())
    # A sum over all elements, of the same numbers or of alternating ones, moves as far as one of independent numbers.
    signs = torch.ones(1 << 21, dtype=torch.float64)
    signs[1::2] = -1.0
    for factors in (torch.ones_like(signs), signs, torch.linspace(0, 1, signs.numel(), dtype=torch.float64)):
        sums = runs @ factors
        expected = float(typical.mean() * factors.square().sum().sqrt())
        assert 0.5 * expected < float(sums.square().mean().sqrt()) < 1.6 * expected
    assert abs(float((runs[0] * runs[1]).mean())) < 0.1 * float(typical.mean() ** 2)
    # Parts of the tensor do not repeat each other.
    for apart in (1, 1 << 16, 1 << 20):
        both = (runs[:, :-apart] * runs[:, apart:]).mean() / typical.square().mean()
        assert abs(float(both)) < 0.05


@torch.library.custom_op("torch_oracle_test_noise::writes_unsaid", mutates_args=())
def writes_unsaid(x: torch.Tensor) -> torch.Tensor:
    y = x.sin().sum(0)
    x.mul_(2)
    return y


def test_a_kernel_that_writes_to_an_argument_unsaid_has_no_larger_noise() -> None:
    x = torch.linspace(0, 1, 4000).reshape(1000, 4)
    found = noisy(lambda: writes_unsaid(x.clone()), 0, 1.0)
    torch.testing.assert_close(found, x.sin().sum(0), rtol=1e-3, atol=0)

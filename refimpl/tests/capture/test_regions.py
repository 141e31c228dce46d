"""Tests of regions in another state of torch: autocast and inference mode, whole, open at a break, left by an exception."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from refimpl.backends import aot_eager
from refimpl.capture.breaks import GraphBreak
from refimpl.capture.captured import CaptureOptions
from refimpl.capture.compile import compile, with_options
from refimpl.capture.guards.torch_state import determinism
from refimpl.errors import UnsupportedByRefimpl
from refimpl.pipeline import compile_aot
from refimpl.tests.capture.capturing import IN_EVERY_MODE, assert_same_as_eager, captured_with, each_of, same


def casts(x: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ x
        with torch.autocast("cpu", enabled=False):
            z = x @ x
    return y, z, x @ x, torch.is_autocast_enabled("cpu")


def infers(x: Any) -> Any:
    with torch.inference_mode():
        y = x * 2
        with torch.inference_mode(False):
            z = x * 3
    return y, z.requires_grad, x * 4


def breaks_inside(x: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ x
        torch._dynamo.graph_break()
        z = y @ x
    return z, x @ x


def raises_inside(x: Any) -> Any:
    y = x
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode():
            y = x @ x
            raise KeyError("inside")
    except KeyError:
        return y, x @ x, torch.is_inference_mode_enabled()


def helper(x: Any) -> Any:
    with torch.cpu.amp.autocast():
        return x @ x


def returns_inside(x: Any) -> Any:
    return helper(x), x @ x


AUTOCAST = torch.autocast("cpu", dtype=torch.bfloat16)
INFERENCE = torch.inference_mode()


@AUTOCAST
def decorated(x: Any) -> Any:
    return x @ x


@torch.inference_mode()
def decorated_to_infer(x: Any) -> Any:
    return x * 2, torch.is_inference_mode_enabled()


def calls_what_is_decorated(x: Any) -> Any:
    y = decorated(x)
    return y, decorated_to_infer(x), x @ x


def enters_what_was_made_before(x: Any) -> Any:
    with AUTOCAST as entered:
        with torch.autocast("cpu", enabled=False):
            y = x @ x
        z = x @ x
    with AUTOCAST, INFERENCE:
        w = x @ x
    return y, z, w, entered is AUTOCAST, x @ x


def decorates(x: Any) -> Any:
    cast = torch.autocast("cpu", dtype=torch.bfloat16)(lambda v: v @ v)
    infer = torch.inference_mode()(lambda v: (v * 3, torch.is_inference_mode_enabled()))
    without = torch.no_grad()(lambda v: v * 3)
    return cast(x), infer(x), without(x) + x


def asks_a_region(x: Any) -> Any:
    region = torch.inference_mode(mode=True)
    with region.clone() as nothing:
        y = x * 2
    return y, region.mode, nothing is None, type(region) is torch.inference_mode


@pytest.mark.fractional
@IN_EVERY_MODE
@each_of(
    casts,
    infers,
    breaks_inside,
    raises_inside,
    returns_inside,
    calls_what_is_decorated,
    enters_what_was_made_before,
    decorates,
    asks_a_region,
)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_the_state_is_that_of_the_region(program: Callable[..., Any], mode: str) -> None:
    def observed(function: Callable[..., Any], x: Any) -> Any:
        return function(x), torch.is_autocast_enabled("cpu"), torch.is_inference_mode_enabled()

    is_whole = program is not breaks_inside
    assert_same_as_eager(program, mode, [(torch.randn(3, 3),)] * 2, is_whole=is_whole, graphs=1, observed=observed)


def test_a_region_that_was_changed_is_captured_again() -> None:
    region = torch.autocast("cpu", dtype=torch.bfloat16)

    def program(x: Any) -> Any:
        with region:
            return x @ x

    captured, recorder, _ = captured_with(program)
    for dtype in (torch.bfloat16, torch.float16, torch.bfloat16):
        region.fast_dtype = dtype
        assert captured(torch.ones(2, 2)).dtype is dtype
    assert len(recorder.graphs) == 2


def test_a_region_within_itself_leaves_what_eager_leaves() -> None:
    """The object keeps one state to restore: that of its second begin, in which autocast was on."""
    region = torch.autocast("cpu", dtype=torch.bfloat16)

    def program(x: Any) -> Any:
        with region:
            with region:
                y = x @ x
            return y

    left = []
    for function in (program, captured_with(program)[0]):
        for _ in range(2):
            left.append((function(torch.ones(2, 2)).dtype, torch.is_autocast_enabled("cpu")))
            torch.set_autocast_enabled("cpu", False)
    assert left == [(torch.bfloat16, True)] * 4


def test_a_decorated_function_that_is_returned_casts_as_eager_s() -> None:
    def program(x: Any) -> Any:
        twice = torch.autocast("cpu", dtype=torch.bfloat16)(lambda v: v @ v)
        return twice(x), twice

    captured, recorder, _ = captured_with(program)
    for _ in range(2):
        result, function = captured(torch.ones(2, 2))
        assert result.dtype is function(torch.ones(2, 2)).dtype is torch.bfloat16
        assert not torch.is_autocast_enabled("cpu")
    assert len(recorder.graphs) == 1


def fails_when_run(x: Any, index: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.inference_mode():
        return (x @ x)[index]


def test_an_error_of_the_data_leaves_the_state_as_it_was() -> None:
    x = torch.randn(3, 3)
    before = torch.autocast_increment_nesting()
    torch.autocast_decrement_nesting()
    captured, recorder, _ = captured_with(fails_when_run)
    assert captured(x, torch.tensor([1])).dtype == torch.bfloat16
    with pytest.raises(IndexError):
        captured(x, torch.tensor([7]))
    assert len(recorder.graphs) == 1
    assert not torch.is_autocast_enabled("cpu")
    assert not torch.is_inference_mode_enabled()
    assert torch.autocast_increment_nesting() == before
    torch.autocast_decrement_nesting()


def test_a_trace_that_is_given_up_in_a_region_leaves_no_mode_behind() -> None:
    def program(x: Any) -> Any:
        y = x.expand(1, -1, 1)
        with torch.no_grad():
            y.sum(-1).squeeze_(0)  # geometry that changes in place: traced once more
        return y

    x = torch.ones(1, 1, requires_grad=True)
    result = with_options(program, CaptureOptions(backend=aot_eager))(x)
    assert type(result.grad_fn) is type(program(x).grad_fn)


def made_and_viewed(x: Any) -> Any:
    view, made = x[::2], x * 2
    facts = (x.requires_grad, x.is_leaf, x.is_inference(), view.requires_grad, view.is_leaf, made.requires_grad)
    return facts, made


@pytest.mark.parametrize("kind", ["leaf", "leaf with gradient", "result", "view", "view of a result"])
def test_in_inference_mode_tensors_are_what_they_are_and_views_require_a_gradient_as_they_do(kind: str) -> None:
    def program(x: Any) -> Any:
        with torch.inference_mode():
            return made_and_viewed(x)[0]

    x = torch.ones(3, requires_grad=kind not in ("leaf", "view"))
    x = {"result": x * 1, "view": x.view(3), "view of a result": (x * 1).view(3)}.get(kind, x)
    assert captured_with(program)[0](x) == program(x)
    with torch.inference_mode():
        assert captured_with(program)[0](x) == program(x)
        assert captured_with(made_and_viewed)[0](x)[0] == made_and_viewed(x)[0]


def leaves_inference_mode(x: Any) -> Any:
    with torch.inference_mode(False):
        z = x * 3
        part = z[1:]
    return z, part, z + 1


def test_a_region_without_inference_mode_has_gradients_in_inference_mode_too() -> None:
    def observed(function: Callable[..., Any], x: Any) -> Any:
        with torch.inference_mode():
            results = function(x)
        facts = [(r.tolist(), r.requires_grad, r.is_inference(), r._is_view()) for r in results]
        return facts, torch.autograd.grad(results[1].sum(), x)[0].tolist()

    x = torch.ones(3, requires_grad=True)
    captured = with_options(leaves_inference_mode, CaptureOptions(backend=aot_eager))
    assert observed(captured, x) == observed(leaves_inference_mode, x)
    with torch.inference_mode(), pytest.raises(UnsupportedByRefimpl, match="inference mode"):
        compile_aot(leaves_inference_mode)(x)


def sets_determinism(x: Any) -> Any:
    y, is_on = x + 1, torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=not is_on)
    inside = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(mode=not is_on)
    return y * 2, inside, torch.are_deterministic_algorithms_enabled()


def determinism_around_a_break(x: Any) -> Any:
    torch.use_deterministic_algorithms(not torch.are_deterministic_algorithms_enabled(), warn_only=True)
    torch._dynamo.graph_break()
    return x + torch.are_deterministic_algorithms_enabled()


@pytest.fixture
def determinism_restored() -> Iterator[None]:
    before = determinism()
    yield
    torch.use_deterministic_algorithms(before[0], warn_only=before[1])


@pytest.mark.usefixtures("determinism_restored")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@each_of(sets_determinism, determinism_around_a_break)
def test_determinism_is_what_the_program_sets(program: Callable[..., Any], backend: str) -> None:
    compiled = compile(program, backend=backend, fullgraph=program is sets_determinism)
    seen = []
    for function in (program, compiled):
        torch.use_deterministic_algorithms(False)
        seen.append([(function(torch.ones(2)), determinism()) for _ in range(3)])
    assert same(*seen)


@pytest.mark.usefixtures("determinism_restored")
def test_a_capture_that_fails_leaves_determinism() -> None:
    def program(x: Any) -> Any:
        torch.use_deterministic_algorithms(True)
        return x if x.sum() > 0 else -x

    torch.use_deterministic_algorithms(False, warn_only=True)
    with pytest.raises(GraphBreak):
        compile(program, backend="eager", fullgraph=True)(torch.ones(2))
    assert determinism() == (False, True)


@pytest.mark.usefixtures("determinism_restored")
def test_a_branch_does_not_change_determinism() -> None:
    def branch(x: Any) -> Any:
        torch.use_deterministic_algorithms(True)
        return x + 1

    def program(x: Any) -> Any:
        return torch.cond(x.sum() > 0, branch, torch.neg, (x,))

    torch.use_deterministic_algorithms(False)
    with pytest.raises(GraphBreak, match="the state of torch"):
        compile(program, backend="eager", fullgraph=True)(torch.ones(2))

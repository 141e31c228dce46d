"""A compiled function under what is on around its call: hooks, autocast, gradient modes, threads (AO-15, AO-52, XC-14)."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as module_hooks

import refimpl
from refimpl._torch import active_dispatch_modes
from refimpl.aot.errors import DoubleBackward
from refimpl.aot_entry_points import aot_function
from refimpl.backends import aot_eager
from refimpl.capture.captured import CaptureOptions
from refimpl.capture.compile import with_options
from refimpl.pipeline import compile_aot

Tensor = torch.Tensor
hooks = torch.autograd.graph.saved_tensors_hooks


class Compiler:
    """Runs graphs as they are, and counts them."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, graph_module: torch.fx.GraphModule, examples: Any) -> torch.fx.GraphModule:
        self.calls += 1
        return graph_module


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return aot_function(function, Compiler())


def pointwise(x: Tensor, y: Tensor) -> Tensor:
    return (x.sin() * y).exp()


def leaf(seed: int = 0, *size: int) -> Tensor:
    torch.manual_seed(seed)
    return torch.randn(*(size or (3,)), requires_grad=True)


# ----------------------------------------------------------------------------------------------- hooks on saved tensors


def test_hooks_see_what_a_call_saves_and_no_fake_tensors() -> None:
    """AO-15: hooks are on at every call, the first too; compiling shows them nothing."""
    function = compiled(pointwise)
    for _ in range(2):
        packed: list[type] = []
        x, y = leaf(0), leaf(1)
        with hooks(lambda t, packed=packed: (packed.append(type(t)), t)[1], lambda t: t):
            out = function(x, y)
        assert packed
        assert set(packed) == {Tensor}
        out.sum().backward()


def test_backward_uses_what_unpack_gives() -> None:
    """AO-15: hooks that change what is saved change the gradient, as in eager mode."""
    gradients = []
    for function in (pointwise, compiled(pointwise)):
        x, y = leaf(0), leaf(1)
        with hooks(lambda t: t.half(), lambda t: t.float()):
            out = function(x, y)
        out.sum().backward()
        gradients.append((x.grad, y.grad))
    assert gradients[0][0] is not None
    torch.testing.assert_close(gradients[1], gradients[0], rtol=2e-3, atol=2e-3)
    exact = torch.autograd.grad(pointwise(x, y).sum(), (x, y))
    assert not torch.equal(gradients[1][0], exact[0])


def test_hooks_of_one_call_are_not_those_of_another() -> None:
    function = compiled(lambda x: x.sin())
    x = leaf()
    with hooks(lambda t: t * 0, lambda t: t):
        wrong = function(x)
    right = function(x)
    assert torch.equal(torch.autograd.grad(wrong.sum(), x)[0], torch.ones(3))
    torch.testing.assert_close(torch.autograd.grad(right.sum(), x)[0], x.detach().cos())


def test_hooks_inside_of_the_program_are_part_of_it() -> None:
    def program(x: Tensor) -> Tensor:
        with hooks(lambda t: t.bfloat16(), lambda t: t.float()):
            return x.sin()

    x = leaf()
    gradients = [torch.autograd.grad(function(x).sum(), x)[0] for function in (program, compiled(program))]
    assert torch.equal(gradients[0], gradients[1])
    assert torch.equal(gradients[1], x.detach().bfloat16().float().cos())


def written_after_it_was_saved(x: Tensor) -> Tensor:
    y = x * 2
    z = y.exp() * y
    y.mul_(3)
    return z + 1


@pytest.mark.parametrize("way", [compiled, compile_aot, lambda f: with_options(f, CaptureOptions(backend=aot_eager))])
@pytest.mark.parametrize("program", [written_after_it_was_saved, torch.vander])
def test_what_is_written_to_is_refused_but_under_hooks(program: Callable[..., Any], way: Callable[..., Any]) -> None:
    """Hooks switch off the check, and the gradient is what they make of it, whatever the first call was under."""

    def gradient(function: Callable[..., Any], keep: Callable[[Tensor], Tensor]) -> list[float]:
        x = torch.tensor([2.0, 3.0, 0.5], requires_grad=True)
        with hooks(keep, lambda t: t):
            out = function(x)
        return torch.autograd.grad(out.sum(), x)[0].tolist()

    for is_first_under_hooks in (True, False):
        function = way(lambda x: program(x))
        for is_under_hooks in (is_first_under_hooks, not is_first_under_hooks):
            if is_under_hooks:
                for keep in (torch.clone, lambda t: t, lambda t: t * 2):
                    assert gradient(function, keep) == gradient(program, keep)
            else:
                with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                    function(leaf()).sum().backward()


def test_hooks_that_the_program_opens_around_a_write() -> None:
    def program(x: Tensor) -> Tensor:
        with torch.autograd.graph.save_on_cpu():
            return torch.vander(x)

    x = torch.tensor([2.0, 3.0, 0.5], requires_grad=True)
    functions = (program, with_options(program, CaptureOptions(backend=aot_eager)))
    expected, actual = [torch.autograd.grad(function(x).sum(), x)[0].tolist() for function in functions]
    assert actual == expected


def test_saved_tensors_may_go_elsewhere() -> None:
    x = leaf()
    with torch.autograd.graph.save_on_cpu():
        out = compiled(pointwise)(x, x)
    with torch.autograd.graph.disable_saved_tensors_hooks("not here"):
        other = compiled(pointwise)(x, x)
    gradients = [torch.autograd.grad(o.sum(), x)[0] for o in (out, other, pointwise(x, x))]
    torch.testing.assert_close(gradients[:2], [gradients[2]] * 2)


def test_hooks_on_results_and_leaves_are_called() -> None:
    x = leaf()
    seen: list[Tensor] = []
    out = compiled(pointwise)(x, x)
    out.register_hook(seen.append)
    handle = x.register_hook(lambda g: g * 2)
    out.sum().backward()
    handle.remove()
    assert torch.equal(seen[0], torch.ones(3))
    assert x.grad is not None
    torch.testing.assert_close(x.grad, 2 * torch.autograd.grad(pointwise(x, x).sum(), x)[0])


def test_hooks_of_an_input_that_no_result_depends_on_are_not_called() -> None:
    seen: list[Tensor | None] = []

    def program(x: Tensor, y: Tensor) -> Tensor:
        x.neg()
        return y * 2

    for function in (program, compiled(program)):
        x, y = leaf(0), leaf(1)
        x.register_hook(seen.append)
        hooked = x * 3
        hooked.register_hook(seen.append)
        out = function(hooked, y)
        assert out.requires_grad
        out.sum().backward()
        assert x.grad is None
        assert y.grad is not None
        assert torch.equal(y.grad, torch.full((3,), 2.0))
    assert seen == []


# ------------------------------------------------------------------------------------------------------------- backward


def test_a_graph_that_is_kept_runs_backward_again() -> None:
    """AO-52"""
    x = leaf()
    out = compiled(pointwise)(x, x)
    first = torch.autograd.grad(out.sum(), x, retain_graph=True)
    second = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(first, second)


def test_backward_twice_is_the_error_of_eager_mode() -> None:
    """AO-52"""
    messages = []
    for function in (pointwise, compiled(pointwise)):
        x = leaf()
        out = function(x, x).sum()
        out.backward()
        with pytest.raises(RuntimeError) as caught:
            out.backward()
        messages.append(str(caught.value))
    assert messages[1] == messages[0]


def test_backward_of_backward_is_a_clear_error() -> None:
    """AO-52"""
    x = leaf()
    (gradient,) = torch.autograd.grad(compiled(pointwise)(x, x).sum(), x, create_graph=True)
    with pytest.raises(DoubleBackward, match="does not currently support double"):
        gradient.sum().backward()


def test_a_result_that_is_not_used_counts_as_zeros() -> None:
    """AO-52"""
    x = leaf()
    _, used, _ = compiled(lambda x: (x * 2, x.sin(), x.exp()))(x)
    used.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, x.detach().cos())


def test_gradients_are_only_made_for_what_needs_them() -> None:
    """AO-52"""
    x, y = leaf(0), leaf(1).detach()
    graphs: list[torch.fx.GraphModule] = []
    out = aot_function(pointwise, Compiler(), lambda g, e: graphs.append(g) or g)(x, y)
    out.sum().backward()
    returned = next(n for n in graphs[0].graph.nodes if n.op == "output").args[0]
    assert sum(isinstance(r, torch.fx.Node) for r in returned) == 1
    assert y.grad is None


@pytest.mark.parametrize("write_to", ["result", "argument"])
def test_a_write_after_forward_is_noticed_by_backward(write_to: str) -> None:
    """XC-14"""
    for function in (
        (torch.Tensor.exp, compiled(torch.Tensor.exp)) if write_to == "result" else (torch.sin, compiled(torch.sin))
    ):
        x = leaf() * 1
        out = function(x)
        (out if write_to == "result" else x).mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()


def test_nothing_is_left_behind_by_a_compile_that_fails() -> None:
    """AO-15, XC-11"""

    def program(x: Tensor) -> Tensor:
        torch.rand(3)
        raise KeyError("program")

    def state() -> list[Any]:
        modes = len(active_dispatch_modes()), torch.is_grad_enabled(), torch.is_autocast_cache_enabled()
        return [
            *torch.get_rng_state().tolist(),
            *modes,
            getattr(torch._C, "_autograd")._top_saved_tensors_default_hooks(True),
        ]

    x = leaf()
    with hooks(lambda t: t, lambda t: t):
        before = state()
        with pytest.raises(KeyError):
            compiled(program)(x)
        assert state() == before


def test_compiling_draws_no_random_numbers() -> None:
    """AO-15, XC-15"""
    function = compiled(lambda x: x + 1)
    x = leaf()
    before = torch.get_rng_state()
    function(x)
    assert torch.equal(torch.get_rng_state(), before)


# -------------------------------------------------------------------------------------------------------- gradient modes

MODES = {"grad": torch.enable_grad, "no_grad": torch.no_grad, "inference": torch.inference_mode}


def several_results(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    return (x * 3).sin(), x.view(-1), y.add_(1), x.detach() + 1


@pytest.mark.parametrize("second", MODES)
@pytest.mark.parametrize("first", MODES)
def test_compiled_under_one_mode_called_under_another(first: str, second: str) -> None:
    """XC-14: no gradient is lost, none appears."""
    function = compiled(several_results)
    x = leaf()
    with MODES[first]():
        function(x, torch.ones(3))
    facts: list[Any] = []
    for run in (function, several_results):
        y = torch.ones(3)
        with MODES[second]():
            outs = run(x, y)
        facts.append([(o.requires_grad, o.grad_fn is None, o.is_inference(), o is y) for o in outs])
        facts[-1].append(outs[0].tolist())
        if second == "grad":
            facts[-1].append(torch.autograd.grad(outs[0].sum(), x)[0].tolist())
    assert facts[0] == facts[1]


def test_an_argument_that_needs_a_gradient_later_gets_one() -> None:
    """XC-14"""
    compiler = Compiler()
    function = aot_function(torch.sin, compiler)
    x = leaf()
    assert not function(x.detach()).requires_grad
    function(x).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, x.detach().cos())


def test_a_program_that_switches_gradients_on_itself() -> None:
    """XC-14"""

    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            y = x * 2
        return y, x + 1

    x = leaf()
    with torch.no_grad():
        eager, ours = program(x), compiled(program)(x)
    assert [o.requires_grad for o in ours] == [o.requires_grad for o in eager] == [True, False]
    ours[0].sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 2.0))  # type: ignore[arg-type]


def test_inference_tensors_are_refused_where_eager_refuses_them() -> None:
    with torch.inference_mode():
        x = torch.ones(3)
    w = leaf()
    compiled(torch.add)(x, w).sum().backward()
    for function in (torch.mul, compiled(torch.mul)):
        with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
            function(x, w)


def test_a_compiled_function_inside_of_another_is_part_of_it() -> None:
    inner_compiler, compiler = Compiler(), Compiler()
    inner = aot_function(lambda x: x.sin().sin(), inner_compiler)
    inner(leaf())
    assert inner_compiler.calls == 1
    outer = aot_function(lambda x: inner(x) + 1, compiler)
    x = leaf().detach()
    torch.testing.assert_close(outer(x), x.sin().sin() + 1)
    assert (inner_compiler.calls, compiler.calls) == (1, 1)
    x = leaf()
    (gradient,) = torch.autograd.grad(outer(x).sum(), x)
    torch.testing.assert_close(gradient, torch.autograd.grad(x.sin().sin().sum(), x)[0])


# -------------------------------------------------------------------------------------------------------------- autocast


def matrices(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w).sin() + 1


@pytest.mark.parametrize("order", [(True,), (False,), (True, False), (False, True, False)])
def test_a_call_casts_as_the_autocast_around_it_says(order: tuple[bool, ...]) -> None:
    """XC-14: whatever was on when it was compiled."""
    function = compiled(matrices)
    x, w = leaf(0, 4, 4), leaf(1, 4, 4)
    for is_on in order:
        found = []
        for run in (function, matrices):
            with torch.autocast("cpu", torch.bfloat16) if is_on else contextlib.nullcontext():
                out = run(x, w)
            found.append((out, *torch.autograd.grad(out.sum(), (x, w))))
        assert found[0][0].dtype == found[1][0].dtype == (torch.bfloat16 if is_on else torch.float32)
        torch.testing.assert_close(found[0], found[1])


def test_backward_under_autocast_casts_nothing() -> None:
    x, w = leaf(0, 4, 4), leaf(1, 4, 4)
    with torch.autocast("cpu", torch.bfloat16):
        gradients = torch.autograd.grad(compiled(matrices)(x, w).float().sum(), (x, w))
        expected = torch.autograd.grad(matrices(x, w).float().sum(), (x, w))
    torch.testing.assert_close(gradients, expected)
    assert [g.dtype for g in gradients] == [torch.float32] * 2


def test_autocast_inside_of_the_program_is_part_of_it() -> None:
    def program(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast("cpu", torch.bfloat16):
            y = x @ w
        return y, y.float() @ w

    x, w = leaf(0, 4, 4), leaf(1, 4, 4)
    found = [(*f(x, w), *torch.autograd.grad(f(x, w)[1].sum(), (x, w))) for f in (program, compiled(program))]
    torch.testing.assert_close(found[1], found[0])


# --------------------------------------------------------------------------------------------------------------- threads


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Runs `work` in threads that start together; raises what one of them raised."""
    errors: list[BaseException] = []
    together = threading.Barrier(count)

    def run(index: int) -> None:
        try:
            together.wait(timeout=20)
            work(index)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    if errors:
        raise errors[0]


def test_one_function_called_by_several_threads_is_compiled_once() -> None:
    compiler = Compiler()
    function = aot_function(pointwise, compiler)

    def work(index: int) -> None:
        x = torch.full((3,), index / 8, requires_grad=True)
        for _ in range(3):
            (gradient,) = torch.autograd.grad(function(x, x).sum(), x)
            (expected,) = torch.autograd.grad(pointwise(x, x).sum(), x)
            torch.testing.assert_close(gradient, expected)

    in_threads(6, work)
    assert compiler.calls == 2


def test_several_threads_compile_at_once() -> None:
    def work(index: int) -> None:
        for step in range(2):

            def program(x: Tensor, y: Tensor, number: int = index + step) -> tuple[Tensor, Tensor]:
                x = x * 1
                x.add_(number)
                return x * y, x[0].mul_(2)

            x, y = torch.full((3, 3), 0.5, requires_grad=True), torch.arange(3.0)
            function = compiled(program)
            with torch.no_grad() if index % 2 else contextlib.nullcontext():
                torch.testing.assert_close(function(x, y), program(x, y))
            got, want = (torch.autograd.grad([o.sum() for o in f(x, y)], x) for f in (function, program))
            torch.testing.assert_close(got, want)

    in_threads(4, work)


def test_backward_in_another_thread() -> None:
    x = leaf()
    out = compiled(pointwise)(x, x).sum()
    in_threads(1, lambda index: out.backward())
    assert x.grad is not None
    torch.testing.assert_close(x.grad, torch.autograd.grad(pointwise(x, x).sum(), x)[0])


def test_a_view_whose_history_autograd_does_not_tell() -> None:
    """XC-14: made without gradients, its base then written to with them: it may be returned, and has no history to ask for."""

    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            view = x.view(-1)
        x.mul_(2)
        return view, x

    for function in (program, compiled(program)):
        x = leaf(0, 3, 3) * 1
        view, same = function(x)
        assert same is x
        assert view._base is x
        assert torch.equal(view.detach(), x.detach().view(-1))


def test_an_argument_with_a_history_written_to_where_the_program_switches_gradients_on() -> None:
    """XC-14"""

    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            y = x * 2
            x.add_(1)
            return y, x * 3

    gradients = []
    for function in (program, compiled(program)):
        source = leaf()
        x = source * 1
        with torch.no_grad():
            outs = function(x)
        assert x.grad_fn is not None
        gradients.append(torch.autograd.grad([o.sum() for o in (*outs, x)], source)[0])
    assert torch.equal(gradients[0], gradients[1])


def test_results_need_gradients_as_their_own_arguments_do() -> None:
    """XC-14: by what each result is computed from in this call, with few compiles."""

    def program(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x * 2, y * 3, x * y

    compiler = Compiler()
    function = aot_function(program, compiler)
    for needs in [(True, True), (False, True), (True, False), (False, False), (True, True)]:
        x, y = leaf(0).detach().requires_grad_(needs[0]), leaf(1).detach().requires_grad_(needs[1])
        ours, eager = function(x, y), program(x, y)
        assert [o.requires_grad for o in ours] == [o.requires_grad for o in eager]
        wanted = [t for t in (x, y) if t.requires_grad]
        if wanted:
            got, want = (torch.autograd.grad([o.sum() for o in r if o.requires_grad], wanted) for r in (ours, eager))
            assert all(map(torch.equal, got, want))
    assert compiler.calls == 4  # two graphs, and for each argument alone a backward without what does not arrive


def test_arguments_that_need_gradients_in_turn_are_compiled_for_once_each() -> None:
    compiler = Compiler()
    function = aot_function(lambda x, y: x * y, compiler)
    for needs in [(False, False), (False, True), (True, False)] * 3:
        x, y = leaf(0).detach().requires_grad_(needs[0]), leaf(1).detach().requires_grad_(needs[1])
        assert function(x, y).requires_grad is any(needs)
    assert compiler.calls == 3


def test_a_view_that_backward_needs_beside_one_that_is_written() -> None:
    """XC-14: disjoint views of one base share autograd's count of writes; what was saved of the other is not stale."""

    def program(a: Tensor, c: Tensor) -> Tensor:
        a.mul_(1.5)
        return c * c

    gradients = []
    for function in (program, compiled(program)):
        source = leaf(0, 4)
        whole = source * 1
        gradients.append(torch.autograd.grad(function(whole[:2], whole[2:]).sum(), source)[0])
    assert torch.equal(gradients[0], gradients[1])


def _twice(module: Any, *given: Any) -> Any:
    return given[-1] * 2 if isinstance(module, nn.Linear) else None


def _each_twice(module: Any, *given: Any) -> Any:
    return tuple(None if value is None else value * 2 for value in given[0])


HOOKS_OF_ALL: dict[str, Callable[[], Any]] = {
    "forward_pre": lambda: module_hooks.register_module_forward_pre_hook(_each_twice),
    "forward": lambda: module_hooks.register_module_forward_hook(lambda module, args, result: result * 2),
    "forward of some": lambda: module_hooks.register_module_forward_hook(_twice),
    "forward, always called": lambda: module_hooks.register_module_forward_hook(
        lambda module, args, result: result + 1, always_call=True
    ),
    "backward_pre": lambda: module_hooks.register_module_full_backward_pre_hook(_each_twice),
    "backward": lambda: module_hooks.register_module_full_backward_hook(_each_twice),
}


@pytest.mark.fractional
@pytest.mark.parametrize("way", [compile_aot, functools.partial(refimpl.compile, backend="aot_eager")])
@pytest.mark.parametrize("name", HOOKS_OF_ALL)
def test_hooks_of_all_modules_are_those_of_the_call(name: str, way: Callable[..., Any]) -> None:
    """They run for the modules of the program, not for graphs."""
    refimpl.reset()
    module = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    compiled = way(module)

    def seen(function: Callable[..., Any]) -> Any:
        x = torch.ones(1, 2, requires_grad=True)
        result = function(x)
        return [result.tolist(), [g.tolist() for g in torch.autograd.grad(result.sum(), [x, *module.parameters()])]]

    without = seen(module)
    assert seen(compiled) == without
    handle = HOOKS_OF_ALL[name]()
    try:
        assert seen(compiled) == seen(module) != without
    finally:
        handle.remove()
    assert seen(compiled) == without


@pytest.mark.filterwarnings("ignore:Anomaly Detection", "ignore:Error detected in")
@pytest.mark.parametrize("check_nan", [True, False])
def test_programs_are_compiled_under_the_detection_of_anomalies(check_nan: bool) -> None:
    """The trace looks for no NaN in its tensors, which have no data; the backward of real ones does."""
    compiled = compile_aot(lambda x: (torch.sqrt(x) * 0).sum())
    with torch.autograd.detect_anomaly(check_nan=check_nan):
        x = torch.ones(3, requires_grad=True)
        compiled(x).backward()
        assert torch.equal(x.grad, torch.zeros(3))  # type: ignore[arg-type]
        assert torch.is_anomaly_check_nan_enabled() is check_nan
        zero = torch.zeros(3, requires_grad=True)
        with pytest.raises(RuntimeError, match="returned nan values") if check_nan else contextlib.nullcontext():
            compiled(zero).backward()

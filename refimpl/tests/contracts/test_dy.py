"""Contracts of capture's public surface (rows DY of docs/contracts.md): contexts, modules, caches, hooks, explain."""

from __future__ import annotations

import contextlib
import copy
import gc
import inspect
import pickle
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import fx
from torch._dynamo import eval_frame
from torch.distributions.utils import clamp_probs

import refimpl
from refimpl.capture.config import config
from refimpl.capture.entry_points import contexts
from refimpl.capture.entry_points.contexts import (
    CaptureContext,
    DisableContext,
    GenerationTracker,
    innermost_fn,
)
from refimpl.capture.entry_points.options_table import cached_backends
from refimpl.capture.entry_points.reset import cache_entries, remove_from_cache
from refimpl.capture.public.errors import BackendCompilerFailed
from refimpl.capture.public.running import CAPTURE, running
from refimpl.tests.contracts.contract_backend import Backend, backend, nothing_is_left, plus_one
from refimpl.upstream import small

__all__ = ["backend", "nothing_is_left"]  # fixtures

Tensor = torch.Tensor


# --------------------------------------------------------------------------------------------------- registry and cache


def test_backends_that_were_used_are_reset_together(backend: Backend) -> None:
    """DY-01"""
    refimpl.optimize(backend)(plus_one)
    assert backend in cached_backends.values()
    refimpl.reset()
    assert backend.resets == 1
    assert not cached_backends
    refimpl.reset()
    assert backend.resets == 1, "a backend that was forgotten is not reset again"


def test_what_is_captured_of_a_function_can_be_listed_and_forgotten(backend: Backend) -> None:
    """DY-02, DY-07"""
    compiled = refimpl.optimize(backend)(plus_one)
    compiled(torch.ones(2))
    compiled(torch.ones(2, dtype=torch.int64))
    assert len(cache_entries(plus_one)) == 2
    assert len(cache_entries(plus_one.__code__)) == 2
    remove_from_cache(plus_one)
    assert cache_entries(plus_one) == []
    compiled(torch.ones(2))
    assert backend.n == 3
    with pytest.raises(TypeError, match="has no code"):
        cache_entries(3)


def test_what_has_no_code_forgets_everything(backend: Backend, caplog: pytest.LogCaptureFixture) -> None:
    """DY-07"""
    compiled = refimpl.optimize(backend)(plus_one)
    compiled(torch.ones(2))
    remove_from_cache(3)
    assert "could not determine __code__ for 3" in caplog.text
    compiled(torch.ones(2))
    assert backend.n == 2
    module = torch.nn.ReLU()
    remove_from_cache(module)
    assert len(caplog.records) == 1, "a module has code: that of its forward"


def test_the_same_function_with_another_backend_is_captured_for_that(backend: Backend) -> None:
    """DY-17"""
    other = Backend()
    first, second = refimpl.optimize(backend)(plus_one), refimpl.optimize(other)(plus_one)
    for _ in range(2):
        first(torch.ones(2))
        second(torch.ones(2))
    assert (backend.n, other.n) == (1, 1)
    again = refimpl.optimize(backend)(plus_one)
    again(torch.ones(2))
    assert backend.n == 1, "what was captured the same way is shared"


def test_functions_of_one_code_share_what_is_captured_and_so_do_modules_of_one_class(backend: Backend) -> None:
    """DY-08, DY-17, XC-12"""

    def made(held: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda x: x + held

    for number in (1.0, 2.0, 3.0):
        compiled = refimpl.optimize(backend)(made(torch.tensor(number)))
        assert compiled(torch.zeros(1)).item() == number
    assert backend.n == 1
    for _ in range(2):
        module = refimpl.optimize(backend)(Scaled())
        assert module(torch.ones(2)).tolist() == [3, 3]
        refimpl.optimize(backend)(torch.nn.ReLU())(torch.ones(2))
    assert backend.n == 3
    wrappers = [refimpl.optimize(backend)(layer) for layer in (torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))]
    assert not torch.equal(*(wrapper(torch.ones(1, 2)) for wrapper in wrappers)), "each with its own parameters"
    assert backend.n == 4


def test_compiling_again_finds_what_was_captured(backend: Backend) -> None:
    """DY-17, XC-12"""
    for _ in range(3):
        assert refimpl.compile(plus_one, backend=backend)(torch.ones(2)).tolist() == [2, 2]
        gc.collect()
    assert backend.n == 1
    refimpl.reset()
    refimpl.compile(plus_one, backend=backend)(torch.ones(2))
    assert backend.n == 2


def test_what_is_captured_with_backends_made_anew_does_not_pile_up() -> None:
    """XC-12"""
    made = [Backend() for _ in range(20)]
    for each in made:
        refimpl.compile(plus_one, backend=each)(torch.ones(2))
    gc.collect()
    assert len(cache_entries(plus_one)) <= 8
    module = torch.nn.Linear(2, 2)
    alive = weakref.ref(module)
    refimpl.compile(module, backend="eager")(torch.ones(1, 2))
    refimpl.compile(module.forward, backend="eager")(torch.ones(1, 2))

    def closed_over(module: torch.nn.Module) -> Callable[[Tensor], Tensor]:
        return lambda x: module(x)

    refimpl.compile(closed_over(module), backend="eager")(torch.ones(1, 2))
    del module
    gc.collect()
    assert alive() is None


def test_a_function_that_is_made_again_and_again_is_not_held(backend: Backend) -> None:
    """XC-12"""
    alive: list[weakref.ref[Any]] = []

    def program(x: Tensor) -> Tensor:
        for _ in range(3):

            def inner(y: Tensor) -> Tensor:
                refimpl.graph_break()
                return y + 1

            alive.append(weakref.ref(inner))
            x = inner(x)
        return x

    assert refimpl.optimize(backend)(program)(torch.zeros(1)).item() == 3
    gc.collect()
    assert [each() for each in alive] == [None, None, None]


# -------------------------------------------------------------------------------------------------------------- modules


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((2,), 3.0))
        self.notes = "as it was"

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight


def test_hooks_of_the_original_run_in_the_captured_call(backend: Backend) -> None:
    """DY-03"""
    module = Scaled()
    module.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    compiled = refimpl.optimize(backend)(module)
    assert torch.equal(compiled(torch.ones(2)), module(torch.ones(2)))
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 6.0))
    assert backend.n == 1
    built_in = refimpl.optimize(backend)(torch.nn.Linear(2, 2))
    built_in(torch.ones(1, 2))
    assert backend.n == 2, "a module of torch is captured too"


def test_a_disabled_wrapper_runs_hooks_and_captures_nothing(backend: Backend) -> None:
    """DY-03"""
    module = Scaled()
    module.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    wrapper: Any = DisableContext()(module)
    assert isinstance(wrapper, refimpl.OptimizedModule)
    assert wrapper(torch.ones(2)).tolist() == [6, 6]
    calling: Any = refimpl.optimize(backend)(lambda x: wrapper(x + 0) * 2)
    assert calling(torch.ones(2)).tolist() == [12, 12]
    assert not any(
        "Scaled" in str(node.meta.get("nn_module_stack")) for graph in backend.graphs for node in graph.graph.nodes
    )
    assert [name for names in backend.targets() for name in names] == ["add", "mul"]


def test_a_module_that_fsdp_has_marked_is_captured_like_others(backend: Backend) -> None:
    """DY-03"""

    class Marked(torch.nn.Linear):
        _is_fsdp_managed_module = True
        _fsdp_use_orig_params = True

    module = Marked(2, 2)
    module.register_forward_hook(lambda module, args, result: result.mul(2))
    compiled = refimpl.optimize(backend)(module)
    x = torch.ones(1, 2)
    assert torch.equal(compiled(x), module(x))
    with torch.no_grad():
        module.weight.zero_()
    assert torch.equal(compiled(x), module(x))
    assert backend.targets() == [["linear", "mul"]]


def test_attributes_are_those_of_the_original(backend: Backend) -> None:
    """DY-04"""
    module = Scaled()
    compiled = refimpl.optimize(backend)(module)
    compiled.foo = 3
    assert module.foo == 3
    assert compiled.weight is module.weight
    assert compiled.notes == "as it was"
    assert list(compiled.state_dict()) == ["_orig_mod.weight"]
    assert set(dir(module)) <= set(dir(compiled))
    assert "_orig_mod" in compiled._modules
    del compiled.foo
    assert not hasattr(module, "foo")
    compiled.eval()
    assert not module.training
    assert not compiled.training
    with pytest.raises(AttributeError, match="nothing_of_that_name"):
        _ = compiled.nothing_of_that_name
    with pytest.raises(TypeError, match="Scaled"):
        len(compiled)
    assert len(refimpl.optimize(backend)(torch.nn.Sequential(module, module))) == 2
    assert bool(compiled)


def test_new_parameters_of_the_wrapper_are_the_original_s(backend: Backend) -> None:
    """DY-04"""
    module = Scaled()
    compiled = refimpl.optimize(backend)(module)
    compiled(torch.ones(2))
    compiled.weight = torch.nn.Parameter(torch.full((2,), 5.0))
    assert module.weight[0] == 5
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 5.0))
    before = compiled.forward
    compiled.forward = lambda x: x - 1
    assert compiled(torch.ones(2)).tolist() == [0, 0], "forward is the wrapper's own"
    compiled.forward = before
    assert module(torch.ones(2)).tolist() == [5, 5]


def test_wrapped_modules_and_contexts_pickle_and_copy() -> None:
    """DY-05"""
    module = Scaled()
    compiled = refimpl.compile(module, backend="eager")
    compiled(torch.ones(2))
    for copied in (pickle.loads(pickle.dumps(compiled)), copy.deepcopy(compiled)):
        assert type(copied) is refimpl.OptimizedModule
        assert copied.weight is not module.weight
        assert torch.equal(copied(torch.ones(2)), module(torch.ones(2)))
        assert "forward" not in copied.__getstate__()
    for context in (refimpl.optimize("eager", dynamic=True), refimpl.run(), DisableContext()):
        again = pickle.loads(pickle.dumps(context))
        assert type(again) is type(context)
        assert again.dynamic == context.dynamic
        assert torch.equal(again(plus_one)(torch.ones(2)), torch.full((2,), 2.0))


def test_a_lazy_module_has_its_parameters_before_it_is_captured(backend: Backend) -> None:
    """DY-06"""
    module = torch.nn.LazyLinear(3)
    compiled = refimpl.optimize(backend)(module)
    assert compiled(torch.ones(2, 5)).shape == (2, 3)
    assert not hasattr(module, "_initialize_hook")
    assert type(module) is torch.nn.Linear
    assert compiled(torch.ones(2, 5)).shape == (2, 3)
    assert backend.n == 1
    within = torch.nn.Sequential(torch.nn.LazyLinear(3), torch.nn.ReLU(), torch.nn.LazyLinear(4))
    compiled = refimpl.optimize(backend)(within)
    first = compiled(torch.ones(2, 5))
    assert torch.equal(compiled(torch.ones(2, 5)), first)
    assert backend.n == 2, "the second call is captured"


# ------------------------------------------------------------------------------------------------------------- contexts


def test_the_innermost_function_is_the_user_s(backend: Backend) -> None:
    """DY-08"""
    assert innermost_fn(plus_one) is plus_one
    wrapped = refimpl.optimize(backend)(plus_one)
    assert innermost_fn(wrapped) is plus_one
    assert innermost_fn(refimpl.disable(wrapped)) is plus_one
    assert innermost_fn(refimpl.run(refimpl.disable(wrapped))) is plus_one

    class Wrong:
        _torchdynamo_orig_callable = 3

    with pytest.raises(AssertionError, match="a callable"):
        innermost_fn(Wrong())


def compiles(dynamic: bool | None, sizes: tuple[int, ...]) -> int:
    """How often a function is captured for these sizes."""
    backend = Backend()
    compiled = refimpl.optimize(backend, dynamic=dynamic)(plus_one)
    for size in sizes:
        assert compiled(torch.ones(size)).shape == (size,)
    return backend.n


def test_sizes_are_symbols_from_the_start_or_never_or_once_they_vary() -> None:
    """DY-09"""
    assert compiles(True, (3, 5)) == 1
    assert compiles(False, (3, 4, 5)) == 3
    assert compiles(None, (3, 4, 5, 6)) == 2
    with pytest.raises(AssertionError, match="True, False or None"):
        refimpl.optimize("eager", dynamic=3)


def test_a_context_takes_a_backend_or_false_or_none() -> None:
    """DY-10"""
    with pytest.raises(AssertionError, match="callback=3"):
        CaptureContext(3)
    calls: list[str] = []
    context = CaptureContext(None, patch_fn=lambda: calls.append("patched"))
    assert calls == ["patched"], "in the constructor"
    assert (context.first_ctx, context.export, context.dynamic) == (False, False, None)
    parameters = inspect.signature(CaptureContext).parameters
    expected = [
        "callback",
        "on_enter",
        "backend_ctx_ctor",
        "patch_fn",
        "first_ctx",
        "export",
        "dynamic",
        "compiler_config",
    ]
    assert list(parameters) == expected
    assert all(parameters[name].kind is inspect.Parameter.KEYWORD_ONLY for name in expected[5:])


def test_a_context_enters_dynamic_on_enter_and_the_backend_s_context_in_this_order() -> None:
    """DY-10"""
    seen: list[str] = []

    def on_enter() -> Callable[[], None]:
        seen.append(f"on_enter, static={config.assume_static_by_default}")
        return lambda: seen.append("on_enter left")

    @contextlib.contextmanager
    def around() -> Iterator[None]:
        seen.append("backend entered")
        yield
        seen.append("backend left")

    context = CaptureContext(None, on_enter, around, dynamic=True)
    assert len(context.enter_exit_hooks) == 3
    with config.patch(raise_on_ctx_manager_usage=False), context:
        seen.append("block")
    expected = ["on_enter, static=False", "backend entered", "block", "on_enter left", "backend left"]
    assert seen == expected
    assert config.assume_static_by_default, "each hook gives what takes it back"
    cleanups = [hook() for hook in context.enter_exit_hooks]
    assert not config.assume_static_by_default
    cleanups[0]()
    assert config.assume_static_by_default
    for cleanup in cleanups[1:]:
        cleanup()
    assert not CaptureContext(None).enter_exit_hooks


def test_a_failing_hook_leaves_those_before_it() -> None:
    """DY-10"""

    def failing() -> None:
        raise ValueError

    context = CaptureContext(None, failing, dynamic=True)
    with config.patch(raise_on_ctx_manager_usage=False), pytest.raises(ValueError), context:
        pass
    assert config.assume_static_by_default


def test_the_backend_s_context_is_entered_before_the_call_and_left_after_it() -> None:
    """DY-10, DY-21"""
    seen: list[str] = []

    @contextlib.contextmanager
    def around() -> Iterator[None]:
        seen.append("enter")
        yield
        seen.append("leave")

    class WithContext(Backend):
        backend_ctx_ctor = staticmethod(around)

        def get_compiler_config(self) -> str:
            return "as configured"

        def __call__(self, graph: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
            def run(*args: Any) -> Any:
                seen.append("call")
                return graph.forward(*args)

            return run

    compiled = refimpl.optimize(WithContext())(plus_one)
    assert compiled.get_compiler_config() == "as configured"
    compiled(torch.ones(2))
    assert seen == ["enter", "call", "leave"]


def test_sentinels_and_functions_that_do_nothing() -> None:
    """DY-43"""
    for ours, theirs in ((contexts, eval_frame), (small, eval_frame)):
        for name in ("Unset", "unset", "nothing") if ours is contexts else ("always_false", "null_context"):
            mine, upstream = getattr(ours, name), getattr(theirs, name)
            assert str(mine) == str(upstream) or callable(mine) is callable(upstream)
    assert contexts.unset is contexts.Unset.token
    assert [member.name for member in contexts.Unset] == [member.name for member in eval_frame.Unset]
    assert contexts.nothing() is eval_frame.nothing() is None
    assert small.always_false() is eval_frame.always_false() is False
    with small.null_context(3) as entered:
        assert entered == 3
    context = CaptureContext(None)
    assert context._stack is contexts.unset, "None would be a value of its own"
    with config.patch(raise_on_ctx_manager_usage=False):
        with context:
            assert context._stack is not contexts.unset
        assert context._stack is contexts.unset


def test_a_with_block_is_refused_unless_a_setting_allows_it() -> None:
    """DY-11, DY-43"""
    context = refimpl.optimize("eager")
    with pytest.raises(RuntimeError, match=r"torch._dynamo.optimize\(...\) is used with a context manager"), context:
        pass
    with pytest.raises(AssertionError, match="was not entered"):
        context.__exit__(None, None, None)
    order: list[str] = []

    def enter() -> Callable[[], None]:
        order.append("enter")
        return lambda: order.append("clean up")

    with config.patch(raise_on_ctx_manager_usage=False):
        with CaptureContext(None, on_enter=enter):
            order.append("inside")
        with refimpl.run():
            assert running.mode != CAPTURE
        with pytest.raises(KeyError), DisableContext():
            raise KeyError
    assert order == ["enter", "inside", "clean up"]


def test_a_decorator_wraps_functions_modules_classes_and_callable_objects(backend: Backend) -> None:
    """DY-12, DY-13"""
    compiled = refimpl.optimize(backend)(plus_one)
    assert compiled._torchdynamo_orig_callable is plus_one
    assert compiled._torchdynamo_inline is plus_one
    assert compiled.__name__ == "plus_one"
    assert isinstance(refimpl.optimize(backend)(Scaled()), refimpl.OptimizedModule)

    @refimpl.optimize(backend)
    class Callable_:
        def __call__(self, x: Tensor) -> Tensor:
            return x + 2

    assert Callable_()(torch.ones(2)).tolist() == [3, 3]
    assert backend.n == 1

    class Plain:
        def __call__(self, x: Tensor) -> Tensor:
            return x * 3

    assert refimpl.optimize(backend)(Plain())(torch.ones(2)).tolist() == [3, 3]
    graph = fx.symbolic_trace(plus_one)
    assert refimpl.optimize(backend)(graph.forward)(torch.ones(2)).tolist() == [2, 2]
    assert refimpl.optimize(backend)(torch.sin)(torch.zeros(1)).tolist() == [0]
    assert backend.n == 4, "an object, code that was generated, and a function of C"
    with pytest.raises(AssertionError, match="a function"):
        refimpl.optimize(backend)(3)


def test_functions_of_skipped_files_and_of_generated_code_are_captured_when_decorated(backend: Backend) -> None:
    """DY-13"""
    of_torch = clamp_probs
    assert torch.equal(refimpl.optimize_assert(backend)(of_torch)(torch.ones(2)), of_torch(torch.ones(2)))
    assert backend.targets()[-1] == ["clamp"], "torch's own code is not captured when it runs at a graph break"
    graph = fx.symbolic_trace(plus_one)
    generated = refimpl.optimize_assert(backend)(graph.forward)
    assert generated(torch.ones(2)).tolist() == [2, 2]
    assert generated._torchdynamo_inline == graph.forward, "nothing is wrapped around it"
    assert refimpl.optimize_assert(backend)(graph)(torch.ones(2)).tolist() == [2, 2]

    class WithoutCode:
        def __call__(self, x: Tensor) -> Tensor:
            return x * 3

    called = WithoutCode()
    assert not hasattr(called, "__code__")
    assert refimpl.optimize_assert(backend)(called)(torch.ones(2)).tolist() == [3, 3]


def test_after_an_error_nothing_else_is_captured(backend: Backend) -> None:
    """DY-12, DY-45"""

    @refimpl.optimize(backend)
    def fails(x: Tensor) -> Tensor:
        raise KeyError(x.shape)

    with pytest.raises(KeyError):
        fails(torch.ones(2))
    before = backend.n
    plus_one(torch.ones(2))
    assert backend.n == before

    @refimpl.disable
    def fails_too() -> None:
        raise KeyError

    with pytest.raises(KeyError):
        fails_too()
    assert running.mode == CAPTURE


def test_tracing_a_captured_function_by_fx_is_refused(backend: Backend) -> None:
    """DY-12"""
    compiled = refimpl.optimize(backend)(plus_one)
    with pytest.raises(RuntimeError, match="using FX to symbolically trace a dynamo-optimized function"):
        fx.symbolic_trace(compiled)
    with config.patch(error_on_nested_fx_trace=False):
        graph = fx.symbolic_trace(compiled)
    assert torch.equal(graph(torch.ones(2)), torch.full((2,), 2.0))
    assert backend.n == 0


def test_run_uses_what_is_captured_and_captures_nothing(backend: Backend) -> None:
    """DY-15"""
    compiled = refimpl.optimize(backend)(plus_one)
    compiled(torch.ones(2))
    for only in (refimpl.run(compiled), refimpl.run(plus_one)):
        assert only(torch.ones(2)).tolist() == [2, 2]
        assert only(torch.ones(2, dtype=torch.int64)).tolist() == [2, 2]
    assert backend.n == 1
    compiled(torch.ones(2, dtype=torch.int64))
    assert backend.n == 2
    outer = refimpl.optimize_assert(backend)(lambda x: refimpl_run(x) * 2)
    refimpl_run = refimpl.run(lambda x: x + 1)
    assert outer(torch.ones(2)).tolist() == [4, 4]
    assert backend.targets()[-1] == ["add", "mul"], "in a captured function it is one with that"


def test_each_entry_of_a_run_only_context_begins_a_generation(backend: Backend) -> None:
    """DY-15"""
    compiled = refimpl.optimize(backend)(plus_one)
    compiled(torch.ones(2))
    only, before = refimpl.run(compiled), GenerationTracker.generation
    compiled(torch.ones(2))
    assert GenerationTracker.generation == before, "a call that may capture begins none"
    only(torch.ones(2))
    assert only(torch.ones(2, dtype=torch.int64)).tolist() == [2, 2]
    assert GenerationTracker.generation == before + 2
    with config.patch(raise_on_ctx_manager_usage=False), refimpl.run():
        compiled(torch.ones(2, dtype=torch.int64))
    assert GenerationTracker.generation == before + 3
    assert refimpl.run().callback is False
    assert backend.n == 1


def test_what_is_disabled_is_in_no_graph(backend: Backend) -> None:
    """DY-16"""

    @refimpl.disable
    def hidden(x: Tensor) -> Tensor:
        return x.sin()

    def program(x: Tensor) -> Tensor:
        return hidden(x + 1) * 2

    result = refimpl.optimize(backend)(program)(torch.ones(2))
    assert torch.equal(result, torch.full((2,), 2.0).sin() * 2)
    assert backend.targets() == [["add"], ["mul"]]
    assert hidden._torchdynamo_disable


def test_nothing_is_captured_in_a_disabled_call(backend: Backend) -> None:
    """DY-16"""
    compiled = refimpl.optimize(backend)(plus_one)
    assert refimpl.disable(lambda x: compiled(x))(torch.ones(2)).tolist() == [2, 2]
    assert backend.n == 0
    module = refimpl.disable(Scaled())
    assert isinstance(module, refimpl.OptimizedModule)
    assert module(torch.ones(2)).tolist() == [3, 3]

    @refimpl.disable
    class Made:
        def __init__(self) -> None:
            self.seen = compiled(torch.ones(2))

        def __call__(self, x: Tensor) -> Tensor:
            return compiled(x)

    assert Made()(torch.ones(2)).tolist() == [2, 2]
    assert backend.n == 0
    compiled(torch.ones(2))
    assert backend.n == 1


def test_a_function_disabled_alone_is_left_out_and_not_wrapped(backend: Backend) -> None:
    """DY-16"""

    def alone(x: Tensor) -> Tensor:
        return x.sin()

    def between(x: Tensor) -> Tensor:
        return alone(x.cos()) * called(x)

    def called(x: Tensor) -> Tensor:
        return x.tan()

    assert refimpl.disable(alone, recursive=False) is alone
    assert refimpl.disable(between, recursive=False) is between
    x = torch.ones(2)
    assert torch.equal(refimpl.optimize(backend)(lambda x: between(x) + 1)(x), between(x) + 1)
    assert backend.targets() == [["tan"], ["add"]]


def test_a_backend_that_computes_something_else_is_found_where_it_is_asked_for(backend: Backend) -> None:
    """DY-23"""

    def wrong(graph: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        return lambda *args: tuple(result * 2 for result in graph.forward(*args))

    assert refimpl.compile(plus_one, backend=wrong)(torch.ones(2)).tolist() == [4, 4]
    with config.patch(verify_correctness=True):
        assert refimpl.compile(plus_one, backend=backend)(torch.ones(2)).tolist() == [2, 2]
        with pytest.raises(BackendCompilerFailed, match="incorrect results"):
            refimpl.compile(plus_one, backend=wrong, fullgraph=True)(torch.ones(2))

"""Contracts of capture's helpers (rows UT of docs/contracts.md) that need no capture."""

from __future__ import annotations

import collections
import enum
import functools
import json
import sys
import types
import typing
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch._dynamo import utils as upstream
from torch._dynamo.utils import clone_input as torch_clone_input

from refimpl._torch import FakeTensorMode
from refimpl.capture.config import config
from refimpl.capture.public.cloning import (
    checkpoint_params,
    clone_input,
    clone_inputs,
    clone_tensor,
    defake,
    preserve_rng_state,
)
from refimpl.symbolic.fake_inputs import fake_input, symbolic_fake_mode
from refimpl.symbolic.shape_env import ShapeEnv
from refimpl.upstream import predicates, small
from refimpl.upstream.measuring import is_on_cuda, timed, torchscript

Tensor = torch.Tensor

# --------------------------------------------------------------------------------------------------------------- tables


def test_legacy_tensor_types_and_their_dtypes() -> None:
    """UT-06"""
    assert predicates.tensortype_to_dtype == upstream.tensortype_to_dtype


def test_a_warning_is_given_once_and_the_oldest_is_forgotten() -> None:
    """UT-07"""
    checker = small.DuplicateWarningChecker(maxsize=2)
    assert checker.add(1)
    assert not checker.add(1)
    with config.patch(verbose=True):
        assert checker.add(1)
    assert checker.add(2)
    assert not checker.add(1), "asked for last, so 2 is the oldest"
    assert checker.add(3)
    assert checker.add(2)
    checker.reset()
    assert checker.add(3)


# ------------------------------------------------------------------------------------------------------------ predicates


Point = collections.namedtuple("Point", ["x", "y"])


class Derived(Point):
    __slots__ = ()


def test_exact_types() -> None:
    """UT-12"""
    assert predicates.istype(1, int)
    assert not predicates.istype(True, int)
    assert predicates.istype(True, (int, bool))
    assert predicates.istype(1, [int])
    assert not predicates.istype(Derived(1, 2), Point)


@pytest.mark.parametrize("value", [typing.Any, typing.Optional[int], typing.Generic, typing.TypeVar("T")])  # noqa: UP045
def test_things_for_annotations(value: Any) -> None:
    """UT-12"""
    assert predicates.is_typing(value) == upstream.is_typing(value)
    assert not predicates.is_typing(int)


def test_what_may_be_a_key() -> None:
    """UT-12"""
    assert predicates.hashable((1, "a"))
    assert not predicates.hashable([])
    assert not predicates.hashable(memoryview(bytearray(b"x")))


def test_named_tuples_and_their_fields() -> None:
    """UT-12"""
    largest = torch.ones(2, 2).max(0)
    assert predicates.is_namedtuple(Point(1, 2))
    assert predicates.is_namedtuple(largest)
    assert not predicates.is_namedtuple((1, 2))
    assert not predicates.is_namedtuple_cls(int)
    assert predicates.namedtuple_fields(Point) == ["x", "y"]
    assert predicates.namedtuple_fields(type(largest)) == ["values", "indices"]
    assert predicates.namedtuple_fields(slice) == ["start", "stop", "step"]
    with pytest.raises(AttributeError):
        predicates.namedtuple_fields(int)


def test_where_an_object_is_written() -> None:
    """UT-12"""
    assert predicates.getfile(test_exact_types) == __file__
    assert predicates.getfile(3) is None
    assert predicates.fqn(Derived) == f"{__name__}.Derived"


@functools.lru_cache
def cached() -> None:
    """A function that remembers what it gave."""


def plain() -> None:
    """Nothing."""


@pytest.mark.parametrize(
    "value", [len, plain, [].append, "".__len__, str.join, int.__add__, torch.sin, torch.ops.aten.sin, 3, Point, cached]
)
def test_functions_are_told_from_others_as_upstream_does(value: Any) -> None:
    """UT-13"""
    assert predicates.is_function(value) == bool(upstream.is_function(value))
    assert predicates.is_function_or_wrapper(value) == bool(upstream.is_function_or_wrapper(value))
    assert predicates.is_lru_cache_wrapped_function(value) == bool(upstream.is_lru_cache_wrapped_function(value))


def test_wrappers_stand_for_what_they_wrap() -> None:
    """UT-13"""
    assert predicates.unwrap_if_wrapper(cached) is cached.__wrapped__
    assert predicates.unwrap_with_attr_name_if_wrapper(cached) == (cached.__wrapped__, "__wrapped__")

    def wrapper() -> None:
        pass

    setattr(wrapper, "_torchdynamo_inline", plain)
    assert predicates.unwrap_with_attr_name_if_wrapper(wrapper) == (plain, "_torchdynamo_inline")
    assert predicates.unwrap_with_attr_name_if_wrapper(plain) == (plain, None)


def test_tensors_lazy_modules_and_numpy() -> None:
    """UT-13"""

    class Subclass(torch.Tensor):
        pass

    value = torch.ones(2).as_subclass(Subclass)
    assert predicates.istensor(torch.ones(2))
    assert predicates.istensor(torch.nn.Parameter(torch.ones(2)))
    with FakeTensorMode() as mode:
        assert predicates.istensor(mode.from_tensor(torch.ones(2)))
    assert not predicates.istensor(value)
    with config.patch(traceable_tensor_subclasses={Subclass}):
        assert predicates.istensor(value)
    assert predicates.is_lazy_module(torch.nn.LazyLinear(2))
    assert not predicates.is_lazy_module(torch.nn.Linear(2, 2))
    assert predicates.is_jit_model(torch.jit.script(torch.nn.Linear(2, 2)))
    assert not predicates.is_jit_model(torch.nn.Linear(2, 2))
    assert predicates.is_numpy_int_type(np.int8(1))
    assert not predicates.is_numpy_int_type(1)
    assert predicates.is_numpy_float_type(np.float16(1))
    assert predicates.is_numpy_ndarray(np.ones(2))


class Colour(enum.Enum):
    RED = 1


@pytest.mark.parametrize(
    ("value", "is_safe"),
    [
        ((1, frozenset([2])), True),
        (slice(1), True),
        (Colour.RED, True),
        (int, True),
        (torch.float32, True),
        (torch.device("cpu"), True),
        (torch.channels_last, True),
        (plain.__code__, True),
        (..., True),
        ([1], False),
        ((1, [2]), False),
        (torch.Size([1]), False),
        (plain, False),
    ],
)
def test_what_is_a_constant(value: Any, is_safe: bool) -> None:
    """UT-23"""
    assert predicates.is_safe_constant(value) is is_safe


def test_constant_types_are_upstream_s() -> None:
    """UT-23"""
    of_libraries = {
        kind for kind in upstream.common_constant_types if not kind.__module__.startswith(("torch", "builtins"))
    }
    missing = upstream.common_constant_types - predicates.common_constant_types - of_libraries
    assert not {kind for kind in missing if kind.__module__ == "builtins"}
    assert {int, str, torch.dtype, torch.device, type(None), types.CodeType} <= predicates.common_constant_types


def test_all_modules_of_a_package_and_what_is_static_by_default() -> None:
    """UT-43"""
    small.import_submodule(json)
    assert "json.tool" in sys.modules
    assert small.ifdynstaticdefault(1, 2) == 1
    with config.patch(assume_static_by_default=False):
        assert small.ifdynstaticdefault(1, 2) == 2


def test_code_that_finds_attributes() -> None:
    """UT-43"""

    class Searching:
        def __getattribute__(self, name: str) -> Any:
            return object.__getattribute__(self, name)

        def __getattr__(self, name: str) -> str:
            return name

    assert predicates.object_has_getattribute(Searching())
    assert not predicates.object_has_getattribute(3)
    assert predicates.get_custom_getattr(Searching()) is Searching.__getattr__
    assert predicates.get_custom_getattr(3) is None
    module = torch.nn.Linear(1, 1)
    assert predicates.get_custom_getattr(module) is torch.nn.Module.__getattr__
    assert predicates.get_custom_getattr(module, ignore_nn_module_getattr=True) is None


# ----------------------------------------------------------------------------------------------------------- small ones


def test_small_constructors() -> None:
    """UT-14"""
    assert small.make_cell(5).cell_contents == 5
    assert small.rot_n_helper(3)(1, 2, 3) == upstream.rot_n_helper(3)(1, 2, 3) == (2, 1, 3)
    with pytest.raises(AssertionError, match="two or more"):
        small.rot_n_helper(1)
    with pytest.raises(TypeError, match="expected: 2"):
        small.rot_n_helper(2)(1)
    assert small.product([2, 3, 4]) == 24
    assert small.product([]) == 1
    items = iter((1, 2, 3))
    next(items)
    assert isinstance(items, small.tuple_iterator)
    assert small.tuple_iterator_len(items) == 2
    assert small.tuple_iterator_getitem(items, 1) == 3
    assert next(items) == 2, "nothing was taken"
    assert small.dict_keys_getitem({"a": 1, "b": 2}, 1) == "b"
    assert small.identity(items) is items
    assert isinstance({}.values(), small.dict_values)
    assert isinstance(collections.OrderedDict().values(), small.odict_values)


def test_objects_without_their_constructor() -> None:
    """UT-14"""

    class Module(torch.nn.Module):
        def __init__(self) -> None:
            raise AssertionError("its constructor")

    class Tagged(torch.Tensor):
        pass

    class Opaque:
        def __init__(self) -> None:
            raise AssertionError("its constructor")

    assert list(small.object_new(Module).parameters()) == []
    assert type(small.object_new(Opaque)) is Opaque
    assert type(small.to_subclass(torch.ones(2), Tagged)) is Tagged


def test_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    """UT-14"""
    for _ in range(2):
        small.print_once("only", "once")
    assert capsys.readouterr().out == "only once\n"


def test_text_helpers() -> None:
    """UT-56"""
    assert repr([small.Lit("x + 1")]) == "[x + 1]"
    assert type(repr(small.Lit("x"))) is str
    assert small.strip_color_from_string("\x1b[31mred\x1b[0m") == "red"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            small.warn_once("the text of this warning is seen once")
    assert [str(warning.message) for warning in caught] == ["the text of this warning is seen once"]
    assert caught[0].filename == __file__


# -------------------------------------------------------------------------------------------------------------- cloning


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.arange(12.0).view(3, 4),
        lambda: torch.arange(12.0).view(3, 4).t(),
        lambda: torch.arange(30.0)[3::3],
        lambda: torch.arange(12, dtype=torch.int8)[5:],
        lambda: torch.ones(0, 3),
        lambda: torch.tensor(3.0),
        lambda: torch.ones(2, dtype=torch.complex64),
    ],
)
def test_a_copy_of_an_input_lies_in_memory_like_it(make: Callable[[], Tensor]) -> None:
    """UT-17"""
    x = make()
    copy = clone_input(x)
    assert torch.equal(copy, x)
    assert (copy.size(), copy.stride(), copy.dtype) == (x.size(), x.stride(), x.dtype)
    if x.numel():
        assert copy.data_ptr() != x.data_ptr()
        assert copy.data_ptr() % 32 == x.data_ptr() % 32


def test_a_copy_of_an_input_has_gradient_and_marks() -> None:
    """UT-17"""
    x = torch.ones(2, 3, requires_grad=True)
    x.grad = torch.full((2, 3), 5.0)
    setattr(x, "_dynamo_dynamic_indices", {1})
    for copy in (clone_input(x), clone_inputs([x])[0]):
        assert copy.requires_grad
        assert copy.is_leaf
        assert copy.grad is not None
        assert copy.grad is not x.grad
        assert copy.grad.tolist() == [[5.0] * 3] * 2
        assert getattr(copy, "_dynamo_dynamic_indices") == {1}
    plain_copy = clone_tensor(x)
    assert plain_copy.requires_grad
    (gradient,) = torch.autograd.grad((plain_copy * 3).sum(), x)
    assert gradient.tolist() == [[3.0] * 3] * 2, "it flows through the copy"
    with torch.no_grad():
        leaf = clone_tensor(x)
    assert leaf.is_leaf
    assert leaf.requires_grad
    assert leaf.grad is not None
    assert leaf.grad is not x.grad
    assert leaf.grad.tolist() == [[5.0] * 3] * 2
    assert clone_tensor(torch.ones(2)).grad is None
    assert torch.equal(clone_input(torch.ones(2), dtype=torch.float64), torch.ones(2, dtype=torch.float64))


def test_copies_of_other_layouts() -> None:
    """UT-17"""
    expanded = torch.arange(3.0).expand(4, 3)
    copy = clone_input(expanded)
    assert torch.equal(copy, expanded)
    copy[0, 0] = 9
    assert copy[1, 0] == 0, "elements have memory of their own"
    dense = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
    for sparse in (dense.to_sparse(), dense.to_sparse_csr(), dense.to_sparse_csc(), dense.to_sparse_bsr((1, 1))):
        copied = clone_input(sparse)
        assert copied.layout is sparse.layout
        assert torch.equal(copied.to_dense(), dense)
    quantized = torch.quantize_per_tensor(dense, 0.5, 0, torch.quint8)
    assert torch.equal(clone_input(quantized).int_repr(), quantized.int_repr())
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(dense)
        assert clone_input(fake) is fake


def test_copies_of_containers() -> None:
    """UT-17"""
    x = torch.ones(2)
    made = clone_inputs({"a": x, "b": (x, x)})
    assert made["a"] is not x
    assert type(made["b"]) is tuple
    assert torch.equal(made["b"][1], x)
    assert clone_inputs([x, 3])[1] == 3


def test_generators_are_put_back_also_after_an_error() -> None:
    """UT-19, XC-15"""
    before = torch.get_rng_state()
    with preserve_rng_state():
        torch.rand(3)
    assert torch.equal(torch.get_rng_state(), before)

    def draws_and_fails() -> None:
        with FakeTensorMode(), preserve_rng_state():
            torch.manual_seed(3)
            raise KeyError

    with pytest.raises(KeyError):
        draws_and_fails()
    assert torch.equal(torch.get_rng_state(), before)


def test_torchscript_traces_then_scripts_then_gives_up(caplog: pytest.LogCaptureFixture) -> None:
    """UT-20"""
    linear = torch.nn.Linear(2, 2)
    traced = torchscript(linear, (torch.ones(1, 2),))
    assert isinstance(traced, torch.jit.ScriptModule)
    assert torchscript(traced, ()) is traced

    def neither(x: Tensor) -> Any:
        return {3: open}

    assert torchscript(neither, (torch.ones(2),), verbose=True) is None
    (record,) = [record for record in caplog.records if "neither traced nor scripted" in record.getMessage()]
    assert record.levelname == "ERROR"
    assert "trace: " in record.getMessage()
    assert "script: " in record.getMessage()


def test_parameters_are_put_back_by_value() -> None:
    """UT-21"""
    linear = torch.nn.Linear(2, 2)
    model = torch.nn.Sequential(linear, torch.nn.BatchNorm1d(2))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    rng = torch.get_rng_state()
    restore = checkpoint_params(model)
    model(torch.rand(4, 2)).sum().backward()
    with torch.no_grad():
        linear.weight.add_(1)
    restore()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), rng)


def test_timed_calls_draw_the_same_numbers() -> None:
    """UT-22"""
    first, seconds = timed(lambda x: x + torch.rand(2), [torch.ones(2)], times=2)
    again, _ = timed(lambda x: x + torch.rand(2), [torch.ones(2)], times=2)
    assert torch.equal(first, again)
    assert seconds > 0
    calls: list[int] = []
    timed(calls.append, [3], times=4)
    assert calls == [3, 3, 3, 3]
    assert not is_on_cuda([torch.ones(2), {"a": (torch.ones(2),)}])
    assert not is_on_cuda(torch.nn.Linear(1, 1))


def test_a_fake_tensor_becomes_zeros() -> None:
    """UT-48"""
    shape_env = ShapeEnv()
    fake = fake_input(torch.ones(4, 3).t().requires_grad_(), symbolic_fake_mode(shape_env), shape_env, "x")
    assert any(isinstance(size, torch.SymInt) for size in fake.shape)
    real = defake(fake)
    assert type(real) is torch.Tensor
    assert (tuple(real.shape), real.stride(), real.requires_grad) == ((3, 4), (1, 3), True)
    assert not real.any()
    x = torch.ones(2)
    assert defake(x) is x


class OnXla(torch.Tensor):
    """A tensor that says it is on a TPU: its memory has no strides that a program could see."""

    device = property(lambda self: torch.device("xla", 0))  # type: ignore[assignment]


@pytest.mark.parametrize("requires_grad", [False, True])
def test_tensors_of_xla_are_cloned_and_not_laid_out(requires_grad: bool) -> None:
    """UT-17"""
    memory = torch.arange(12.0).view(3, 4)[:, ::2]
    assert clone_input(memory).stride() == memory.stride() == (4, 2)
    tensor = memory.as_subclass(OnXla).requires_grad_(requires_grad)
    for clone in (clone_input, torch_clone_input):
        copied = clone(tensor)
        assert copied.stride() == (2, 1), "what clone gives"
        assert torch.equal(copied.as_subclass(torch.Tensor), memory)
        assert copied.requires_grad is requires_grad


def test_generators_of_cuda_are_put_back_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """UT-19"""
    states = [torch.tensor([1]), torch.tensor([2])]  # of two devices

    def put(given: list[torch.Tensor]) -> None:
        states[:] = given

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: [state.clone() for state in states])
    monkeypatch.setattr(torch.cuda, "set_rng_state_all", put)

    def draw() -> None:
        for state in states:
            state.add_(5)

    with preserve_rng_state():
        draw()
    assert [int(state) for state in states] == [1, 2]

    def draws_and_fails() -> None:
        with FakeTensorMode(), preserve_rng_state():
            put([torch.tensor([7]), torch.tensor([8])])
            raise KeyError

    with pytest.raises(KeyError):
        draws_and_fails()
    assert [int(state) for state in states] == [1, 2]

"""Attributes that a module assigns while it is exported."""

from __future__ import annotations

import collections
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch._functorch._aot_autograd.frontend_utils import _detect_attribute_assignment as torch_detect

from refimpl.aot.attribute_assignment import _detect_attribute_assignment


class Holder(torch.nn.Module):
    """Has attributes of every kind, and a child."""

    def __init__(self, *, has_child: bool = True) -> None:
        super().__init__()
        self.c = torch.ones(2)
        self.k = 1
        self.items: list[Any] = [torch.zeros(1), 2, [3]]
        self.table: dict[str, Any] = {"u": torch.zeros(1), "v": 2}
        self.pair = (torch.zeros(1), [4])
        self.ordered = collections.OrderedDict(a=1)
        self.p = torch.nn.Parameter(torch.ones(1))
        self.register_buffer("b", torch.ones(1))
        if has_child:
            self.child = Holder(has_child=False)


@contextmanager
def _paths(detect: Callable[[torch.nn.Module], Any], module: torch.nn.Module, found: list[str]) -> Iterator[None]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with detect(module):
            yield
    for warning in caught:
        text = str(warning.message)
        found += text.split("attribute", 1)[1].removeprefix("s").split(" w")[0].strip().split(", ")


def _snapshot(module: Holder) -> list[Any]:
    return [
        (name, list(sub.__dict__), [id(v) for v in sub.__dict__.values()], list(sub.items), list(sub.table.items()),
         list(sub.pair), list(sub.pair[1]), list(sub.ordered.items()))
        for name, sub in module.named_modules() if isinstance(sub, Holder)
    ]  # fmt: skip


PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "a tensor": lambda m: setattr(m, "c", m.c + 1),
    "a tensor of a child": lambda m: setattr(m.child, "c", m.c + 1),
    "in a list": lambda m: m.items.__setitem__(0, m.c + 1),
    "in a dictionary": lambda m: m.table.__setitem__("u", m.c + 1),
    "two": lambda m: (setattr(m, "c", m.c + 1), m.table.__setitem__("u", m.c + 1)),
    "a number": lambda m: setattr(m, "k", m.k + 1),
    "a number in a list": lambda m: m.items[2].append(7),
    "a buffer": lambda m: setattr(m, "b", m.b + 1),
    "a number for a tensor": lambda m: setattr(m, "c", 3),
    "an item more": lambda m: m.items.append(m.c + 1),
    "an order": lambda m: m.ordered.move_to_end("a"),
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_assigned_tensors_are_told_as_upstream_tells_them(program: Callable[[Any], Any]) -> None:
    """AO-39"""
    ours: list[str] = []
    theirs: list[str] = []
    for detect, found in ((_detect_attribute_assignment, ours), (torch_detect, theirs)):
        module = Holder()
        with _paths(detect, module, found):
            program(module)
    assert sorted(ours) == sorted(theirs)


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_attributes_are_put_back(program: Callable[[Any], Any]) -> None:
    """AO-39"""
    module = Holder()
    before = _snapshot(module)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with _detect_attribute_assignment(module):
            program(module)
    after = _snapshot(module)
    for (name, *ours), (other_name, *theirs) in zip(after, before, strict=True):
        assert name == other_name
        assert [str(part) for part in ours] == [str(part) for part in theirs]


def _watch(module: Holder, program: Callable[[Any], Any]) -> None:
    with _detect_attribute_assignment(module):
        program(module)


def test_a_new_attribute_is_told_and_removed() -> None:
    """AO-39. Upstream tells of it and leaves it."""
    module = Holder()

    def assign(module: Any) -> None:
        module.late = torch.ones(1)
        module.cache = [{"x": torch.ones(1)}]
        module.number = 3

    with pytest.warns(UserWarning, match=r"tensor attributes self.late, self.cache\[0\]\['x'\] were assigned"):
        _watch(module, assign)
    assert not {"late", "cache", "number"} & set(module.__dict__)


def test_a_container_that_holds_itself_is_no_trouble() -> None:
    """AO-39"""
    module = Holder()
    module.items.append(module.items)
    with pytest.warns(UserWarning, match=r"self.items\[0\] was assigned"):
        _watch(module, lambda m: m.items.__setitem__(0, torch.ones(1)))
    assert module.items[3] is module.items
    assert torch.equal(module.items[0], torch.zeros(1))


def test_a_failure_goes_through_and_attributes_are_put_back() -> None:
    """AO-39, XC-11"""
    module = Holder()
    before = module.c

    def fail(module: Any) -> None:
        module.c = torch.zeros(2)
        raise ZeroDivisionError

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ZeroDivisionError):
            _watch(module, fail)
    assert module.c is before


def test_hooks_that_the_block_registers_are_gone_with_what_was_noted_of_them() -> None:
    """AO-39. transformers installs hooks at the first call, and notes that it has."""
    module = Holder()

    def install(module: Any) -> None:
        module.child.register_forward_hook(lambda *_: None)
        module.register_forward_pre_hook(lambda *_: None, with_kwargs=True)
        module.has_hooks = True

    _watch(module, install)
    assert not module._forward_pre_hooks
    assert not module._forward_pre_hooks_with_kwargs
    assert not module.child._forward_hooks
    assert not hasattr(module, "has_hooks")


def test_a_lazy_module_that_gets_its_parameters_can_be_called_afterwards() -> None:
    module = torch.nn.LazyLinear(2)
    with _detect_attribute_assignment(module):
        module(torch.ones(1, 3))
    assert module(torch.ones(4, 3)).shape == (4, 2)

"""Methods of a script object (torchbind) whose class has a registered fake: traced, captured, compiled and exported.

The class is written in C++, since no class of torch itself can have a fake; compiling it takes half a minute.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import refimpl
from refimpl.export import export
from refimpl.pipeline import compile_aot
from refimpl.tests.capture.compiled_graphs import Graphs, calls
from refimpl.tests.graphs import targets_of

pytestmark = pytest.mark.slow
SOURCE = """
#include <ATen/ATen.h>
#include <torch/custom_class.h>
#include <torch/library.h>

struct Counter : torch::CustomClassHolder {
  int64_t n;
  at::Tensor t;
  Counter(int64_t n, at::Tensor t) : n(n), t(std::move(t)) {}
  at::Tensor add(const at::Tensor& x) { n += 1; return x + t; }
  int64_t count() { return n; }
  void bump(int64_t by) { n += by; }
  std::tuple<std::tuple<std::string, int64_t>, std::tuple<std::string, at::Tensor>> flat() {
    return std::make_tuple(std::make_tuple(std::string("n"), n), std::make_tuple(std::string("t"), t));
  }
};

at::Tensor apply(const c10::intrusive_ptr<Counter>& counter, const at::Tensor& x) { return counter->add(x); }

TORCH_LIBRARY(refimpl_script_objects, m) {
  m.class_<Counter>("Counter")
      .def(torch::init<int64_t, at::Tensor>())
      .def("add", &Counter::add)
      .def("count", &Counter::count)
      .def("bump", &Counter::bump)
      .def("__obj_flatten__", &Counter::flat)
      .def_pickle(
          [](const c10::intrusive_ptr<Counter>& self) { return std::make_tuple(self->n, self->t); },
          [](std::tuple<int64_t, at::Tensor> state) {
            return c10::make_intrusive<Counter>(std::get<0>(state), std::get<1>(state));
          });
  m.def("apply(__torch__.torch.classes.refimpl_script_objects.Counter counter, Tensor x) -> Tensor");
}
TORCH_LIBRARY_IMPL(refimpl_script_objects, CompositeExplicitAutograd, m) { m.impl("apply", &apply); }
"""
hop: Any = torch.ops.higher_order
ops: Any = torch.ops.refimpl_script_objects


class FakeCounter:
    def __init__(self, n: int, t: torch.Tensor) -> None:
        self.n, self.t = n, t

    @classmethod
    def __obj_unflatten__(cls, contents: Any) -> FakeCounter:
        return cls(**dict(contents))

    def add(self, x: torch.Tensor) -> torch.Tensor:
        self.n += 1
        return x + self.t

    def count(self) -> int:
        return self.n

    def bump(self, by: int) -> None:
        self.n += by


@pytest.fixture(scope="module", autouse=True)
def counter_class(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("script_objects")
    (folder / "counter.cpp").write_text(SOURCE)
    home = Path(torch.__file__).parent
    subprocess.run(
        ["g++", "-O0", "-std=c++20", "-shared", "-fPIC", f"-I{home}/include", f"-I{home}/include/torch/csrc/api/include",
         "counter.cpp", f"-L{home}/lib", "-Wl,--no-as-needed", "-ltorch", "-ltorch_cpu", "-lc10", "-o", "counter.so"],
        cwd=folder, check=True,
    )  # fmt: skip
    torch.ops.load_library(folder / "counter.so")
    getattr(torch, "_library").register_fake_class("refimpl_script_objects::Counter", FakeCounter)
    torch.library.register_fake("refimpl_script_objects::apply", lambda counter, x: torch.empty_like(x))


def counter(n: int = 3) -> Any:
    return torch.classes.refimpl_script_objects.Counter(n, torch.ones(3))


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.counter = counter()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.counter.add(x)
        self.counter.bump(2)
        return ops.apply(self.counter, y).sin()


CASES: dict[str, Callable[..., Any]] = {
    "a method": lambda x, c: c.add(x) * 2,
    "an operator": lambda x, c: ops.apply(c, x) + 1,
    "a method and an operator": lambda x, c: c.add(x) + ops.apply(c, x),
    "a method that returns a number": lambda x, c: c.add(x) + c.count(),
    "a method that returns nothing": lambda x, c: (c.bump(4), x + 1)[1],
    "the operator of methods": lambda x, c: hop.call_torchbind(c, "add", x),
}


@pytest.mark.parametrize("how", ["eager", "aot_eager", "dynamic", "compile_aot", "real", "fake", "symbolic"])
@pytest.mark.parametrize("name", CASES)
def test_results_and_changes_of_the_object_are_those_of_eager(name: str, how: str) -> None:
    program = CASES[name]
    x, ours, theirs = torch.linspace(-1, 1, 3), counter(), counter()
    if how == "compile_aot":
        compiled: Any = compile_aot(program)
    elif how in ("real", "fake", "symbolic"):
        compiled = refimpl.make_fx(program, tracing_mode=how)(x, counter())
    else:
        backend = "eager" if how == "eager" else "aot_eager"
        compiled = refimpl.compile(program, backend=backend, fullgraph=True, dynamic=how == "dynamic")
    torch.testing.assert_close(compiled(x, ours), program(x, theirs))
    assert ours.count() == theirs.count()


def test_a_number_that_a_method_returns_is_guarded() -> None:
    compiled = refimpl.compile(CASES["a method that returns a number"], backend="aot_eager", fullgraph=True)
    ours, x = counter(), torch.ones(3)
    assert [compiled(x, ours).tolist()[0] for _ in range(3)] == [6.0, 7.0, 8.0]


def test_calls_keep_their_order_by_tokens() -> None:
    graphs = Graphs()
    refimpl.compile(Counting(), backend=graphs, fullgraph=True)(torch.ones(3))
    assert [node.args[1] for node in calls(graphs.captured[0], "call_torchbind")] == ["add", "bump"]
    called = [node.args[1] for node in calls(graphs.forward[0], "with_effects")]
    assert called == [hop.call_torchbind, hop.call_torchbind, ops.apply.default]


@pytest.mark.parametrize("strict", [False, True])
def test_export_calls_the_methods_and_leaves_the_object_as_it_was(strict: bool) -> None:
    module, x = Counting(), torch.ones(3)
    program = export(module, (x,), strict=strict)
    assert module.counter.count() == 3
    targets = targets_of(program.graph_module)
    assert targets[:3] == [hop.call_torchbind, hop.call_torchbind, ops.apply.default]
    torch.testing.assert_close(program.module()(x), Counting()(x))

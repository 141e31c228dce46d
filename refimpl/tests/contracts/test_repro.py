"""Contracts of get_compiler_fn's wrapper (DY-18): scripts for graphs on which a backend fails, and what these scripts do."""

from __future__ import annotations

import pickle
import re
import runpy
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx
from torch.utils.checkpoint import checkpoint

import refimpl
from refimpl import backend_registry
from refimpl.capture.compile import get_compiler_fn
from refimpl.capture.config import config
from refimpl.capture.public.errors import BackendCompilerFailed
from refimpl.capture.repro.accuracy import AccuracyError
from refimpl.capture.repro.backend import DebuggedBackend, wrap_backend_debug
from refimpl.capture.repro.minifying import backend_fails, dynamo_minifier_backend
from refimpl.capture.repro.scripts import saved_tensors
from refimpl.repro import run_repro
from refimpl.tests.contracts.contract_backend import Backend, plus_one

Tensor = torch.Tensor
HELD = torch.full((2,), 2.0)


def is_tan(node: fx.Node) -> bool:
    return node.op.startswith("call") and node.target in ("tan", torch.tan)


def no_tan(graph: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Refuses to compile `tan`."""
    if any(map(is_tan, graph.graph.nodes)):
        raise NotImplementedError("no kernel for tan")
    return graph.forward


def doubled_tan(graph: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """Computes twice the tangent."""
    made = fx.GraphModule(graph, graph.graph)
    for node in list(made.graph.nodes):
        if is_tan(node):
            with made.graph.inserting_after(node):
                twice = made.graph.call_method("add", (node, node))
            node.replace_all_uses_with(twice, delete_user_cb=lambda user, twice=twice: user is not twice)
    made.recompile()
    return made.forward


def program(x: Tensor) -> Tensor:
    y = torch.cond(x.sum() > 0, lambda x: x.sin() + HELD, lambda x: x.cos(), (x,))
    return (y.exp() * 3).tan().to(torch.float64) + 1


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    refimpl.reset()
    monkeypatch.chdir(tmp_path)
    backend_registry.list_backends()  # registers refimpl's own, which the first lookup would put into the copy
    monkeypatch.setattr(backend_registry, "_BACKENDS", {**backend_registry._BACKENDS})
    for backend in (no_tan, doubled_tan):
        backend_registry.register_backend(backend.__name__, backend)
    with config.patch(debug_dir_root=str(tmp_path), repro_after="dynamo", repro_level=2):
        yield tmp_path
    refimpl.reset()


def launchers(folder: Path) -> list[Path]:
    return sorted(folder.glob("run_*/minifier/minifier_launcher.py"))


def run(script: Path, *command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [str(script), *command])
    refimpl.reset()
    runpy.run_path(str(script), run_name="__main__")


def calls_of(script: Path) -> list[str]:
    """The operators that the code of a script calls."""
    return re.findall(r"= [\w.]*?(\w+)\(", script.read_text().partition("class ")[2].partition("if __name__")[0])


# --------------------------------------------------------------------------------------------------------- the wrapper


def test_every_backend_is_wrapped_and_stays_what_it_is() -> None:
    """DY-18"""
    backend: Any = Backend()
    backend.compiler_name = "counting"
    found = get_compiler_fn(backend)
    assert isinstance(found, DebuggedBackend)
    assert (found.__name__, found.n) == ("counting", 0)
    found.reset()
    assert backend.resets == 1
    assert get_compiler_fn(found) is found
    again = pickle.loads(pickle.dumps(get_compiler_fn("no_tan")))
    assert (again.__name__, again._torchdynamo_orig_backend) == ("no_tan", no_tan)


@pytest.mark.parametrize("stage", [None, "aot"])
def test_without_the_setting_nothing_is_written(stage: str | None, tmp_path: Path) -> None:
    """DY-18"""
    with config.patch(repro_after=stage), pytest.raises(BackendCompilerFailed, match="no kernel for tan") as caught:
        refimpl.compile(program, backend=no_tan)(torch.ones(2))
    assert not hasattr(caught.value.inner_exception, "minifier_path")
    assert list(tmp_path.iterdir()) == []


def test_other_stages_are_refused() -> None:
    """DY-18"""
    backend = wrap_backend_debug(no_tan, None)
    with (
        config.patch(repro_after="export"),
        pytest.raises(AssertionError, match="repro_after must be 'dynamo', 'aot', or None"),
    ):
        backend(fx.symbolic_trace(torch.nn.Identity()), [])


@pytest.mark.parametrize(
    ("level", "function", "expected"),
    [
        (1, program, ["repro.py"]),
        (1, plus_one, []),
        (2, program, ["minifier_launcher.py"]),
        (2, plus_one, []),
        (3, program, ["minifier_launcher.py"]),
        (3, plus_one, ["minifier_launcher.py"]),
    ],
)
def test_levels_say_which_script_is_written(level: int, function: Any, expected: list[str], tmp_path: Path) -> None:
    """DY-18"""
    with config.patch(repro_level=level):
        compiled = refimpl.compile(function, backend="no_tan")
        if function is plus_one:
            assert compiled(torch.ones(2)).tolist() == [2, 2]
        else:
            with pytest.raises(BackendCompilerFailed) as caught:
                compiled(torch.ones(2))
            assert ("python " in str(caught.value)) is ("minifier_launcher.py" in expected), (
                "it names a script that is there"
            )
            assert getattr(caught.value.inner_exception, "minifier_path").endswith("minifier_launcher.py")
    assert sorted(path.name for path in tmp_path.rglob("*.py")) == expected


def test_an_error_at_run_time_counts_too_and_trying_draws_no_random_numbers(tmp_path: Path) -> None:
    """DY-18"""

    def failing(graph: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            graph(*args)
            raise OSError("at run time")

        return call

    torch.manual_seed(3)
    state = torch.get_rng_state()
    with pytest.raises(BackendCompilerFailed, match="at run time"):
        refimpl.compile(lambda x: x + torch.rand(2), backend=failing)(torch.ones(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert len(launchers(tmp_path)) == 1


def test_level_4_is_for_other_values(tmp_path: Path) -> None:
    """DY-18"""
    with config.patch(repro_level=4):
        assert torch.equal(refimpl.compile(plus_one, backend="doubled_tan")(torch.ones(2)), torch.full((2,), 2.0))
        assert launchers(tmp_path) == []
        with pytest.raises(BackendCompilerFailed, match="Bad accuracy detected") as caught:
            refimpl.compile(program, backend="doubled_tan")(torch.ones(2))
    assert isinstance(caught.value.inner_exception, AccuracyError)
    assert "accuracy='accuracy'" in launchers(tmp_path)[0].read_text()


def test_a_graph_that_no_script_can_name_keeps_the_error(caplog: pytest.LogCaptureFixture) -> None:
    """DY-18"""

    def local(x: Tensor) -> Tensor:
        return x.tan()

    refimpl.allow_in_graph(local)

    def refusing(graph: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        raise OSError("refused")

    with pytest.raises(BackendCompilerFailed, match="refused"):
        refimpl.compile(lambda x: local(x) + 1, backend=refusing)(torch.ones(2))
    assert "cannot be written" in caplog.text


# --------------------------------------------------------------------------------------------------------- the scripts


def test_a_script_shows_the_error_and_makes_the_graph_smaller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DY-18"""
    with pytest.raises(BackendCompilerFailed):
        refimpl.compile(program, backend="no_tan")(torch.tensor([1.0, 2.0]))
    (launcher,) = launchers(tmp_path)
    assert {"cond", "exp", "tan", "sin", "cos"} <= {*calls_of(launcher)}
    with pytest.raises(BackendCompilerFailed, match="no kernel for tan"):
        run(launcher, "run", monkeypatch=monkeypatch)
    run(launcher, "run", "--backend", "eager", monkeypatch=monkeypatch)
    run(launcher, monkeypatch=monkeypatch)
    smaller = tmp_path / "repro.py"
    assert calls_of(smaller) == ["tan"]
    with pytest.raises(BackendCompilerFailed, match="no kernel for tan"):
        run(smaller, monkeypatch=monkeypatch)


def test_a_script_for_other_values_does_so_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DY-18"""
    with config.patch(repro_level=4), pytest.raises(BackendCompilerFailed):
        refimpl.compile(program, backend="doubled_tan")(torch.tensor([1.0, 2.0]))
    (launcher,) = launchers(tmp_path)
    run(launcher, monkeypatch=monkeypatch)
    smaller = tmp_path / "repro.py"
    assert calls_of(smaller) == ["tan"]
    with pytest.raises(AccuracyError):
        run(smaller, monkeypatch=monkeypatch)
    run(smaller, "run", "--no-accuracy", monkeypatch=monkeypatch)


def test_a_backend_without_a_name_has_to_be_given_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DY-18"""
    with pytest.raises(BackendCompilerFailed):
        refimpl.compile(program, backend=no_tan)(torch.ones(2))
    (launcher,) = launchers(tmp_path)
    with pytest.raises(RuntimeError, match="has no name"):
        run(launcher, monkeypatch=monkeypatch)


def test_modes_and_sizes_of_the_call_are_in_the_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DY-18"""
    seen: list[tuple[bool, torch.dtype, int]] = []

    def watching(graph: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        def call(*args: Any) -> Any:
            (result,) = graph(*args)
            seen.append((torch.is_grad_enabled(), result.dtype, result.shape[0]))
            raise OSError

        return call

    backend_registry.register_backend("watching", watching)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(BackendCompilerFailed):
        refimpl.compile(lambda x, n: x @ x.T * n, backend="watching", dynamic=True)(torch.ones(3, 4), 5)
    with pytest.raises(OSError):
        run(launchers(tmp_path)[0], "run", monkeypatch=monkeypatch)
    assert seen == [(False, torch.bfloat16, 3)] * 2


def test_a_graph_fails_the_same_way_if_the_message_is_similar() -> None:
    """DY-18"""
    graph = fx.symbolic_trace(lambda x: (x.tan(),))
    assert backend_fails(graph, [torch.ones(2)], no_tan, "no kernel for tan")
    assert not backend_fails(graph, [torch.ones(2)], no_tan, "CUDA out of memory: 17 GiB")
    with pytest.raises(ValueError, match="No issue"):
        dynamo_minifier_backend(graph, [torch.ones(2)], "eager")


class Unpickled:
    """An object whose file runs code when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return Path.touch, (self.marker,)


def test_no_code_of_a_file_of_tensors_runs(tmp_path: Path) -> None:
    hostile = {"inputs": [Unpickled(tmp_path / "ran")], "attributes": {}}
    torch.save(hostile, tmp_path / "repro.pt")
    with pytest.raises(pickle.UnpicklingError):
        run_repro(str(tmp_path / "repro.py"), {"": torch.nn.Module}, arguments=["run", "--backend", "eager"])
    with pytest.raises(ValueError, match="other objects than tensors and numbers"):
        saved_tensors(hostile)
    assert not (tmp_path / "ran").exists()


def test_settings_come_from_the_environment(run_forked: Callable[[str], Any]) -> None:
    """DY-18"""
    code = (
        "import importlib, os, refimpl.capture.config as module\n"
        "names = ['TORCHDYNAMO_REPRO_AFTER', 'TORCHDYNAMO_REPRO_LEVEL', 'TORCHDYNAMO_REPRO_FORWARD_ONLY']\n"
        "for values in (('dynamo', '4', '1'), ()):\n"
        "    [os.environ.pop(name, None) for name in names]\n"
        "    os.environ.update(zip(names, values))\n"
        "    c = importlib.reload(module).config\n"
        "    print(c.repro_after, c.repro_level, c.repro_forward_only)"
    )
    assert (done := run_forked(code)).stdout.splitlines() == ["dynamo 4 True", "None 2 False"], done.stderr


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "doubled_tan"])
@pytest.mark.parametrize("level", [1, 2, 3, 4])
def test_graphs_with_symbolic_sizes_are_tried_and_compared(level: int, backend: str) -> None:
    """DY-18"""
    x = torch.ones(3, 4)
    with config.patch(repro_level=level):
        compiled = refimpl.compile(lambda n, x: (x * n).tan(), backend=backend, dynamic=True)
        if level == 4 and backend == "doubled_tan":
            with pytest.raises(BackendCompilerFailed, match="Bad accuracy"):
                compiled(7, x)
        else:
            torch.testing.assert_close(compiled(7, x), (x * 7).tan() * (2 if backend == "doubled_tan" else 1))


def scaled() -> fx.GraphModule:
    """A graph that reads `inner.weight`, as those do that torch.fx traces."""
    root = torch.nn.Module()
    root.inner = torch.nn.Module()
    root.inner.weight = torch.nn.Parameter(torch.full((2,), 3.0))
    graph = fx.Graph()
    product = graph.call_function(torch.mul, (graph.placeholder("x"), graph.get_attr("inner.weight")))
    graph.output(graph.call_function(torch.tan, (product,)))
    return fx.GraphModule(root, graph)


class Checkpointed(torch.nn.Module):
    """The body of a checkpoint that has a branch is called as a graph of refimpl's."""

    def forward(self, x: Tensor) -> Tensor:
        def body(x: Tensor) -> Tensor:
            return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,)) * x

        return checkpoint(body, x, use_reentrant=False).tan()


@pytest.mark.parametrize("make", [scaled, Checkpointed], ids=["nested_parameter", "checkpoint"])
def test_scripts_of_graphs_with_nested_parameters_and_bodies_run(
    make: Callable[[], torch.nn.Module], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DY-18"""
    module, x = make(), torch.ones(2, requires_grad=True)
    if isinstance(module, fx.GraphModule):
        with pytest.raises(NotImplementedError):
            get_compiler_fn("no_tan")(module, [x])
    else:
        with pytest.raises(BackendCompilerFailed):
            refimpl.compile(module, backend="no_tan")(x)
    (script,) = launchers(tmp_path)
    run(script, monkeypatch=monkeypatch)
    assert "tan" in calls_of(tmp_path / "repro.py")

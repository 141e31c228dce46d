"""Backends and compilers named by the user, found in the current directory and on PYTHONPATH."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed

from oracle.errors import UsageError
from oracle.subjects.base import CompileRequest, Subject
from oracle.subjects.registry import load, of_callable, resolve

SOURCE = """
import torch
not_callable = 3
seen = []

def backend(gm, example_inputs, **options):
    seen.append((len(example_inputs), options))
    return gm.forward

def wrong_backend(gm, example_inputs):
    return lambda *args: tuple(out + 1 for out in gm.forward(*args))

def returns_nothing(gm, example_inputs):
    return None

def raises(gm, example_inputs):
    raise ZeroDivisionError("in the backend")

def compiler(fn, *, dynamic=None, level=0):
    seen.append((dynamic, level))
    return lambda *args, **kwargs: fn(*args, **kwargs)

def compiler_of_nothing(fn, *, dynamic=None):
    return None

class Holder:
    @staticmethod
    def backend(gm, example_inputs):
        return gm.forward
"""


@pytest.fixture
def module_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module of the user's, importable from the current directory only."""
    name = f"users_own_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(SOURCE)
    (tmp_path / f"{name}_broken.py").write_text("import does_not_exist_anywhere")
    monkeypatch.chdir(tmp_path)
    path_before = list(sys.path)
    yield name
    sys.path[:] = path_before
    for key in [key for key in sys.modules if key.startswith(name)]:
        del sys.modules[key]


def _run(subject: Subject, *, dynamic: bool | None = None) -> torch.Tensor:
    subject.reset()
    compiled = subject.compile(CompileRequest(target=lambda x: x.sin() * 2, args=(torch.ones(3),), dynamic=dynamic))
    return compiled(torch.ones(3))


def test_a_backend(module_name: str) -> None:
    subject = load(resolve(f"{module_name}:backend"))
    torch.testing.assert_close(_run(subject), torch.ones(3).sin() * 2)
    assert subject.counters().graphs == 1
    assert importlib.import_module(module_name).seen == [(1, {})]


def test_a_backend_gets_its_options(module_name: str) -> None:
    _run(load(resolve(f"{module_name}:backend[options.level=3]")))
    assert importlib.import_module(module_name).seen == [(1, {"options": {"level": 3}})]


def test_an_attribute_of_a_class(module_name: str) -> None:
    torch.testing.assert_close(_run(load(resolve(f"{module_name}:Holder.backend"))), torch.ones(3).sin() * 2)


def test_a_wrong_backend_gives_wrong_results(module_name: str) -> None:
    assert not torch.allclose(_run(load(resolve(f"{module_name}:wrong_backend"))), torch.ones(3).sin() * 2)


def test_a_compiler(module_name: str) -> None:
    subject = load(resolve(f"compile:{module_name}:compiler[level=2]"))
    torch.testing.assert_close(_run(subject, dynamic=True), torch.ones(3).sin() * 2)
    assert importlib.import_module(module_name).seen == [(True, 2)]
    assert subject.counters().graphs is None


def test_a_module_on_pythonpath(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    name = f"on_the_path_{tmp_path.name.replace('-', '_')}"
    (elsewhere / f"{name}.py").write_text(SOURCE)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", str(elsewhere))
    torch.testing.assert_close(_run(load(resolve(f"{name}:backend"))), torch.ones(3).sin() * 2)


@pytest.mark.parametrize(
    ("suffix", "words"),
    [
        ("_nowhere:backend", ["does not import", "ModuleNotFoundError"]),
        ("_broken:backend", ["does not import", "does_not_exist_anywhere"]),
        (":backnd", ["has no 'backnd'", "did you mean backend"]),
        (".py:backend", ["does not import", "without .py"]),
        (":Holder.compile", ["has no 'Holder.compile'"]),
        (":not_callable", ["is of type int", "a function"]),
    ],
)
@pytest.mark.parametrize("prefix", ["", "compile:"])
def test_a_path_that_leads_nowhere(module_name: str, prefix: str, suffix: str, words: list[str]) -> None:
    with pytest.raises(UsageError) as raised:
        load(resolve(f"{prefix}{module_name}{suffix}"))
    for word in words:
        assert word in str(raised.value)


@pytest.mark.parametrize("path", ["{}:returns_nothing", "compile:{}:compiler_of_nothing"])
def test_something_that_cannot_be_called_is_the_users_to_mend(module_name: str, path: str) -> None:
    with pytest.raises(UsageError, match="returned None"):
        _run(load(resolve(path.format(module_name))))


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("{}:compiler", ["takes (fn, *, dynamic=None", "f(graph_module, example_inputs)", "compile:module:function"]),
        ("{}:raises[options.level=3]", ["takes (gm, example_inputs)", "the keyword options"]),
        ("{}:raises[mode=fast]", ["takes (gm, example_inputs)", "the keyword mode"]),
        ("compile:{}:raises", ["takes (gm, example_inputs)", "f(fn, dynamic=...)"]),
        ("compile:{}:compiler[depth=3]", ["takes (fn, *, dynamic=None", "f(fn, dynamic=..., depth=...)"]),
    ],
)
def test_a_function_of_other_arguments_is_the_users_to_mend(module_name: str, path: str, words: list[str]) -> None:
    with pytest.raises(UsageError) as raised:
        load(resolve(path.format(module_name)))
    for word in words:
        assert word in str(raised.value)


def test_a_backend_that_raises_is_an_observation(module_name: str) -> None:
    with pytest.raises(BackendCompilerFailed, match="in the backend"):
        _run(load(resolve(f"{module_name}:raises")))


def test_an_option_inductor_does_not_know_is_refused_at_once() -> None:
    with pytest.raises(UsageError, match=r"options\.max_fusion_sise"):
        load(resolve("inductor[options.max_fusion_sise=8]"))


def test_a_live_backend() -> None:
    def mine(gm: torch.fx.GraphModule, example_inputs: list[torch.Tensor]) -> object:
        return gm.forward

    subject = of_callable(mine)
    assert subject.spec.name == f"{__name__}.test_a_live_backend.<locals>.mine"
    torch.testing.assert_close(_run(subject), torch.ones(3).sin() * 2)
    assert subject.counters().graphs == 1

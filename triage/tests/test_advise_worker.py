"""The worker of `advise`: what it writes down is read back as it was, and it needs torch and numpy only."""

from __future__ import annotations

import ast
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from oracle.errors import UsageError
from oracle.observe import observe
from oracle.observe.outcome import Crashed, Outcome, Raised, Returned, TimedOut
from oracle.program import Program, default_plan
from oracle.program.build import instantiate
from oracle.program.clone import bytes_of
from oracle.program.input_text import parse_call
from triage.advise import worker
from triage.advise.answers import Answer, read_answer
from triage.advise.asking import check_answer
from triage.interpreters import Ended
from triage.quiet import without_prints

_ROOT = Path(worker.__file__).parents[2]
_ENDED = Ended(code=0, seconds=1.0, output="", errors="")
_SOURCE = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 4, dtype=torch.bfloat16)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x, scale=2.0):
        self.count += 1
        print("a print")
        h = self.inner(x) * scale
        return {"h": h, "t": h.t(), "c": torch.complex(h.float(), h.float()).conj(), "none": None,
                "numbers": (1, float("nan"), True, 2 + 1j, x.shape), "f8": x.to(torch.float8_e4m3fn),
                "sparse": (x > 0).float().to_sparse(), "empty": x[:0]}

program = Net
"""


def _program(source: str = _SOURCE, inputs: str = "bf16[3, 4].grad", **more: Any) -> Program:
    call = replace(parse_call(inputs), backward=".grad" in inputs)
    calls = tuple(replace(each, double_backward=False) for each in default_plan(call, key=None))
    return Program(**{"name": "net.py", "source": source, "calls": calls, "is_module": "class Net" in source, **more})


def _told(program: Program, folder: Path, backend: str = "eager") -> None:
    """The worker's answer in a folder, made in this process."""
    compiled = {"backend": backend, "keywords": {}}
    request = {"program": program.to_json(), "compile": compiled, "speed_s": 0.01}
    (folder / "request.json").write_text(json.dumps(request))
    worker.main(folder)


def _answer(program: Program, folder: Path, backend: str = "eager") -> Answer:
    _told(program, folder, backend)
    return read_answer(folder, _ENDED, 60)


def _leaves(outcome: Outcome) -> list[Any]:
    assert isinstance(outcome, (Returned, Raised))
    return [leaf for call in outcome.calls for name in worker.LEAVES for leaf in getattr(call, name)]


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> Answer:
    """The answer about the program above."""
    with without_prints():
        return _answer(_program(), tmp_path_factory.mktemp("answer"))


def test_what_is_written_is_read_back_as_it_was(answer: Answer) -> None:
    with without_prints():
        here = observe(instantiate(_program()))
    assert (answer.torch, answer.death) == (torch.__version__, "")
    assert isinstance(answer.eager, Returned)
    assert isinstance(here, Returned)
    assert [call.aliases for call in answer.eager.calls] == [call.aliases for call in here.calls]
    assert [call.structure for call in answer.eager.calls] == [call.structure for call in here.calls]
    assert [call.rng_digest for call in answer.eager.calls] == [call.rng_digest for call in here.calls]
    compared = 0
    for seen, expected in zip(_leaves(answer.eager), _leaves(here), strict=True):
        assert seen.path == expected.path
        if seen.path == "output['sparse']":
            assert seen.value.startswith("<tensor whose elements are not compared: ")
            continue
        assert seen.facts == expected.facts
        if expected.facts is not None:
            compared += 1
            assert torch.equal(bytes_of(seen.value), bytes_of(expected.value))
        elif seen.path != "output['numbers'][1]":
            assert str(seen.value) == str(expected.value)
    # All but the sparse tensor of each call.
    assert compared == len([leaf for leaf in _leaves(here) if leaf.facts is not None]) - 3
    assert answer.inputs.keys() == {
        "call 0: args[0]", "call 1: args[0]", "call 2: args[0]", "module.inner.weight", "module.inner.bias", "module.count",
    }  # fmt: skip


def test_graphs_breaks_recompiles_and_times_are_told(answer: Answer, tmp_path: Path) -> None:
    assert answer.capture.breaks is not None
    assert answer.capture.breaks[0].where == 'net.py:12: print("a print")'
    assert answer.capture.graphs == 2
    assert answer.capture.recompiles == ()
    assert None not in (answer.compile_s, answer.eager_s, answer.compiled_s)
    source = (
        "import torch\n\ndef program(x, n):\n    return x + 1 if n else x * 2\n\n"
        "def inputs(call):\n    return [torch.ones(2), call == 0], {}\n"
    )
    program = replace(_program(source), calls=_program(inputs="f32[2]").calls[:2])
    program = replace(program, calls=tuple(replace(call, args=None, values="given") for call in program.calls))
    recompiles = _answer(program, tmp_path).capture.recompiles
    assert recompiles is not None
    assert len(recompiles) == 1
    assert "n" in recompiles[0]


def test_what_a_version_does_not_tell_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_utils", object)
    capture = _answer(_program("def program(x):\n    return x * 2\n", "f32[2]"), tmp_path).capture
    assert (capture.graphs, capture.breaks, capture.recompiles) == (None, None, None)


def test_errors_of_eager_of_the_compiler_and_of_making_the_program_are_told(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("compiler", "load", "call")]
    for folder in folders:
        folder.mkdir()
    sources = ["import torch\n{}\ndef program(x):\n    {}return x * 2\n".format(*words) for words in
               (("", ""), ("torch.no_such_name", ""), ("", "x.no_such_method()\n    "))]  # fmt: skip
    backends = ["triage.tests.models.wrong_backends:refuses", "eager", "eager"]
    found = [
        _answer(_program(source, "f32[2]"), folder, backend)
        for source, folder, backend in zip(sources, folders, backends, strict=True)
    ]
    assert isinstance(found[0].eager, Returned)
    assert isinstance(found[0].compiled, Raised)
    assert found[0].compile_s is None
    assert isinstance(found[1].eager, Raised)
    assert (found[1].eager.exception.type_name, found[1].eager.exception.phase) == ("AttributeError", "load")
    assert isinstance(found[2].eager, Raised)
    assert found[2].eager.exception.phase == "call"


def test_an_option_that_a_version_lacks_is_an_error_of_the_compiled_program(tmp_path: Path) -> None:
    program = _program(
        "def program(x):\n    return x * 2\n", "f32[2]", config={"torch._dynamo.config.no_such_option": 1}
    )
    answer = _answer(program, tmp_path)
    assert isinstance(answer.eager, Returned)
    assert isinstance(answer.compiled, Raised)
    assert "no_such_option" in answer.compiled.exception.message


def test_a_missing_module_is_bad_input_and_no_change(tmp_path: Path) -> None:
    answer = _answer(_program("import no_such_module\ndef program(x):\n    return x\n", "f32[2]"), tmp_path)
    with pytest.raises(UsageError, match="ModuleNotFoundError: No module named 'no_such_module'"):
        check_answer(answer, "python")
    for other in (replace(answer, torch=""), replace(answer, eager=answer.compiled, death="ModuleNotFoundError: m")):
        with pytest.raises(UsageError):
            check_answer(other, "python")
    returned = _answer(_program("def program(x):\n    return x\n", "f32[2]"), tmp_path)
    check_answer(returned, "python")


def test_a_worker_that_dies_leaves_what_it_knew(tmp_path: Path) -> None:
    _told(_program("def program(x):\n    return x * 2\n", "f32[2]"), tmp_path)
    told = json.loads((tmp_path / "answer.json").read_text())
    told.pop("compiled")
    (tmp_path / "answer.json").write_text(json.dumps({**told, "stage": "compiled"}))
    died = read_answer(tmp_path, replace(_ENDED, code=-11), 60)
    assert isinstance(died.eager, Returned)
    assert isinstance(died.compiled, Crashed)
    assert (died.compiled.signal, died.death) == (11, "died of signal 11")
    late = read_answer(tmp_path, replace(_ENDED, code=None), 60)
    assert isinstance(late.compiled, TimedOut)
    assert late.death == "no end within 60 s"
    nothing = read_answer(tmp_path / "none", replace(_ENDED, code=1, errors="No module named 'torch'\n"), 60)
    assert (nothing.torch, nothing.death) == ("", "No module named 'torch'")


def test_what_is_shipped_imports_torch_numpy_and_what_is_shipped() -> None:
    shipped = {name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in worker.SHIPPED} | {
        "oracle"
    }
    for path in [Path(worker.__file__), *(_ROOT / name for name in worker.SHIPPED)]:
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                top = name.partition(".")[0]
                is_there = name in shipped if top == "oracle" else top in {"torch", "numpy", *sys.stdlib_module_names}
                assert is_there, f"{path.name} imports {name}"

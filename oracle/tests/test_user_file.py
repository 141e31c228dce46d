"""A user's own file as a program."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import pytest
import torch

from oracle.errors import UsageError
from oracle.observe import observe
from oracle.observe.outcome import Returned
from oracle.program.build import instantiate
from oracle.program.user_file import program_of_file

_MODEL = """
    import torch
    from neighbour import SCALE

    def half(x, scale=SCALE):
        return x / scale

    class Net(torch.nn.Module):
        def __init__(self, width=8):
            super().__init__()
            self.linear = torch.nn.Linear(width, 2)

        def forward(self, x):
            return self.linear(x)

    def make(width, bias=True):
        return torch.nn.Linear(width, 3, bias=bias)

    ready = Net()
    alias = half

    def batch():
        return torch.ones(4, 8)

    def both():
        return (torch.ones(2),), {"scale": 4.0}

    if __name__ == "__main__":
        open("never", "w")
    # a last comment"""


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "neighbour.py").write_text("SCALE = 2.0\n")
    (tmp_path / "model.py").write_text(textwrap.dedent(_MODEL))
    return str(tmp_path / "model.py")


def _results(target: str, **options: object) -> list[object]:
    program = program_of_file(target, **options)  # type: ignore[arg-type]
    outcome = observe(instantiate(program))
    assert isinstance(outcome, Returned)
    return [leaf.value for call in outcome.calls for leaf in call.outputs]


def test_a_function_with_inputs_as_text(model: str) -> None:
    first = _results(f"{model}:half", inputs="f32[3].values(2, 4, 6)")[0]
    assert isinstance(first, torch.Tensor)
    assert first.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("name", "inputs", "shape"),
    [("Net", "f32[5, 8]", (5, 2)), ("Net", "batch", (4, 2)), ("make(4)", "f32[1, 4]", (1, 3)), ("ready", "batch", (4, 2)),
     ("make(4, bias=False)", "f32[1, 4]", (1, 3)), ("make(int(SCALE) * 2)", "f32[1, 4]", (1, 3)), ("alias", "both", (2,))],
)  # fmt: skip
def test_modules_factories_and_functions_that_make_inputs(
    model: str, name: str, inputs: str, shape: tuple[int, ...]
) -> None:
    results = _results(f"{model}:{name}", inputs=inputs, calls=2)
    assert [value.shape for value in results if isinstance(value, torch.Tensor)] == [shape, shape]


def test_gradients_are_asked_for_where_something_requires_them(model: str) -> None:
    assert program_of_file(f"{model}:Net", inputs="f32[5, 8]").calls[0].backward
    assert not program_of_file(f"{model}:half", inputs="f32[5]").calls[0].backward
    assert program_of_file(f"{model}:half", inputs="f32[5].grad").calls[0].backward
    assert not program_of_file(f"{model}:Net", inputs="f32[5, 8]", backward=False).calls[0].backward


def test_lines_are_those_of_the_file(model: str) -> None:
    source = program_of_file(f"{model}:Net", inputs="batch").source
    assert source.startswith(Path(model).read_text())


def test_a_file_that_defines_inputs_needs_no_option(tmp_path: Path) -> None:
    path = tmp_path / "f.py"
    path.write_text("import torch\ndef inputs():\n    return torch.ones(2)\ndef f(x):\n    return x + 1\n")
    (first, *_) = _results(f"{path}:f")
    assert isinstance(first, torch.Tensor)
    assert first.tolist() == [2, 2]


@pytest.mark.parametrize(
    ("text", "name", "inputs", "message"),
    [
        ("def f(x): return x", "g", "f32[1]", r"no 'g' at module level.*one of f"),
        ("def f(x: return", "f", "f32[1]", r"line 1: .*a file of Python source"),
        ("import no_such_module\ndef f(x): return x", "f", "f32[1]", r"does not import: .*no_such_module"),
        ("def f(x, y): return x", "f", "f32[1]", r"raises in eager: TypeError.*correct --inputs"),
        ("def f(x): return x", "f", "", r"raises in eager: TypeError.*give the inputs"),
        ("import torch\ndef f(x): return x.to('meta')", "f", "f32[1]", r"tensors on the device meta"),
        (
            "import torch\nclass N(torch.nn.Module):\n    def __init__(self, n): super().__init__()", "N", "f32[1]",
            r"cannot be made without arguments.*wrong\.py:N\(8\)",
        ),
        ("def batch(): return 1\ndef f(x): return x", "f", "bacth", r"no 'bacth' at module level.*did you mean batch"),
        ("def f(x): return x", "f", "f31[1]", r"a tensor such as f32\[4, 8\]"),
        ("def f(x):\n    open('/tmp/torch_oracle_effect', 'w')\n    return x", "f", "f32[1]", r"side effects: writes /tmp"),
        ("import subprocess\nsubprocess.run(['true'])\ndef f(x): return x", "f", "f32[1]", r"side effects: subprocess.Popen"),
        ("import os\ndef f(x): os._exit(3)", "f", "f32[1]", r"the process died in eager"),
        ("def f(x): return x\ng = 3", "f(os.system('true'))", "f32[1]", r"f\(os.*raises NameError.*names of the file"),
        ("def f(x): return x\ng = 3", "f(g, )(3)", "f32[1]", r"one call, such as make\(3"),
        ("def f(x): return x\ng = 3", "f(g, 3 4)", "f32[1]", r"a call in Python, such as make\(3"),
        ("def f(g): raise ValueError('odd')\ng = 3", "f(g)", "f32[1]", r"f\(g\) raises ValueError: odd.*arguments"),
        ("import torch\ndef f(): return torch.nn.Linear(2, 2)", "f", "", r"returns a module.*wrong\.py:f\(\)'"),
        ("import torch\ndef f(): return torch.nn.Linear(2, 2)", "f", "f32[2]", r"takes no arguments.*wrong\.py:f\(\)'"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_program_is_refused_with_the_reason(
    tmp_path: Path, text: str, name: str, inputs: str, message: str
) -> None:
    path = tmp_path / "wrong.py"
    path.write_text(text)
    with pytest.raises(UsageError, match=f"(?s){message}"):
        program_of_file(f"{path}:{name}", inputs=inputs)


def test_a_script_that_saves_a_model_is_refused_and_does_not_run_outside_the_trial(tmp_path: Path) -> None:
    saved, path = tmp_path / "net.pt", tmp_path / "train.py"
    path.write_text(f"import os, torch\nnet = torch.nn.Linear(2, 2)\ntorch.save(os.getpid(), {str(saved)!r})\n")
    with pytest.raises(UsageError, match=r"side effects: writes .*net\.pt"):
        program_of_file(f"{path}:net", inputs="f32[2]")
    assert torch.load(saved) != os.getpid()


def test_effects_can_be_allowed(tmp_path: Path) -> None:
    path = tmp_path / "f.py"
    path.write_text(f"def f(x):\n    open({str(tmp_path / 'log')!r}, 'a').write('x')\n    return x\n")
    assert program_of_file(f"{path}:f", inputs="f32[1]", allow_effects=True).calls


def test_a_large_model_is_told_to_take_long(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "f.py"
    path.write_text("import torch\ndef f(x):\n    return x[:1]\n")
    program_of_file(f"{path}:f", inputs="bool[1000, 1000]")
    assert not capsys.readouterr().err
    program_of_file(f"{path}:f", inputs="bool[2000, 2000]")
    assert "4 million numbers" in capsys.readouterr().err


def test_a_raise_in_a_neighbour_is_told_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "raising_neighbour.py").write_text("def g(x):\n    return x.shape[7]\n")
    path = tmp_path / "f.py"
    path.write_text("import raising_neighbour\ndef f(x):\n    return raising_neighbour.g(x)\n")
    with pytest.raises(UsageError, match=r"f\.py:3, in f(?s:.*)raising_neighbour\.py:2, in g: return x\.shape\[7\]"):
        program_of_file(f"{path}:f", inputs="f32[2]")


def test_a_target_of_another_form_and_a_missing_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"FILE\.py:NAME"):
        program_of_file("model:Net")
    with pytest.raises(UsageError, match="no file"):
        program_of_file(f"{tmp_path}/none.py:f")


def test_what_a_program_did_before_it_raised_is_told(tmp_path: Path) -> None:
    path, left = tmp_path / "model.py", tmp_path / "left"
    path.write_text(f"def f(x):\n    open({str(left)!r}, 'w').close()\n    return x.no_such_method()\n")
    with pytest.raises(UsageError, match=rf"raises in eager: AttributeError: (?s:.*)before that: writes {left}"):
        program_of_file(f"{path}:f", inputs="f32[2]")
    path.write_text(f"open({str(left)!r}, 'w').close()\nimport no_such_module\n\ndef f(x):\n    return x\n")
    with pytest.raises(UsageError, match=rf"does not import: ModuleNotFoundError(?s:.*)before that: writes {left}"):
        program_of_file(f"{path}:f", inputs="f32[2]")


@pytest.mark.parametrize("name", ["Huge", "huge"])
def test_a_program_that_does_not_fit_into_memory_is_told_apart_from_a_wrong_one(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(
        textwrap.dedent("""
            import torch

            class Huge(torch.nn.Module):
                def __init__(self):
                    super().__init__()
                    self.weight = torch.nn.Parameter(torch.empty(1 << 50))

                def forward(self, x):
                    return x

            def huge(x):
                return x + torch.empty(1 << 50)
        """)
    )
    with pytest.raises(UsageError, match=r"needs more memory than there is: .*4503599627370496 bytes") as raised:
        program_of_file(f"{path}:{name}", inputs="f32[2]")
    assert "does not import" not in str(raised.value)


@pytest.mark.parametrize("is_package", [True, False])  # whether the folders have an __init__.py
def test_a_file_in_a_package_imports_its_neighbours_by_relative_imports(is_package: bool, tmp_path: Path) -> None:
    blocks = tmp_path / f"oracle_net_{is_package}" / "blocks"
    blocks.mkdir(parents=True)
    if is_package:
        (blocks / "__init__.py").write_text("")
        (blocks.parent / "__init__.py").write_text("from .blocks.mlp import scaled\n")
    (blocks.parent / "config.py").write_text("WIDTH = 3\n")
    (blocks / "logging.py").write_text("FACTOR = 2\n")  # not Python's
    path = blocks / "mlp.py"
    path.write_text(
        "from __future__ import annotations\nimport logging\nfrom ..config import WIDTH\n"
        "from . import (\n    logging as own,\n)\n\n\n"
        "def scaled(x):\n    from .. import config\n    assert logging.WARNING == 30\n"
        "    return x * WIDTH * own.FACTOR * config.WIDTH\n"
    )
    (first, *_) = _results(f"{path}:scaled", inputs="f32[1].values(1)")
    assert isinstance(first, torch.Tensor)
    assert first.tolist() == [18]
    source = program_of_file(f"{path}:scaled", inputs="f32[1]").source
    assert source.splitlines().index("def scaled(x):") == path.read_text().splitlines().index("def scaled(x):")

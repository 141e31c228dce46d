"""Configurations of kernels are chosen by measurement, kept on disk, and change no result beyond the order of sums."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from refimpl.codegen import autotune
from refimpl.codegen.autotune import ChoicesState, Machine, TunerState, by_turns, machine_of, name_of, scratch_arguments
from refimpl.codegen.compile import compile_graph
from refimpl.codegen.configurations import Configuration, configuration
from refimpl.codegen.decompositions import codegen_decompositions
from refimpl.codegen.emulator import KernelError
from refimpl.codegen.launch_plan import CompiledGraph
from refimpl.codegen.levels.emulated import EmulatorLevel
from refimpl.codegen.options import CodegenOptions
from refimpl.pipeline import compile_aot
from refimpl.tests.codegen.checks import compiled_with_graphs

_MACHINE = Machine(device="a GPU", capability="9.0", torch="2.13.0", triton="3.7.1")


class _Bench:
    """Takes the place of a clock: runs every trial, and says that one of them is the fastest."""

    def __init__(self, fastest: int) -> None:
        self.fastest = fastest
        self.calls = 0

    def __call__(self, trials: Sequence[autotune.Trial]) -> list[float]:
        self.calls += 1
        for trial in trials:
            for _ in range(2):
                trial.prepare()
                trial.run()
        return [1.0 if at == self.fastest % len(trials) else 2.0 for at in range(len(trials))]


def _compiled(
    function: Callable[..., Any], tuner: TunerState, *, dynamic: bool = False
) -> tuple[Any, list[CompiledGraph]]:
    options, level = CodegenOptions(autotune=True), EmulatorLevel(races=True)
    return compiled_with_graphs(
        function, dynamic=dynamic, partition="default", level=level, options=options, tuner=tuner
    )


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "points": (lambda x: (x * 2 - 1).relu(), (37, 41)),
    "over what is read": (lambda x: x.sort(1)[0] * 2 - 1, (37, 41)),
    "rows": (lambda x: F.layer_norm(x, x.shape[1:]).softmax(1), (9, 130)),
    "long rows": (lambda x: x.softmax(1), (3, 2100)),
    "columns": (lambda x: x.softmax(0), (1300, 5)),
    "transposed": (lambda x: x.t().contiguous() + x.t().sum(0), (40, 70)),
    "matrix product": (lambda x: (x @ x.t() + 1).relu(), (40, 24)),
    "places": (lambda x: x.argmax(1), (7, 2100)),
}


@pytest.mark.fractional
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "symbolic"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_configuration_gives_the_same_result(name: str, tmp_path: Path, *, dynamic: bool) -> None:
    function, shape = PROGRAMS[name]
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    expected = function(x)
    count = 2
    fastest = 0
    while fastest < count:
        bench = _Bench(fastest)
        compiled, graphs = _compiled(function, TunerState(bench, tmp_path / str(fastest)), dynamic=dynamic)
        torch.testing.assert_close(compiled(x), expected, rtol=1e-4, atol=1e-4)
        count = max(len(printed.configurations) for graph in graphs for printed in graph.printed)
        assert bench.calls > 0
        fastest += 1
    assert count > 1


def test_a_choice_is_measured_once_and_found_again(tmp_path: Path) -> None:
    function, shape = PROGRAMS["points"]
    bench = _Bench(1)
    for _ in range(2):  # as two processes
        compiled, (*_,) = _compiled(function, TunerState(bench, tmp_path))
        for _ in range(3):
            compiled(torch.randn(shape))
    assert bench.calls == 1
    (file,) = (tmp_path / "choices").iterdir()
    (choice,) = json.loads(file.read_text())["choices"].values()
    assert list(choice["milliseconds"].values())[1] == 1.0
    assert choice["choice"] == list(choice["milliseconds"])[1]


def test_sizes_of_another_kind_are_measured_anew(tmp_path: Path) -> None:
    bench = _Bench(0)
    compiled, _ = _compiled(PROGRAMS["points"][0], TunerState(bench, tmp_path), dynamic=True)
    for rows in (1100, 1101, 1200, 20000):
        compiled(torch.randn(rows, 3))
    assert bench.calls == 2


def test_on_a_cpu_nothing_is_measured(tmp_path: Path) -> None:
    function, shape = PROGRAMS["points"]
    compiled, _ = _compiled(function, TunerState(None, tmp_path))
    torch.testing.assert_close(compiled(x := torch.randn(shape)), function(x))
    assert not list(tmp_path.iterdir())


def _convolution(x: torch.Tensor) -> torch.Tensor:
    return F.conv2d(x.view(1, 2, 6, 6), x.view(4, 2, 3, 3)) + 1


@pytest.mark.parametrize("choice", ["template", "extern"])
@pytest.mark.parametrize(
    ("function", "operator", "shape"),
    [(lambda x: (x @ x.t()).relu(), "aten.mm.default", (5, 7)), (_convolution, "aten.convolution.default", (72,))],
    ids=["matrix product", "convolution"],
)
def test_a_product_is_a_kernel_or_a_call_as_is_measured(
    function: Callable[..., Any], operator: str, shape: tuple[int, ...], choice: str, tmp_path: Path
) -> None:
    measured: list[int] = []

    def bench(trials: Sequence[autotune.Trial]) -> list[float]:
        measured.append(len(trials))
        for trial in trials:
            trial.run()
        return [1.0 if at == (choice == "extern") else 2.0 for at in range(len(trials))]

    x = torch.randn(shape)
    for _ in range(2):
        compiled, graphs = _compiled(function, TunerState(bench, tmp_path))
        torch.testing.assert_close(compiled(x), function(x), rtol=1e-4, atol=1e-4)
        assert graphs[-1].fallbacks[operator] == (choice == "extern")
    (file,) = (tmp_path / "choices").iterdir()
    assert sum(kept["choice"] == choice for kept in json.loads(file.read_text())["choices"].values()) == 1
    assert 2 in measured


# -------------------------------------------------------------------------------------------------------------------- on disk


def test_processes_keep_their_choices_side_by_side(tmp_path: Path) -> None:
    first, second = (ChoicesState(_MACHINE, tmp_path) for _ in range(2))
    assert first.keep("a", ["x", "y"], [2.0, 1.0]) == 1
    assert second.keep("b", ["x", "y"], [1.0, float("inf")]) == 0
    third = ChoicesState(_MACHINE, tmp_path)
    assert (third.find("a", ["x", "y"]), third.find("b", ["x", "y"]), third.find("c", ["x"])) == (1, 0, None)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "damaged"),
        ("[]", "of another format"),
        (json.dumps({"format": 0, "machine": {}, "choices": {}}), "of another format"),
    ],
)
def test_a_damaged_or_foreign_file_is_ignored_with_a_warning(tmp_path: Path, text: str, why: str) -> None:
    choices = ChoicesState(_MACHINE, tmp_path)
    choices.keep("a", ["x", "y"], [2.0, 1.0])
    choices.path.write_text(text)
    with pytest.warns(UserWarning, match=why):
        again = ChoicesState(_MACHINE, tmp_path)
    assert again.find("a", ["x", "y"]) is None


def test_an_unknown_choice_is_ignored_with_a_warning(tmp_path: Path) -> None:
    choices = ChoicesState(_MACHINE, tmp_path)
    choices.keep("a", ["x", "y"], [2.0, 1.0])
    with pytest.warns(UserWarning, match="a choice that is not among"):
        assert choices.find("a", ["x", "z"]) is None


def test_choices_are_of_one_machine_and_its_versions(tmp_path: Path) -> None:
    machine = machine_of(torch.device("cpu"))
    assert (machine.device, machine.torch) == ("cpu", torch.__version__)
    ChoicesState(_MACHINE, tmp_path).keep("a", ["x", "y"], [2.0, 1.0])
    others = [
        Machine(device="a GPU", capability="9.0", torch="2.13.0", triton="3.6.0"),
        Machine(device="a GPU", capability="8.0", torch="2.13.0", triton="3.7.1"),
    ]
    assert all(ChoicesState(other, tmp_path).find("a", ["x", "y"]) is None for other in others)


def test_configurations_have_names_of_their_own() -> None:
    made = [
        configuration(2, XBLOCK=8), configuration(4, XBLOCK=8), configuration(2, XBLOCK=16), configuration(2, YBLOCK=8),
        Configuration((("XBLOCK", 8),), 2, 3),
    ]  # fmt: skip
    assert len({name_of(one) for one in made}) == len(made)


# ------------------------------------------------------------------------------------------------------------------ measuring


def test_trials_write_into_copies() -> None:
    x, places = torch.arange(6.0), torch.arange(6)
    made, prepare = scratch_arguments([x, places, x[:3], 7], [0, 1])
    assert made[3] == 7
    made[0].fill_(-1)
    made[1].fill_(9)
    assert made[2].tolist() == [-1, -1, -1]  # what is one memory stays one
    assert (x.tolist(), places.tolist()) == (list(range(6)), list(range(6)))
    prepare()
    assert (made[0].tolist(), made[1].tolist(), made[2].tolist()) == (x.tolist(), places.tolist(), [0, 1, 2])


def test_medians_are_of_rounds_by_turns_and_what_cannot_run_is_no_choice() -> None:
    order: list[int] = []
    clock: Iterator[float] = iter([5.0, 1.0, 3.0, 2.0, 4.0, 9.0])

    def fails() -> None:
        raise KernelError("k", seen="too much shared memory", expected="less", do="choose another")

    def measure(trial: autotune.Trial) -> Callable[[], float]:
        trial.run()
        time = next(clock)
        return lambda: time

    trials = [autotune.Trial(lambda: None, lambda at=at: order.append(at)) for at in range(2)]
    trials.insert(1, autotune.Trial(lambda: None, fails))
    assert by_turns(trials, measure, lambda: None, 3) == [4.0, float("inf"), 2.0]
    assert order == [0, 1] + [0, 1] * 3


def test_if_nothing_can_run_the_launch_says_why(tmp_path: Path) -> None:
    tuner = TunerState(lambda trials: [float("inf")] * len(trials), tmp_path)
    trials = [autotune.Trial(lambda: None, lambda: None)] * 2
    assert tuner.choose("a", torch.device("cpu"), ["x", "y"], lambda: trials) == 0
    assert not list(tmp_path.iterdir())


@pytest.mark.gpu
def test_configurations_are_measured_on_a_gpu(tmp_path: Path) -> None:
    tuner = TunerState(None, tmp_path)

    def backend(graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> CompiledGraph:
        return compile_graph(graph_module, example_inputs, options=CodegenOptions(autotune=True), tuner=tuner)

    for function, shape in PROGRAMS.values():
        x = torch.randn(shape, device="cuda")
        compiled = compile_aot(function, backend=backend, decompositions=codegen_decompositions())
        torch.testing.assert_close(compiled(x), function(x), rtol=1e-3, atol=1e-3)
    (file,) = (tmp_path / "choices").iterdir()
    assert json.loads(file.read_text())["choices"]

"""Whatever changes the graphs of a compile changes its key: each change of one thing misses what was kept without it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import refimpl
from refimpl.aot.options import aot_settings
from refimpl.aot.partition import min_cut_rematerialization_partition
from refimpl.aot.partition.recomputation import partition_options
from refimpl.compile_cache import environment
from refimpl.tests.compile_cache.looking_up import compiled, counted
from refimpl.trace.decompositions import decomposition_table

Block = contextlib.AbstractContextManager[Any]
_silu = torch.ops.aten.silu.default


class Program(nn.Module):
    """What the other programs differ from in one thing."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.weight = nn.Parameter(torch.randn(3, 3))
        self.also = nn.Parameter(torch.randn(3, 3))
        self.register_buffer("scale", torch.ones(3))

    def forward(self, x: Tensor, y: Tensor) -> Any:
        return (nn.functional.silu(torch.mm(x, self.weight) * 2).mul(self.scale) + y,)


class OtherOperator(Program):
    def forward(self, x: Tensor, y: Tensor) -> Any:
        return (nn.functional.gelu(torch.mm(x, self.weight) * 2).mul(self.scale) + y,)


class OtherConstant(Program):
    def forward(self, x: Tensor, y: Tensor) -> Any:
        return (nn.functional.silu(torch.mm(x, self.weight) * 3).mul(self.scale) + y,)


class OtherTypeOfConstant(Program):
    def forward(self, x: Tensor, y: Tensor) -> Any:
        return (nn.functional.silu(torch.mm(x, self.weight) * 2.0).mul(self.scale) + y,)


class OtherOrder(Program):
    def forward(self, x: Tensor, y: Tensor) -> Any:
        return (y + nn.functional.silu(torch.mm(x, self.weight) * 2).mul(self.scale),)


class OtherMethod(Program):
    def forward(self, x: Tensor, y: Tensor) -> Any:
        return (nn.functional.silu(torch.mm(x, self.weight) * 2).sub(self.scale) + y,)


class KeywordArgument(Program):
    def forward(self, x: Tensor, y: Tensor) -> Any:
        return (nn.functional.silu(torch.mm(x, self.weight) * 2, inplace=True).mul(self.scale) + y,)


class OtherState(Program):
    def forward(self, x: Tensor, y: Tensor) -> Any:
        return (nn.functional.silu(torch.mm(x, self.also) * 2).mul(self.scale) + y,)


class MoreResults(Program):
    def forward(self, x: Tensor, y: Tensor) -> Any:
        return (nn.functional.silu(torch.mm(x, self.weight) * 2).mul(self.scale) + y, x)


class WritesToInput(Program):
    def forward(self, x: Tensor, y: Tensor) -> Any:
        return (y.add_(nn.functional.silu(torch.mm(x, self.weight) * 2).mul(self.scale)),)


def inputs() -> list[Tensor]:
    return [torch.arange(9.0).view(3, 3).clone(), torch.ones(3, 3)]


def _of_x(change: Callable[[Tensor], Tensor]) -> Callable[[], list[Tensor]]:
    return lambda: [change(inputs()[0]), inputs()[1]]


def _same_twice() -> list[Tensor]:
    x, _ = inputs()
    return [x, x]


def _parts_of_one() -> list[Tensor]:
    whole = torch.arange(18.0).view(6, 3)
    return [whole[:3], whole[3:]]


def _made_in_inference_mode(x: Tensor) -> Tensor:
    with torch.inference_mode():
        return x.clone()


def _with_room(x: Tensor) -> Tensor:
    return torch.arange(12.0)[:9].view(3, 3).detach()


def _own_silu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


@dataclass(frozen=True, kw_only=True)
class Change:
    """A compile that differs in one thing. setting: a block in which it compiles."""

    name: str
    program: Callable[[], nn.Module] = Program
    inputs: Callable[[], list[Tensor]] = inputs
    options: dict[str, Any] = field(default_factory=dict)
    setting: Callable[[pytest.MonkeyPatch], Block] = lambda patch: contextlib.nullcontext()
    graph: Callable[[torch.fx.GraphModule], None] = lambda graph: None


def _changed(set_value: Callable[[Any], Any], value: Any, before: Any) -> Callable[[pytest.MonkeyPatch], Block]:
    @contextlib.contextmanager
    def block() -> Iterator[None]:
        set_value(value)
        try:
            yield
        finally:
            set_value(before)

    return lambda patch: block()


def _patched(owner: Any, name: str, value: Any) -> Callable[[pytest.MonkeyPatch], Block]:
    @contextlib.contextmanager
    def block(patch: pytest.MonkeyPatch) -> Iterator[None]:
        with patch.context() as inner:
            inner.setattr(owner, name, value)
            yield

    return block


def _other_trace(graph: torch.fx.GraphModule) -> None:
    next(iter(graph.graph.nodes)).meta["stack_trace"] = '  File "other.py", line 1, in forward'


def _rules_swapped(patch: pytest.MonkeyPatch) -> Block:
    """Another rule of refimpl in the place of one."""
    return _changed(
        lambda rule: decomposition_table.__setitem__(_silu, rule),
        decomposition_table[torch.ops.aten.hardswish.default],
        decomposition_table[_silu],
    )(patch)


def _annotated(graph: torch.fx.GraphModule) -> None:
    for node in graph.graph.nodes:
        node.meta["custom"] = {"part": 1}


CHANGES = (
    Change(name="another operator", program=OtherOperator),
    Change(name="another constant", program=OtherConstant),
    Change(name="a constant of another type", program=OtherTypeOfConstant),
    Change(name="operands in another order", program=OtherOrder),
    Change(name="another method", program=OtherMethod),
    Change(name="a keyword argument", program=KeywordArgument),
    Change(name="one result more", program=MoreResults),
    Change(name="a write to an input", program=WritesToInput),
    Change(name="another parameter", program=OtherState),
    Change(name="another size", inputs=lambda: [torch.ones(4, 3), torch.ones(4, 3)]),
    Change(name="other strides", inputs=_of_x(Tensor.t)),
    Change(name="another offset", inputs=_of_x(lambda x: torch.arange(12.0)[3:].view(3, 3))),
    Change(name="a larger storage", inputs=_of_x(_with_room)),
    Change(name="another dtype", inputs=lambda: [inputs()[0], inputs()[1].double()]),
    Change(name="a gradient", inputs=_of_x(lambda x: x.requires_grad_())),
    Change(name="a gradient of a tensor that is no leaf", inputs=_of_x(lambda x: x.requires_grad_().clone())),
    Change(name="a parameter", inputs=_of_x(lambda x: nn.Parameter(x, requires_grad=False))),
    Change(name="a view", inputs=_of_x(lambda x: x.view(3, 3))),
    Change(name="a negated view", inputs=_of_x(lambda x: torch._neg_view(x))),
    Change(name="an inference tensor", inputs=_of_x(_made_in_inference_mode)),
    Change(name="one tensor twice", inputs=_same_twice),
    Change(name="parts of one storage", inputs=_parts_of_one),
    Change(name="no_grad mode", setting=lambda patch: torch.no_grad()),
    Change(name="inference mode", setting=lambda patch: torch.inference_mode()),
    Change(name="autocast", setting=lambda patch: torch.autocast("cpu", torch.bfloat16)),
    Change(name="autocast to another dtype", setting=lambda patch: torch.autocast("cpu", torch.float16)),
    Change(name="another default dtype", setting=_changed(torch.set_default_dtype, torch.float64, torch.float32)),
    Change(name="another default device", setting=lambda patch: torch.device("meta")),
    Change(name="deterministic algorithms", setting=_changed(torch.use_deterministic_algorithms, True, False)),
    Change(name="other kernels of attention", setting=_changed(torch.backends.cuda.enable_flash_sdp, False, True)),
    Change(name="without oneDNN", setting=lambda patch: torch.backends.mkldnn.flags(enabled=False)),
    Change(
        name="another precision of products", setting=_changed(torch.set_float32_matmul_precision, "high", "highest")
    ),
    Change(name="another partition", options={"partition_fn": min_cut_rematerialization_partition}),
    Change(name="another budget", setting=lambda patch: partition_options(memory_budget=0.5)),
    Change(name="decompositions", options={"decompositions": {_silu: decomposition_table[_silu]}}),
    Change(name="the table of rules", options={"decompositions": decomposition_table}),
    Change(name="views that are replayed", setting=lambda patch: torch.autograd._force_original_view_tracking(True)),
    Change(name="writes that stay in the graph", options={"keep_inference_input_mutations": True}),
    Change(name="writes of the program", options={"disable_functionalization": True}),
    Change(name="another version of torch", setting=_patched(torch, "__version__", "2.99.0")),
    Change(name="other sources of refimpl", setting=_patched(environment, "source_hash", lambda: "0")),
    Change(name="another format", setting=_patched(environment, "FORMAT", environment.FORMAT + 1)),
    Change(name="another processor", setting=_patched(torch.backends.cpu, "get_cpu_capability", lambda: "OTHER")),
    Change(name="another version of sympy", setting=_patched(environment.sympy, "__version__", "0.1")),
    Change(name="a graph in eval mode", graph=lambda graph: graph.eval() and None),
    Change(name="another line of the program", graph=_other_trace),
    Change(name="an annotation", graph=_annotated),
    Change(name="detection of anomalies", setting=lambda patch: torch.autograd.detect_anomaly(check_nan=False)),
)


def _counts(change: Change, folder: Path, patch: pytest.MonkeyPatch) -> dict[str, int]:
    graph = torch.fx.symbolic_trace(change.program())
    change.graph(graph)
    args = change.inputs()
    with change.setting(patch):
        return compiled(graph, args, folder, **change.options)[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what was kept of the program without a change."""
    path = tmp_path_factory.mktemp("cache")
    torch.set_float32_matmul_precision("highest")  # sets the newer switches too, to what the changes are undone to
    with pytest.MonkeyPatch.context() as patch:
        assert _counts(Change(name="none"), path, patch) == {"miss": 1, "saved": 1}
    return path


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.name)
def test_one_change_misses(change: Change, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled once more with the change, it is a hit: so it was the change that missed, and not something else."""
    assert _counts(change, folder, monkeypatch) == {"miss": 1, "saved": 1}
    assert _counts(change, folder, monkeypatch) == {"hit": 1}
    assert _counts(Change(name="none"), folder, monkeypatch) == {"hit": 1}


def test_values_of_tensors_are_no_part_of_the_key(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Change(name="other values", inputs=lambda: [torch.randn(3, 3), torch.randn(3, 3)])
    assert _counts(other, folder, monkeypatch) == {"hit": 1}


def test_rules_in_the_table_are_part_of_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs may change the public table: it has another function for the same operator then."""
    options = {"decompositions": decomposition_table}
    usual, other = Change(name="", options=options), Change(name="", options=options, setting=_rules_swapped)
    counts = [_counts(change, tmp_path, monkeypatch) for change in (usual, other, usual, other)]
    assert counts == [{"miss": 1, "saved": 1}] * 2 + [{"hit": 1}] * 2


@pytest.mark.skipif(not hasattr(torch.backends.mkldnn, "fp32_precision"), reason="this torch has no such switch")
def test_newer_switches_of_precision(tmp_path: Path, run_forked: Callable[[str], Any]) -> None:
    """torch refuses to read the older switches while the newer ones say what these cannot."""
    code = (
        "import torch\n"
        "from pathlib import Path\n"
        "from refimpl.tests.compile_cache.looking_up import compiled\n"
        "for precision in ('ieee', 'bf16', 'bf16'):\n"
        "    torch.backends.mkldnn.matmul.fp32_precision = precision\n"
        f"    print(compiled(lambda x: (x @ x,), [torch.ones(3, 3)], Path({str(tmp_path / 'kept')!r}))[1])"
    )
    child = run_forked(code)
    assert child.returncode == 0, child.stderr[-2000:]
    new = "{'miss': 1, 'saved': 1}"
    assert child.stdout.splitlines() == [new, new, "{'hit': 1}"]


# ------------------------------------------------------------------------------------------------------- symbolic sizes


def _captured(
    function: Callable[..., Any], args: Sequence[Any], folder: Path, **options: Any
) -> tuple[Any, dict[str, int]]:
    """A function captured and compiled anew."""
    refimpl.reset()
    with aot_settings(enable_autograd_cache=True, autograd_cache_folder=str(folder)):
        call = refimpl.compile(function, backend="aot_eager", **options)
        return counted(lambda: call(*args))


def test_symbols_are_found_with_other_sizes(tmp_path: Path) -> None:
    """A symbol's hint is no part of the key. Strides 4 and 6 are products of the same symbols."""

    def function(x: Tensor) -> Tensor:
        return (x * x.shape[0]).sin()

    for shape, counts in (((3, 4), {"miss": 1, "saved": 1}), ((5, 6), {"hit": 1})):
        x = torch.randn(shape, requires_grad=True)
        result, seen = _captured(function, [x], tmp_path, dynamic=True)
        assert seen == counts
        assert torch.equal(result, function(x))
        result.sum().backward()
        assert x.grad is not None
        assert torch.allclose(x.grad, (x * shape[0]).cos() * shape[0])
    assert _captured(function, [torch.randn(3, 4, requires_grad=True)], tmp_path, dynamic=False)[1] == {
        "miss": 1,
        "saved": 1,
    }


def test_facts_about_symbols_are_part_of_the_key(tmp_path: Path) -> None:
    """A branch adds a guard before the graph is compiled."""

    def bounded(names: tuple[str, ...]) -> Callable[..., Any]:
        return lambda x: x.sin() if x.shape[0] > len(names) else x

    ways = (("a", "b"), ("a", "b", "c"), ("a", "b"))
    found = [_captured(bounded(names), [torch.randn(7, 4)], tmp_path, dynamic=True)[1] for names in ways]
    assert found == [{"miss": 1, "saved": 1}, {"miss": 1, "saved": 1}, {"hit": 1}]

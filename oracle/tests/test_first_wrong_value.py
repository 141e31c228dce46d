"""The first wrong value of a program is named by module, source line and operator, for wrong operators planted in backends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func
from torch import Tensor, fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch.nn import functional as F

from oracle import case
from oracle.localisation.values.first_wrong import WrongValue, first_wrong_value
from oracle.program import Call, ComparePolicy, Program
from oracle.program.build import Instance, LiveProgram, instantiate
from oracle.subjects.registry import of_callable, resolve

Backend = Callable[[fx.GraphModule, list[Any]], Callable[..., Any]]
FILE = Path(__file__)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.norm2 = nn.LayerNorm(width)
        self.mix = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.mix(self.norm1(x))
        weights = torch.softmax(h @ h.transpose(-1, -2), dim=-1)
        x = x + weights @ h
        return x + F.gelu(self.norm2(x))


class Encoder(nn.Module):
    """A transformer encoder with its loss."""

    def __init__(self, depth: int = 1) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 4)
        self.layers = nn.ModuleList(Block(4) for _ in range(depth))

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(x.mean(1), labels)


class Deep(Encoder):
    def __init__(self) -> None:
        super().__init__(depth=3)


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.25), nn.GELU())

    def forward(self, x: Tensor) -> Tensor:
        return self.parts(x)


class Broken(nn.Module):
    """A module whose forward Dynamo compiles in two graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Tensor:
        x = x * 2
        torch._dynamo.graph_break()
        return self.norm(x).sin()


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([Broken(), Broken()])

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x)
        return x


def cell(steps: Tensor, w: Tensor, u: Tensor) -> Tensor:
    h = c = torch.zeros(2, 2)
    for x in steps:
        i, f, g, o = (x @ w + h @ u).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.relu()
    return h


def integers(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    quotients = a // b
    sums = a.cumsum(0)
    return torch.where(sums < 0, quotients, sums).sort().values, sums.unique()


def in_place(x: Tensor, w: Tensor) -> Tensor:
    h = x * 2
    h.mul_(w)
    h += 1
    h[0] = w.sum()
    return h.sum(0)


TOKENS = (torch.tensor([[0, 7, 3], [10, 6, 2]]), torch.tensor([1, 3]))
STEPS = torch.linspace(-2, 1, 8).reshape(2, 2, 2)
MATRIX = torch.linspace(-1, 2, 16).reshape(2, 8)
MATRICES = (STEPS, MATRIX, MATRIX.flip(1).sin())
ROWS = torch.linspace(-1, 2, 12).reshape(3, 4)
WEIGHT = torch.tensor([0.5, 1.5, -1.0, 2.0])


@pytest.fixture(autouse=True)
def _few_runs_under_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted errors are far larger than rounding errors, so two runs show how large those are."""
    monkeypatch.setattr(case, "NOISE_RUNS", 2)
    monkeypatch.setattr(case, "LOUD_NOISE_RUNS", 2)


def live(target: Callable[..., Any], *args: Any, backward: bool = False) -> Callable[[], Instance]:
    """`make` of a function, or of a class of modules."""
    program = Program(
        name="live", source="", calls=(Call(backward=backward),), is_module=isinstance(target, type), seed=3
    )
    make_target = target if isinstance(target, type) else lambda: target
    return LiveProgram(program=program, make_target=make_target, args=args, kwargs={}).instantiate


def nodes_of(gm: fx.GraphModule, name: str) -> list[fx.Node]:
    return [node for node in gm.graph.nodes if name == getattr(node.target, "__name__", node.target)]


def planted(name: str, wrong: Callable[..., Any], *, number: int | None = None) -> Backend:
    """A backend that calls `wrong(right, *args)` for each operator of this name, or only for the one of this number."""

    def backend(gm: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        named = nodes_of(gm, name)
        for node in named if number is None else named[number : number + 1]:
            right: Any = getattr(Tensor, node.target) if isinstance(node.target, str) else node.target

            def call(*args: Any, right: Callable[..., Any] = right, **kwargs: Any) -> Any:
                return wrong(right, *args, **kwargs)

            node.op, node.target = "call_function", call
        gm.recompile()
        return gm.forward

    return backend


def right_backend(gm: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    return gm.forward


def one_element_off(right: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
    result = right(*args, **kwargs)
    return result + torch.eye(result.numel(), 1, dtype=result.dtype).reshape(result.shape)


def wrong_gradient(right: Callable[..., Tensor], x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """The right result, with a gradient for `x` that is 1 % too large."""
    result = right(x, *args, **kwargs)
    return result + 0.01 * (right(x, *args, **kwargs) - right(x.detach(), *args, **kwargs))


def first(make: Callable[[], Instance], backend: Backend, **options: Any) -> WrongValue | None:
    return first_wrong_value(make, of_callable(backend), **options)


def described(found: WrongValue | None) -> str:
    return "not found" if found is None else found.describe()


def line_of(text: str) -> str:
    """ "file.py:41" of the only line of this file with this text."""
    (number,) = [number for number, line in enumerate(FILE.read_text().splitlines(), 1) if line.strip() == text]
    return f"{FILE.name}:{number}"


def test_a_right_backend_has_no_wrong_value() -> None:
    assert first(live(Encoder, *TOKENS, backward=True), right_backend) is None


def test_a_graph_that_is_wrong_with_its_values_returned_is_compiled_once() -> None:
    compiled: list[int] = []
    wrong = planted("layer_norm", one_element_off, number=0)

    def counting(gm: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        compiled.append(len(gm.graph.nodes))
        return wrong(gm, example_inputs)

    found = first(live(Deep, *TOKENS), counting)
    assert found is not None
    assert found.operator == "layer_norm"
    assert len(compiled) == 1
    assert len(found.verdict.also) == 20  # of more than that


def test_a_graph_that_is_wrong_only_with_its_values_returned_is_not_blamed() -> None:
    def wrong_with_many_results(gm: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            results = gm.forward(*args)
            return (results[0] + 1, *results[1:]) if len(results) > 1 else results

        return run

    assert first(live(Encoder, *TOKENS), wrong_with_many_results) is None


def test_layer_norm_in_the_last_layer_of_an_encoder() -> None:
    found = first(live(Deep, *TOKENS), planted("layer_norm", one_element_off, number=4))
    line = "h = self.mix(self.norm1(x))"
    assert described(found) == f"layers.2.norm1, {line_of(line)}, layer_norm"
    assert found is not None
    assert (found.line, found.direction, found.is_alone) == (line, "forward", False)
    assert found.symptom.startswith(f"call 0: output[{found.position}]")
    worst = found.verdict.worst
    assert worst is not None
    assert float(worst.subject) - float(worst.eager) > 0.9


def test_softmax_along_the_wrong_dimension() -> None:
    found = first(live(Encoder, *TOKENS), planted("softmax", lambda right, x, dim: right(x, dim=-2)))
    line = line_of("weights = torch.softmax(h @ h.transpose(-1, -2), dim=-1)")
    assert described(found) == f"layers.0, {line}, softmax"


def test_gradient_of_gelu_in_a_training_step() -> None:
    found = first(live(Encoder, *TOKENS, backward=True), planted("gelu", wrong_gradient))
    line = line_of("return x + F.gelu(self.norm2(x))")
    assert described(found) == f"layers.0, {line}, gelu, gradient of layer_norm_1"


def test_dropout_and_operators_behind_it() -> None:
    for backend, expected in (
        (planted("gelu", one_element_off), f"parts.2, {line_of('return self.parts(x)')}, gelu"),
        (
            planted("dropout", lambda right, *args: right(*args) * 1.01),
            f"parts.1, {line_of('return self.parts(x)')}, dropout",
        ),
    ):
        assert described(first(live(Noisy, ROWS), backend)) == expected


def test_a_round_of_a_loop_and_an_operator_with_several_results() -> None:
    make = live(cell, *MATRICES)
    found = first(make, planted("tanh", one_element_off, number=1))
    assert described(found) == f"{line_of('c = f.sigmoid() * c + i.sigmoid() * g.tanh()')}, tanh"
    assert found is not None
    assert found.node == "tanh_1"
    found = first(make, planted("chunk", lambda right, x, *args: right(x.flip(0), *args), number=1))
    assert described(found) == f"{line_of('i, f, g, o = (x @ w + h @ u).chunk(4, -1)')}, chunk"


def test_integers() -> None:
    make = live(integers, torch.arange(-4, 4), torch.tensor([3, -2] * 4))
    found = first(make, planted("floordiv", lambda right, a, b: torch.div(a, b, rounding_mode="trunc")))
    assert described(found) == f"{line_of('quotients = a // b')}, floordiv"


@pytest.mark.parametrize(
    ("name", "wrong", "line"),
    [
        ("mul_", lambda right, x, w: right(x, w * 1.01), "h.mul_(w)"),
        ("iadd", lambda right, x, one: right(x, one * 1.01), "h += 1"),
        ("setitem", lambda right, x, at, value: right(x, at, value * 1.01), "h[0] = w.sum()"),
    ],
)
def test_a_tensor_changed_in_place_is_looked_at_after_each_change(
    name: str, wrong: Callable[..., Any], line: str
) -> None:
    found = first(live(in_place, ROWS, WEIGHT), planted(name, wrong))
    assert described(found) == f"{line_of(line)}, {name}"


@pytest.mark.parametrize("rows", [ROWS, ROWS.to(torch.complex64), ROWS.to(torch.int8), ROWS > 3])
def test_a_clone_that_the_compiler_drops(rows: Tensor) -> None:
    """Values that change later are copied to look at them, but not by a clone: that would be wrong as well."""

    def program(a: Tensor) -> Tensor:
        a[0].zero_()
        kept = a.clone()
        a.fill_(1)
        return kept

    found = first(live(program, rows), planted("clone", lambda right, x: x))
    assert described(found) == f"{line_of('kept = a.clone()')}, clone"


@pytest.mark.parametrize("of", ["argument", "intermediate"])
def test_a_view_that_would_be_computed_outside_of_the_graph_if_it_were_returned(of: str) -> None:
    def compiled(gm: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        wrong = planted("select.int", lambda right, x, dim, index: right(x, dim, index - 1))
        return make_boxed_func(wrong(gm, example_inputs))

    def program(x: Tensor) -> Tensor:
        y = x if of == "argument" else x.sin()
        row = y[-1]
        return row.exp()

    backend = aot_autograd(fw_compiler=compiled)
    assert described(first(live(program, ROWS), backend)) == f"{line_of('row = y[-1]')}, getitem"


def test_gradient_of_an_operator_in_place() -> None:
    def wrong(right: Callable[..., Tensor], x: Tensor, w: Tensor) -> Tensor:
        return x.copy_(wrong_gradient(torch.mul, x.clone(), w))

    make = live(in_place, ROWS.clone().requires_grad_(), WEIGHT, backward=True)
    assert described(first(make, planted("mul_", wrong))) == f"{line_of('h.mul_(w)')}, mul_, gradient of h"


def test_modules_are_named_after_a_graph_break() -> None:
    line = line_of("return self.norm(x).sin()")
    found = first(live(Holder, ROWS), planted("layer_norm", one_element_off))
    assert described(found) == f"parts.0.norm, {line}, layer_norm"
    assert found is not None
    assert found.graph == 1
    assert described(first(live(Holder, ROWS), planted("sin", one_element_off))) == f"parts.0, {line}, sin"


def test_a_fusion_that_returning_all_values_prevents() -> None:
    """The pair is wrong only if nothing else reads the value between the two."""

    def backend(gm: fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        (gelu,) = nodes_of(gm, "gelu")
        is_fused = len(gelu.all_input_nodes[0].users) == 1
        return planted("gelu", one_element_off)(gm, example_inputs) if is_fused else gm.forward

    def program(x: Tensor) -> Tensor:
        return F.gelu(F.layer_norm(x, (4,))).sum()

    found = first(live(program, ROWS), backend)
    assert described(found) == f"{line_of('return F.gelu(F.layer_norm(x, (4,))).sum()')}, gelu"
    assert found is not None
    assert found.is_alone
    assert found.hidden_by == (f"{line_of('return F.gelu(F.layer_norm(x, (4,))).sum()')}, layer_norm",)


STATEFUL = """
import torch
norm = torch.nn.BatchNorm1d(4)
def program(x):
    return norm(x).sigmoid()
def inputs(call):
    return (torch.arange(12.0).reshape(3, 4).sin() + call,), {}
"""


def test_a_write_without_gradient_beside_a_wrong_gradient() -> None:
    """The argument is also changed where nothing is differentiated, which must stay a change of the argument."""

    def program(x: Tensor) -> Tensor:
        a = x * 2
        b = torch.tanh(a)
        with torch.no_grad():
            a.mul_(0.5)
        return b + a.detach()

    make = live(program, ROWS.clone().requires_grad_(), backward=True)
    found = first(make, planted("tanh", wrong_gradient))
    assert described(found) == f"{line_of('b = torch.tanh(a)')}, tanh, gradient of a"


def test_an_input_with_a_history_that_a_graph_changes() -> None:
    def program(x: Tensor) -> Tensor:
        h = x * 2
        torch._dynamo.graph_break()
        h.mul_(3)
        return F.gelu(h)

    make = live(program, ROWS.clone().requires_grad_(), backward=True)
    found = first(make, planted("gelu", wrong_gradient))
    assert described(found) == f"{line_of('return F.gelu(h)')}, gelu, gradient of h"
    assert found is not None
    assert found.graph == 1


def test_a_write_through_a_view_that_does_not_reach_the_tensor() -> None:
    def program(x: Tensor) -> Tensor:
        h = x * 2
        row = h[0]
        row.add_(1)
        return h * 3

    found = first(live(program, ROWS), planted("add_", lambda right, row, one: row + one))
    assert described(found) == f"{line_of('row.add_(1)')}, add_"
    assert found is not None
    assert found.value == "h"


def test_a_policy_that_leaves_values_open() -> None:
    policy = ComparePolicy(invariant="order", reason="the order is open")
    program = Program(name="open", source=STATEFUL, policy=policy)
    assert first(lambda: instantiate(program), planted("sigmoid", one_element_off)) is None
    assert first(lambda: instantiate(replace(program, policy=ComparePolicy())), planted("sigmoid", one_element_off))


def test_state_in_a_later_call() -> None:
    program = Program(name="stateful", source=STATEFUL, calls=(Call(), Call()))

    def wrong(right: Callable[..., Tensor], x: Tensor, mean: Tensor, *args: Any) -> Tensor:
        result = right(x, mean, *args)
        mean.mul_(1.01)
        return result

    found = first(lambda: instantiate(program), planted("batch_norm", wrong), call=1)
    assert described(found) == "norm, stateful:5, batch_norm"
    assert found is not None
    assert found.value == "norm.running_mean"


def test_inductor() -> None:
    def program(a: Tensor, b: Tensor) -> Tensor:
        quotients = a.flip(0) // b  # inductor divides and rounds down: 10 for 1.0 // 0.1
        return quotients + 1

    args = torch.tensor([7.0, 6.0, 0.5, 1.0]).double(), torch.tensor([0.1, 0.1, 0.2, 2.0], dtype=torch.float64)
    found = first_wrong_value(live(program, *args), resolve("inductor"))
    line = line_of("quotients = a.flip(0) // b  # inductor divides and rounds down: 10 for 1.0 // 0.1")
    assert described(found) == f"{line}, floordiv"

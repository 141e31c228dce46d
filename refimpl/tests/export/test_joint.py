"""Programs with gradients in their graph, and modules that are exported when they are first called."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import nn

from refimpl.aot.export_errors import BadLoss, GradientMissing, SecondDifferentiableOutput
from refimpl.capture.public.errors import UserError
from refimpl.errors import UnsupportedByRefimpl
from refimpl.export import Dim, ExportedProgram, OutputKind, export, load, save
from refimpl.tests.export.forms import STRICT
from refimpl.upstream.experimental_export import _export_forward_backward, _sticky_export


class Losing(nn.Module):
    """A loss that depends on a normalised layer, on a part without gradients, and on a tied weight."""

    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        self.second = nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        z = self.second(self.norm(self.first(x)))
        self.calls.add_(1)
        with torch.no_grad():
            scale = z.abs().mean() + 1
        loss = nn.functional.mse_loss(z * scale, y.detach())
        return z.detach() + 1, loss


def run(program: ExportedProgram, *inputs: torch.Tensor) -> dict[str, Any]:
    """What the graph gives, by what its signature says it is."""
    values = []
    users = iter(inputs)
    for spec in program.graph_signature.input_specs:
        absent = spec.target in program.constants
        place = program.constants if absent else program.state_dict
        values.append(next(users) if spec.target is None else place[spec.target])
    with torch.no_grad():
        results = program.graph_module(*values)
    specs = program.graph_signature.output_specs
    return {f"{spec.kind.name} {spec.target}": value for spec, value in zip(specs, results, strict=True)}


@STRICT
def test_gradients_of_the_loss_are_outputs(strict: bool) -> None:
    torch.manual_seed(0)
    module, x, y = Losing(), torch.randn(4, 3, requires_grad=True), torch.randn(4, 3)
    n = Dim("n", min=2)
    examples = (torch.randn(5, 3, requires_grad=True), torch.randn(5, 3))
    program = export(module, examples, dynamic_shapes=({0: n}, {0: n}), strict=strict)
    joint = _export_forward_backward(program, 1)
    found = run(joint, x, y)
    shown, loss = module(x, y)
    loss.backward()
    torch.testing.assert_close(found["USER_OUTPUT None"], shown)
    torch.testing.assert_close(found["LOSS_OUTPUT None"], loss.detach())
    torch.testing.assert_close(found["GRADIENT_TO_USER_INPUT x"], x.grad)
    torch.testing.assert_close(found["GRADIENT_TO_PARAMETER norm.weight"], module.norm.weight.grad)
    tied = found["GRADIENT_TO_PARAMETER first.weight"] + found["GRADIENT_TO_PARAMETER second.weight"]
    torch.testing.assert_close(tied, module.first.weight.grad)
    torch.testing.assert_close(found["BUFFER_MUTATION norm.running_mean"], module.norm.running_mean)
    assert found["BUFFER_MUTATION calls"].item() == 1


def test_the_backward_signature_says_which_output_is_whose_gradient() -> None:
    program = export(Losing(), (torch.randn(4, 3), torch.randn(4, 3))).forward_backward(1)
    signature = program.graph_signature
    backward = signature.backward_signature
    assert backward is not None
    parameters = ["first.weight", "first.bias", "norm.weight", "norm.bias", "second.weight"]
    assert list(backward.gradients_to_parameters.values()) == parameters
    assert backward.gradients_to_user_inputs == {}
    assert backward.loss_output in [spec.arg.name for spec in signature.output_specs]
    returned: Any = program.graph.output_node().args[0]
    assert [node.name for node in returned] == [spec.arg.name for spec in signature.output_specs]
    kinds = [spec.kind for spec in signature.output_specs]
    assert kinds[-5:] == [OutputKind.GRADIENT_TO_PARAMETER] * 5
    assert kinds[-7:-5] == [OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT]


def test_a_program_with_gradients_is_saved_decomposed_and_called() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(4, 3), torch.randn(4, 3)
    program = export(Losing(), (x, y)).forward_backward(1)
    file = io.BytesIO()
    save(program, file)
    for made in (load(io.BytesIO(file.getvalue())), program.run_decompositions()):
        expected, actual = run(program, x, y), run(made, x, y)
        assert expected.keys() == actual.keys()
        for name, value in expected.items():
            torch.testing.assert_close(actual[name], value)
    expected = Losing()
    expected.load_state_dict(program.state_dict)
    for value, same in zip(program.module()(x, y), expected(x, y), strict=True):
        torch.testing.assert_close(value, same.detach())


class Returning(nn.Module):
    """Gives what a function makes of a layer's result."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.unused = nn.Linear(2, 2)
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self.linear(x), self.unused(x))


@pytest.mark.parametrize(
    ("function", "index", "error", "message"),
    [
        (lambda y, z: (y + z, 1), 0, BadLoss, "to be a scalar"),
        (lambda y, z: ((y.sum() + z.sum()).detach(), 1), 0, BadLoss, "does not require gradients"),
        (lambda y, z: (y.sum() + z.sum(), 1), 2, BadLoss, "returns 2 outputs"),
        (lambda y, z: (y.sum() + z.sum(), y), 0, SecondDifferentiableOutput, "1"),
        (lambda y, z: (y.sum(), 1), 0, GradientMissing, "unused.weight"),
    ],
    ids=["no scalar", "no gradient", "no such output", "a second one", "no dependence"],
)
def test_a_bad_loss_is_refused(function: Any, index: int, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        export(Returning(function), (torch.ones(2),)).forward_backward(index)


def test_a_functional_program_is_given_no_gradients() -> None:
    with pytest.raises(UnsupportedByRefimpl, match="before run_decompositions"):
        export(Losing(), (torch.randn(4, 3), torch.randn(4, 3))).run_decompositions().forward_backward(1)


# ------------------------------------------------------------------------------------------------------ at the first call


class Branching(nn.Module):
    """Takes a road that the first call chooses."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.calls = 0

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        self.calls += 1
        return self.linear(x) * scale


def test_a_module_is_exported_when_it_is_first_called() -> None:
    module, reference = Branching(), Branching()
    reference.load_state_dict(module.state_dict())
    forward: Any = _sticky_export(module.forward, lambda x, scale: ({0: Dim("n")}, None))
    module.forward = forward
    assert forward._exported_artifact is None
    for rows in (4, 7):
        x = torch.randn(rows, 3)
        torch.testing.assert_close(module(x, scale=2.0), reference(x, scale=2.0))
    assert isinstance(forward._exported_artifact, torch.fx.GraphModule)
    assert "forward" in module.__dict__
    with pytest.raises(AssertionError, match="3"):
        module(torch.randn(4, 3), scale=3.0)


def test_what_fails_to_export_is_exported_at_the_next_call() -> None:
    class Reading(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1 if x.dim() == 1 or x.sum() > 0 else x

    module = Reading()
    module.forward = _sticky_export(module.forward)
    with pytest.raises(UserError):
        module(torch.ones(2, 2))
    assert module(torch.ones(2)).tolist() == [2.0, 2.0]


def test_only_methods_of_modules_are_exported_later() -> None:
    with pytest.raises(UserError, match=r"a method of a torch\.nn\.Module"):
        _sticky_export(torch.sin)

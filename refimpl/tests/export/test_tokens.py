"""Side effects happen once each and in the order of the program, in exported programs and in all that is made of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._library.effects import EffectType

from refimpl.export import InputKind, OutputKind, TokenArgument, export
from refimpl.tests.export.forms import FORMS, STRICT, in_forms

EVENTS: list[Any] = []


@pytest.fixture(scope="module", autouse=True)
def operators() -> Iterator[None]:
    """Ops of namespace refimpl_export_effects: say(str) without results, note(Tensor, str), both(Tensor) of two results."""
    library = torch.library.Library("refimpl_export_effects", "FRAGMENT")

    def define(schema: str, run: Callable[..., Any], fake: Callable[..., Any]) -> None:
        name = schema.partition("(")[0]
        library.define(schema)
        library.impl(name, run, "CompositeExplicitAutograd")
        torch.library.register_fake(f"refimpl_export_effects::{name}", fake, lib=library)
        library._register_effectful_op(f"refimpl_export_effects::{name}", EffectType.ORDERED)

    def note(x: Tensor, text: str) -> Tensor:
        EVENTS.append(text)
        return x * 2

    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        EVENTS.append("both")
        return x + 1, x + 2

    define("say(str text) -> ()", EVENTS.append, lambda text: None)
    define("note(Tensor x, str text) -> Tensor", note, lambda x, text: torch.empty_like(x))
    define("both(Tensor x) -> (Tensor, Tensor)", both, lambda x: (torch.empty_like(x), torch.empty_like(x)))

    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * 2, None

    torch.library.register_autograd("refimpl_export_effects::note", backward, lib=library)
    yield
    library._destroy()


@pytest.fixture(autouse=True)
def no_events() -> Iterator[None]:
    EVENTS.clear()
    yield
    EVENTS.clear()


class Effects(nn.Module):
    """Effects around an update of a buffer and inside of a region; results used and unused, one and several."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, token: Tensor) -> tuple[Tensor, Tensor]:
        ops = torch.ops.refimpl_export_effects
        ops.say("first")
        y = ops.note(token, "second")
        self.count.add_(1)
        with torch.no_grad():
            z = ops.note(y, "third")
        a, b = ops.both(token.detach())
        ops.note(y, "unused")
        return y + z + a * b, self.count + 0


ORDER = ["first", "second", "third", "both", "unused"]


@STRICT
@in_forms(
    "exported", "decomposed", "functional", "functional, then decomposed", "decomposed, exported again, decomposed",
    "decomposed, saved",
)  # fmt: skip
def test_effects_happen_once_and_in_order(form: str, strict: bool) -> None:
    x, same = (torch.tensor([1.0, 2.0], requires_grad=True) for _ in range(2))
    module = Effects()
    expected, _ = module(x)
    expected.sum().backward()
    EVENTS.clear()
    program = FORMS[form](export(Effects(), (torch.ones(2, requires_grad=True),), strict=strict))
    assert EVENTS == []
    runnable = program.module()
    actual, count = runnable(same)
    actual.sum().backward()
    assert EVENTS == ORDER
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(same.grad, x.grad)
    assert count.item() == runnable.get_buffer("count").item() == 1


def test_tokens_are_the_first_inputs_and_outputs_of_a_functional_program() -> None:
    program = export(Effects(), (torch.ones(2),)).run_decompositions()
    signature = program.graph_signature
    assert [spec.kind for spec in signature.input_specs] == [InputKind.TOKEN, InputKind.BUFFER, InputKind.USER_INPUT]
    kinds = [OutputKind.TOKEN, OutputKind.BUFFER_MUTATION, OutputKind.USER_OUTPUT, OutputKind.USER_OUTPUT]
    assert [spec.kind for spec in signature.output_specs] == kinds
    assert signature.input_specs[0].arg == TokenArgument(name="token_1")  # an argument has the name
    assert list(signature.input_tokens) == ["token_1"]
    assert [spec.arg.name for spec in signature.output_specs][:1] == list(signature.output_tokens)
    assert [node.name for node in program.graph.find_nodes(op="placeholder")] == ["token_1", "b_count", "token"]
    again = program.run_decompositions()
    assert [spec.kind for spec in again.graph_signature.input_specs] == [spec.kind for spec in signature.input_specs]
    assert [spec.kind for spec in again.graph_signature.output_specs] == kinds


def test_a_program_as_it_is_exported_has_no_tokens() -> None:
    signature = export(Effects(), (torch.ones(2),)).graph_signature
    assert (list(signature.input_tokens), list(signature.output_tokens)) == ([], [])

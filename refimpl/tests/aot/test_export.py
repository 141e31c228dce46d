"""Exported modules: their graph computes what the module does, and the signature says what is what."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._functorch import config as functorch_config
from torch._functorch.aot_autograd import aot_export_module as torch_export_module
from torch.utils import _pytree as pytree

from refimpl.aot.export.module import aot_export_module
from refimpl.aot.export.signature import GraphSignature
from refimpl.aot.options import aot_settings
from refimpl.tests.graphs import targets_of

Tensor = torch.Tensor
aten = torch.ops.aten


class Normalised(torch.nn.Module):
    """A convolution and batch normalization: three buffers change."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(1, 3, 1)
        self.bn = torch.nn.BatchNorm2d(3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.bn(self.conv(x)).relu()
        return y.sum(), y.detach()


class Program(torch.nn.Module):
    """A function of the module and its arguments as forward."""

    b: Tensor
    c: Tensor

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.p = torch.nn.Parameter(torch.tensor([1.0, 2.0]))
        self.q = torch.nn.Parameter(torch.tensor([3.0, 5.0]))
        self.register_buffer("b", torch.tensor([7.0, 11.0]))
        self.register_buffer("c", torch.tensor([13.0, 17.0]))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


def _call(
    graph_module: torch.fx.GraphModule, signature: GraphSignature, module: torch.nn.Module, *user_inputs: Any
) -> dict[str, Any]:
    """Runs the graph as its signature says; results by what they are: "output 0", "update of b", "gradient of p"."""
    state = {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }
    values = [state[name].detach().clone() for name in (*signature.parameters, *signature.buffers)]
    with torch.no_grad():
        results = list(
            graph_module(*values, *[x.detach().clone() if isinstance(x, Tensor) else x for x in user_inputs])
        )
    names = [getattr(node, "name", None) for node in pytree.tree_leaves(graph_module.graph.output_node().args[0])]
    num_updates = len(signature.parameters_to_mutate) + len(signature.buffers_to_mutate)
    num_updates += len(signature.user_inputs_to_mutate)
    num_outputs = len(signature.user_outputs)
    updated = {**signature.parameters_to_mutate, **signature.buffers_to_mutate, **signature.user_inputs_to_mutate}
    found: dict[str, Any] = {}
    for index, (name, value) in enumerate(zip(names, results, strict=True)):
        if index < num_updates:
            assert name is not None
            found[f"update of {updated[name]}"] = value
        elif index < num_updates + num_outputs:
            found[f"output {index - num_updates}"] = value
        else:
            assert signature.backward_signature is not None
            assert name is not None
            backward = signature.backward_signature
            found[
                f"gradient of {({**backward.gradients_to_parameters, **backward.gradients_to_user_inputs})[name]}"
            ] = value
    return found


def _eager(module: torch.nn.Module, args: tuple[Any, ...], *, loss_index: int | None) -> dict[str, Any]:
    """The same of the module itself, with every input as it is afterwards."""
    module = copy.deepcopy(module)
    args = tuple(x.detach().clone().requires_grad_(x.requires_grad) if isinstance(x, Tensor) else x for x in args)
    with torch.set_grad_enabled(loss_index is not None):
        results = module(*args)
    if loss_index is not None:
        results[loss_index].backward()
    found = {f"output {i}": result for i, result in enumerate(pytree.tree_leaves(results))}
    state = (*module.named_parameters(), *module.named_buffers(remove_duplicate=False))
    for name, value in (*state, *((f"arg {i}", x) for i, x in enumerate(args))):
        found[f"update of {name}"] = value
        found[f"gradient of {name}"] = value.grad if isinstance(value, Tensor) else None
    return found


def _assert_same(ours: dict[str, Any], eager: dict[str, Any]) -> None:
    __tracebackhide__ = True
    for what, value in ours.items():
        if isinstance(value, Tensor):
            torch.testing.assert_close(value, eager[what].detach(), msg=lambda text, what=what: f"{what}: {text}")
        else:
            assert value == eager[what], f"{what} is {value}, but should be {eager[what]}"


# ------------------------------------------------------------------------------------------------------ the whole


def test_a_joint_graph_returns_updates_results_and_gradients() -> None:
    """AO-31, AO-34"""
    module, x = Normalised(), torch.randn(2, 1, 3, 3)
    eager = _eager(module, (x,), loss_index=0)
    graph_module, signature = aot_export_module(module, (x,), trace_joint=True, output_loss_index=0)
    assert not [t for t in targets_of(graph_module) if isinstance(t, torch._ops.OpOverload) and t._schema.is_mutable]
    ours = _call(graph_module, signature, module, x)
    assert list(ours) == [
        "update of bn.running_mean", "update of bn.running_var", "update of bn.num_batches_tracked",
        "output 0", "output 1",
        "gradient of conv.weight", "gradient of conv.bias", "gradient of bn.weight", "gradient of bn.bias",
    ]  # fmt: skip
    _assert_same(ours, eager)


def test_an_inference_graph_returns_updates_and_results() -> None:
    """AO-31, AO-36"""
    module, x = Normalised(), torch.randn(2, 1, 3, 3)
    eager = _eager(module, (x,), loss_index=None)
    graph_module, signature = aot_export_module(module, (x,), trace_joint=False)
    assert signature.backward_signature is None
    ours = _call(graph_module, signature, module, x)
    assert len(ours) == 5
    _assert_same(ours, eager)
    assert module.bn.num_batches_tracked == 0


def test_the_signature_says_what_upstream_s_says() -> None:
    """AO-35, XC-03"""
    x = torch.randn(2, 1, 3, 3)
    for trace_joint in (False, True):
        (_, ours), (_, theirs) = (
            export(Normalised(), (x,), trace_joint=trace_joint, output_loss_index=0)
            for export in (aot_export_module, torch_export_module)
        )
        for field in (
            "parameters", "buffers", "user_inputs", "inputs_to_parameters", "inputs_to_buffers", "parameters_to_mutate",
            "user_inputs_to_mutate", "in_spec", "out_spec", "input_tokens", "output_tokens",
        ):  # fmt: skip
            assert getattr(ours, field) == getattr(theirs, field), field
        assert list(ours.buffers_to_mutate.values()) == list(theirs.buffers_to_mutate.values())
        assert len(ours.user_outputs) == len(theirs.user_outputs)


def test_the_loss_is_named_where_buffers_change() -> None:
    """AO-34. Upstream 2.13 names the first changed buffer."""
    graph_module, signature = aot_export_module(
        Normalised(), (torch.randn(2, 1, 3, 3),), trace_joint=True, output_loss_index=0
    )
    assert signature.backward_signature is not None
    loss = signature.backward_signature.loss_output
    assert loss == signature.user_outputs[0]
    (node,) = [n for n in graph_module.graph.nodes if n.name == loss]
    assert node.target is aten.sum.default


def test_changed_inputs_and_parameters_are_named_by_what_they_are() -> None:
    """AO-35"""

    def function(self: Program, x: Tensor, y: Tensor) -> tuple[Tensor]:
        self.p.add_(1)
        self.c.mul_(2)
        y.sub_(self.p)
        return (x + self.b + y,)

    module, args = Program(function), (torch.ones(2), torch.full((2,), 4.0))
    eager = _eager(module, args, loss_index=None)
    graph_module, signature = aot_export_module(module, args, trace_joint=False)
    assert list(signature.parameters_to_mutate.values()) == ["p"]
    assert list(signature.buffers_to_mutate.values()) == ["c"]
    assert list(signature.user_inputs_to_mutate.values()) == ["arg5_1"]
    ours = _call(graph_module, signature, module, *args)
    ours["update of arg 1"] = ours.pop("update of arg5_1")
    _assert_same(ours, eager)


def test_containers_none_and_numbers_go_in_and_come_out_in_order() -> None:
    """XC-04"""

    def function(self: Program, x: dict[str, Any], *, scale: tuple[int, Any]) -> Any:
        return {"s": (x["a"] * scale[0] + self.p).sum()}["s"], [x["b"], None, 3, {"u": x["a"] + 1}]

    args = ({"b": torch.ones(2), "a": torch.zeros(2)},)
    kwargs = {"scale": (3, None)}
    module = Program(function)
    graph_module, signature = aot_export_module(module, args, trace_joint=False, kwargs=kwargs)
    leaves, in_spec = pytree.tree_flatten(((module.p, module.q, module.b, module.c, *args), kwargs))
    assert signature.in_spec == in_spec
    assert len(signature.user_inputs) == 4
    with torch.no_grad():
        expected = module(*args, **kwargs)
        result = pytree.tree_unflatten(list(graph_module(*leaves)), signature.out_spec)
    assert torch.equal(result[0], expected[0])
    assert torch.equal(result[1][0], expected[1][0])
    assert result[1][1:3] == [None, 3]
    assert torch.equal(result[1][3]["u"], expected[1][3]["u"])


def test_inputs_of_a_user_have_gradients_too() -> None:
    """AO-34, AO-35"""
    module = Program(lambda self, x, y: ((self.p * x * y + self.q).sum(),))
    x, y = torch.tensor([2.0, 3.0], requires_grad=True), torch.tensor([5.0, 7.0])
    eager = _eager(module, (x, y), loss_index=0)
    graph_module, signature = aot_export_module(module, (x, y), trace_joint=True, output_loss_index=0)
    assert signature.backward_signature is not None
    assert list(signature.backward_signature.gradients_to_user_inputs.values()) == ["arg4_1"]
    ours = _call(graph_module, signature, module, x, y)
    ours["gradient of arg 0"] = ours.pop("gradient of arg4_1")
    _assert_same(ours, eager)


def test_the_backward_of_a_loss_behind_other_outputs() -> None:
    """AO-33, AO-34"""
    module = Program(lambda self, x: ({"aux": [x * 2, x]}, (self.p * self.q * x).mean()))
    x = torch.tensor([2.0, 3.0])
    for index in (1, -1):
        graph_module, signature = aot_export_module(module, (x,), trace_joint=True, output_loss_index=index)
        assert signature.backward_signature is not None
        assert signature.backward_signature.loss_output == signature.user_outputs[2]
        _assert_same(_call(graph_module, signature, module, x), _eager(module, (x,), loss_index=1))


def test_a_view_of_the_loss_s_memory_may_be_an_output() -> None:
    module = Program(lambda self, x: ((y := self.p * self.q * x)[0], y.detach(), y.detach().view(2, 1)))
    x = torch.tensor([2.0, 3.0])
    graph_module, signature = aot_export_module(module, (x,), trace_joint=True, output_loss_index=0)
    ours = _call(graph_module, signature, module, x)
    assert len(ours) == 5
    _assert_same(ours, _eager(module, (x,), loss_index=0))


# ------------------------------------------------------------------------- what upstream 2.13 has wrong or refuses


def test_two_parameters_with_one_gradient_have_an_output_each() -> None:
    """AO-34. Upstream: AssertionError, since its dictionary of gradients has one key."""
    module, x = Program(lambda self, x: ((self.p + self.q + x).sum(),)), torch.ones(2)
    graph_module, signature = aot_export_module(module, (x,), trace_joint=True, output_loss_index=0)
    assert signature.backward_signature is not None
    assert list(signature.backward_signature.gradients_to_parameters.values()) == ["p", "q"]
    _assert_same(_call(graph_module, signature, module, x), _eager(module, (x,), loss_index=0))


def test_two_buffers_with_one_value_have_an_output_each() -> None:
    """AO-35"""

    def function(self: Program, x: Tensor) -> tuple[Tensor]:
        self.b = self.c = x * 2
        return (x + self.b,)

    module, x = Program(function), torch.ones(2)
    graph_module, signature = aot_export_module(module, (x,), trace_joint=False)
    assert list(signature.buffers_to_mutate.values()) == ["b", "c"]
    _assert_same(_call(graph_module, signature, module, x), _eager(module, (x,), loss_index=None))


@pytest.mark.parametrize("is_joint", [False, True])
def test_an_assigned_buffer_is_an_update(is_joint: bool) -> None:
    """AO-31, XC-05. Upstream drops the value."""

    def function(self: Program, x: Tensor) -> tuple[Tensor, Tensor]:
        old = self.b
        self.b = self.b + x
        self.c.add_(self.b)
        return (self.p * self.q * self.b).sum(), old

    module, x = Program(function), torch.ones(2)
    before = module.b
    graph_module, signature = aot_export_module(
        module, (x,), trace_joint=is_joint, output_loss_index=0 if is_joint else None
    )
    assert module.b is before
    assert list(signature.buffers_to_mutate.values()) == ["b", "c"]
    ours = _call(graph_module, signature, module, x)
    _assert_same(ours, _eager(module, (x,), loss_index=0 if is_joint else None))
    assert torch.equal(ours["output 1"], before)


def test_a_parameter_of_two_names_has_its_gradient_once() -> None:
    """AO-32. Upstream: AssertionError where a submodule is shared."""

    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Linear(2, 2)
            self.second = self.first
            self.third = torch.nn.Linear(2, 2)
            self.third.weight = self.first.weight

        def forward(self, x: Tensor) -> tuple[Tensor]:
            return (self.third(self.second(self.first(x))).sum(),)

    module, x = Tied(), torch.randn(3, 2)
    before = dict(module.named_parameters(remove_duplicate=False))
    graph_module, signature = aot_export_module(module, (x,), trace_joint=True, output_loss_index=0)
    assert all(value is before[name] for name, value in module.named_parameters(remove_duplicate=False))
    ours = _call(graph_module, signature, module, x)
    eager = _eager(module, (x,), loss_index=0)
    zeros = [ours.pop(f"gradient of {name}") for name in ("second.weight", "second.bias", "third.weight")]
    assert not any(value.any() for value in zeros)
    assert "gradient of first.weight" in ours
    _assert_same(ours, eager)


def test_a_joint_graph_may_have_keyword_arguments() -> None:
    """AO-31. Upstream: TypeError."""
    module = Program(lambda self, x, *, k: ((self.p * self.q * x * k).sum(),))
    x, k = torch.ones(2), torch.tensor([2.0, 3.0])
    graph_module, signature = aot_export_module(module, (x,), trace_joint=True, output_loss_index=0, kwargs={"k": k})
    ours = _call(graph_module, signature, module, x, k)
    assert torch.equal(ours["gradient of p"], module.q.detach() * k)


# ----------------------------------------------------------------------------------------- grad modes, constants


def test_a_parameter_makes_no_training_graph_of_an_inference_export() -> None:
    """AO-36"""
    module, x = Program(lambda self, x: (self.p * x,)), torch.ones(2)
    graph_module, signature = aot_export_module(module, (x,), trace_joint=False)
    assert targets_of(graph_module) == [aten.mul.Tensor]
    assert signature.backward_signature is None


def test_changes_of_grad_mode_are_recorded_before_dispatch() -> None:
    """AO-36"""

    def function(self: Program, x: Tensor) -> tuple[Tensor]:
        with torch.no_grad():
            y = x * self.p
        return (torch.nn.functional.linear(y, self.q),)

    module, x = Program(function), torch.ones(2, requires_grad=True)
    graph_module, _ = aot_export_module(module, (x,), trace_joint=False, pre_dispatch=True)
    assert targets_of(graph_module) == [
        torch._C._set_grad_enabled,
        aten.mul.Tensor,
        torch._C._set_grad_enabled,
        aten.linear.default,
    ]
    (result,) = graph_module(module.p, module.q, module.b, module.c, x)
    assert result.requires_grad
    assert torch.equal(result, module(x)[0])


def test_statistics_are_updates_before_dispatch_too() -> None:
    """AO-31, AO-36"""
    module, x = Normalised(), torch.randn(2, 1, 3, 3)
    eager = _eager(module, (x,), loss_index=None)
    graph_module, signature = aot_export_module(module, (x,), trace_joint=False, pre_dispatch=True)
    assert aten.conv2d.default in targets_of(graph_module)
    ours = _call(graph_module, signature, module, x)
    assert len(ours) == 5
    _assert_same(ours, eager)


def _composites(self: Program, x: Tensor) -> tuple[Tensor, ...]:
    same, other = x.to(torch.float32), x.to(torch.float64)
    flat, turned = x.reshape(-1), x.t().reshape(-1)
    rows = torch.einsum("ij->ji", x)
    same.add_(1)
    other.mul_(2)
    flat[0] = 7
    turned.neg_()
    with torch.no_grad():
        view = rows[0]
    rows.mul_(3)
    return same + 0, other, flat.clone(), turned, view.clone(), torch.nn.functional.dropout(x, training=False)


def test_composite_ops_that_share_memory_are_taken_apart_before_dispatch() -> None:
    """AO-31, AO-36"""
    module, x = Program(_composites), torch.arange(6.0).reshape(2, 3)
    eager = _eager(module, (x,), loss_index=None)
    graph_module, signature = aot_export_module(module, (x,), trace_joint=False, pre_dispatch=True)
    ours = _call(graph_module, signature, module, x)
    ours["update of arg 0"] = ours.pop("update of arg4_1")
    _assert_same(ours, eager)
    module = Squared(torch.nn.InstanceNorm1d(1, track_running_stats=True))
    x = torch.randn(2, 1, 3)
    eager = _eager(module, (x,), loss_index=None)
    graph_module, signature = aot_export_module(module, (x,), trace_joint=False, pre_dispatch=True)
    assert len(signature.buffers_to_mutate) == 2
    _assert_same(_call(graph_module, signature, module, x), eager)


def test_functions_of_operators_are_functional_too() -> None:
    """AO-31"""

    def add(x: Tensor) -> Tensor:
        y = x + 4
        y.add_(5)
        return x.cos() * y

    module = Program(lambda self, flag, x: (torch.cond(flag, add, torch.sin, (x,)) + self.p,))
    for pre_dispatch in (False, True):
        args = (torch.tensor(True), torch.ones(2))
        graph_module, _ = aot_export_module(module, args, trace_joint=False, pre_dispatch=pre_dispatch)
        bodies = [m for m in graph_module.children() if isinstance(m, torch.fx.GraphModule)]
        assert len(bodies) == 2
        for body in (graph_module, *bodies):
            overloads = [t for t in targets_of(body) if isinstance(t, torch._ops.OpOverload)]
            assert not any(t._schema.is_mutable for t in overloads)
        for flag in (True, False):
            x = torch.tensor([2.0, 3.0])
            (result,) = graph_module(module.p, module.q, module.b, module.c, torch.tensor(flag), x)
            assert torch.equal(result, (add(x) if flag else x.sin()) + module.p)


def test_a_captured_tensor_is_a_constant_that_is_no_state() -> None:
    """XC-07"""
    constant = torch.tensor([19.0, 23.0])
    module, x = Program(lambda self, x: (x * constant + torch.tensor([1.0, 2.0]),)), torch.ones(2)
    graph_module, signature = aot_export_module(module, (x,), trace_joint=False)
    assert len(graph_module.graph.find_nodes(op="get_attr")) == 2
    assert signature.buffers == ["b", "c"]
    for _ in range(2):
        assert torch.equal(graph_module(module.p, module.q, module.b, module.c, x)[0], module(x)[0])


def test_a_decomposition_holds_in_both_directions() -> None:
    """AO-31, XC-08"""
    table = {aten.sigmoid.default: lambda x: 1 / (1 + (-x).exp())}
    module, x = Program(lambda self, x: ((self.p * self.q * x).sigmoid().sum(),)), torch.ones(2)
    graph_module, signature = aot_export_module(
        module, (x,), trace_joint=True, output_loss_index=0, decompositions=table
    )
    assert aten.sigmoid.default not in targets_of(graph_module)
    _assert_same(_call(graph_module, signature, module, x), _eager(module, (x,), loss_index=0))


def test_nodes_say_which_module_made_them() -> None:
    """AO-31, XC-02"""
    graph_module, _ = aot_export_module(Normalised(), (torch.randn(2, 1, 3, 3),), trace_joint=False)
    (convolution,) = graph_module.graph.find_nodes(op="call_function", target=aten.convolution.default)
    assert [path for path, _ in convolution.meta["nn_module_stack"].values()] == ["", "conv"]
    assert all("val" in node.meta for node in graph_module.graph.nodes if node.op == "call_function")


def test_a_graph_module_hands_on_what_its_nodes_say() -> None:
    """XC-02"""

    class Sine(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.p = torch.nn.Parameter(torch.ones(2))

        def forward(self, x: Tensor) -> tuple[Tensor]:
            return (x.sin() + self.p,)

    symbolic = torch.fx.symbolic_trace(Sine())
    for node in symbolic.graph.nodes:
        if node.target == "sin":
            node.meta["custom"] = {"mark": 1}
    graph_module, _ = aot_export_module(symbolic, (torch.ones(2),), trace_joint=False)
    (sin,) = graph_module.graph.find_nodes(op="call_function", target=aten.sin.default)
    assert sin.meta["custom"] == {"mark": 1}


def test_the_graph_is_the_same_for_other_sizes_with_symbols() -> None:
    """AO-14, XC-17"""
    module = torch.nn.Linear(3, 2)

    class Sum(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, x: Tensor) -> tuple[Tensor]:
            return (self.inner(x).sum() / x.shape[0],)

    mod = Sum()
    graph_module, signature = aot_export_module(
        mod, (torch.randn(4, 3),), trace_joint=True, output_loss_index=0, dynamic_shapes=True
    )
    x = torch.randn(7, 3)
    _assert_same(_call(graph_module, signature, mod, x), _eager(mod, (x,), loss_index=0))
    weight = graph_module.graph.find_nodes(op="placeholder")[0]
    assert all(type(size) is int for size in weight.meta["val"].shape)


_OF_TORCH: Any = functorch_config


def _printing(self: Program, x: Tensor) -> tuple[Tensor]:
    aten._print.default("before")
    self.b.add_(x)
    loss = (self.p * self.q * self.b).sum()
    aten._print.default("after")
    return (loss,)


@pytest.mark.parametrize("settings", [_OF_TORCH.patch, aot_settings])
def test_an_exported_graph_makes_its_tokens_where_a_setting_says_so(
    settings: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    """AO-10"""
    module, x = Program(_printing), torch.ones(2)
    with settings(unlift_effect_tokens=True):
        graph_module, signature = aot_export_module(module, (x,), trace_joint=False)
    assert (signature.input_tokens, signature.output_tokens, signature.user_inputs) == ([], [], ["arg5_1"])
    assert list(signature.inputs_to_parameters) == ["arg1_1", "arg2_1"]
    names = [node.name for node in graph_module.graph.nodes if node.op == "call_function"]
    assert (names[0], names[-1]) == ("_make_token_default", "_sink_tokens_default")
    with torch.no_grad():
        results = graph_module(*(value.detach() for value in (module.p, module.q, module.b, module.c)), x)
    assert capfd.readouterr().out.split() == ["before", "after"]
    assert torch.equal(results[0], module.b + 1)


@pytest.mark.parametrize("is_joint", [False, True])
def test_effects_are_in_the_signature_as_tokens(is_joint: bool, capfd: pytest.CaptureFixture[str]) -> None:
    """AO-10, XC-04, XC-19. Upstream's joint export raises IndexError."""
    module, x = Program(_printing), torch.ones(2)
    graph_module, signature = aot_export_module(
        module, (x,), trace_joint=is_joint, output_loss_index=0 if is_joint else None
    )
    assert capfd.readouterr().out == ""
    assert signature.input_tokens == ["arg0_1"]
    assert list(signature.inputs_to_parameters.items()) == [("arg1_1", "p"), ("arg2_1", "q")]
    assert signature.user_inputs == ["arg5_1"]
    first, second = graph_module.graph.find_nodes(op="call_function", target=torch.ops.higher_order.with_effects)
    assert second.args[0].args[0] is first
    names = [node.name for node in pytree.tree_leaves(graph_module.graph.output_node().args[0])]
    assert signature.output_tokens == names[:1]
    if not is_joint:
        theirs = torch_export_module(module, (x,), trace_joint=False)[1]
        assert (signature.input_tokens, signature.user_inputs) == (theirs.input_tokens, theirs.user_inputs)
    state = (module.p, module.q, module.b, module.c)
    with torch.no_grad():
        results = graph_module(torch.empty(0), *(value.detach() for value in state), x)
    assert capfd.readouterr().out.split() == ["before", "after"]
    assert torch.equal(results[1], module.b + 1)
    assert torch.equal(results[2], (module.p * module.q * results[1]).sum())
    assert len(results) == (5 if is_joint else 3)


# --------------------------------------------------------------------------------------------------- torch's own modules


class Squared(torch.nn.Module):
    """A loss of all results of a module, and the results."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *args: Any) -> tuple[Any, ...]:
        results = [leaf for leaf in pytree.tree_leaves(self.module(*args)) if isinstance(leaf, Tensor)]
        return torch.stack([result.pow(2).mean() for result in results]).sum(), [result.detach() for result in results]


nn = torch.nn
MODULES: dict[str, tuple[Callable[[], torch.nn.Module], tuple[tuple[int, ...], ...]]] = {
    "GRU": (lambda: nn.GRU(3, 4, 2, bidirectional=True), ((5, 2, 3),)),
    "LSTMCell": (lambda: nn.LSTMCell(3, 4), ((2, 3),)),
    "attention": (lambda: nn.MultiheadAttention(8, 2, batch_first=True), ((2, 5, 8),) * 3),
    "encoder": (lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0), ((5, 2, 8),)),
    "encoder, evaluated": (lambda: nn.TransformerEncoderLayer(8, 2, 16).eval(), ((5, 2, 8),)),
    "decoder": (lambda: nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0), ((5, 2, 8), (4, 2, 8))),
    "batch norm, evaluated": (lambda: nn.BatchNorm2d(3).eval(), ((2, 3, 4, 4),)),
    "batch norm without statistics": (lambda: nn.BatchNorm1d(3, track_running_stats=False), ((4, 3),)),
    "instance norm": (lambda: nn.InstanceNorm2d(3, affine=True, track_running_stats=True), ((2, 3, 4, 4),)),
    "spectral norm": (lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(3, 4)), ((2, 3),)),
    "convolutions": (lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(inplace=True), nn.MaxPool2d(2)), ((2, 1, 6, 6),)),
    "transposed": (lambda: nn.Sequential(nn.ConvTranspose2d(2, 3, 3), nn.GroupNorm(3, 3), nn.PReLU()), ((1, 2, 3, 3),)),
}  # fmt: skip


@pytest.mark.fractional
@pytest.mark.parametrize("is_joint", [False, True])
@pytest.mark.parametrize("name", MODULES)
def test_a_module_of_torch_s_computes_the_same_as_a_graph(name: str, is_joint: bool) -> None:
    """AO-31, AO-34"""
    make, shapes = MODULES[name]
    torch.manual_seed(0)
    module, args = Squared(make()), tuple(torch.randn(shape) for shape in shapes)
    loss_index = 0 if is_joint else None
    eager = _eager(module, args, loss_index=loss_index)
    graph_module, signature = aot_export_module(module, args, trace_joint=is_joint, output_loss_index=loss_index)
    assert not [t for t in targets_of(graph_module) if isinstance(t, torch._ops.OpOverload) and t._schema.is_mutable]
    _assert_same(_call(graph_module, signature, module, *args), eager)

"""Non-strict export: runs the program's Python on fake tensors.

Counterpart: torch/export/_trace.py _non_strict_export; torch/_export/non_strict_utils.py make_fake_inputs
Differs: inputs that are one tensor or share memory have separate fakes: the program is exported for distinct inputs, and
a write to one does not change the other.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from refimpl._torch import SYMBOLIC_TYPES, FakeTensorMode, has_oblivious_sizes, is_set_for_aot, pytree
from refimpl.aot.functional_call import call_and_read_buffers
from refimpl.capture.config import config
from refimpl.export.draft_values import give_values, mode_with_values
from refimpl.export.shapes.policies import InputLeaf
from refimpl.export.traced_program import FakeProgram
from refimpl.symbolic.dynamic_shapes import DimSpec, InputPolicy
from refimpl.symbolic.fake_inputs import InputFaker, symbolic_fake_mode
from refimpl.symbolic.shape_env import ShapeEnv
from refimpl.symbolic.sources import Source
from refimpl.trace.higher_order.compile_regions import regions_kept


def non_strict_program(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    leaves: Sequence[InputLeaf],
    argument_names: Sequence[str],
    *,
    prefer_deferred_runtime_asserts_over_guards: bool = False,
    fake_mode: FakeTensorMode | None = None,
) -> FakeProgram:
    """The module with fakes for its state and inputs. Raises UnsupportedByRefimpl for unsupported tensors.

    fake_mode: a mode to use instead of a new one; it must have a ShapeEnv of refimpl.
    """
    settings: dict[str, Any] = {
        "duck_shape": False,
        "backed_size_oblivious": has_oblivious_sizes(),
        "names_symbols_by_source": True,
        "trace_asserts": True,
        "prefer_deferred_runtime_asserts_over_guards": prefer_deferred_runtime_asserts_over_guards,
    }
    knows_values = fake_mode is None and is_set_for_aot("fake_tensor_propagate_real_tensors")
    if knows_values:
        fake_mode = mode_with_values(**settings)
    elif fake_mode is None:
        fake_mode = symbolic_fake_mode(ShapeEnv(**settings), allow_non_fake_inputs=True)
    env = fake_mode.shape_env
    assert isinstance(env, ShapeEnv), f"{type(env)} is no ShapeEnv of refimpl"

    def call(values: Mapping[str, torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        is_kept = not (config.inline_invoke_subgraph or config.inline_single_use_invoke_subgraph)
        with symbolic_functions(), regions_kept() if is_kept else contextlib.nullcontext():
            return call_and_read_buffers(module, values, args, kwargs)

    state = fake_state(module, fake_mode, env)
    inputs = [fake_leaf(leaf, fake_mode, env) for leaf in leaves]
    if knows_values:
        named = {
            **dict(module.named_parameters(remove_duplicate=False)),
            **dict(module.named_buffers(remove_duplicate=False)),
        }
        give_values([*state.values(), *inputs], [*(named[name] for name in state), *(leaf.value for leaf in leaves)])
    num_parameters = len(dict(module.named_parameters(remove_duplicate=False)))
    return FakeProgram(
        root=module,
        call=call,
        scopes=module,
        parameters=dict(list(state.items())[:num_parameters]),
        buffers=dict(list(state.items())[num_parameters:]),
        leaves=leaves,
        inputs=inputs,
        in_spec=pytree.tree_structure((args, dict(kwargs))),
        argument_names=argument_names,
        fake_mode=fake_mode,
        shape_env=env,
    )


@contextlib.contextmanager
def symbolic_functions() -> Iterator[None]:
    """A block in which Python's `max` and `min` of symbolic numbers and of one-element tensors are operations of the graph, and
    `math.pow` of symbolic numbers is. The functions would ask for the values, and no method of the arguments sees the call."""
    before = builtins.max, builtins.min, math.pow
    builtins.max = functools.partial(_extreme, before[0], torch.sym_max, torch.maximum, "min")
    builtins.min = functools.partial(_extreme, before[1], torch.sym_min, torch.minimum, "max")
    math.pow = functools.partial(_power, before[2])
    try:
        yield
    finally:
        builtins.max, builtins.min, math.pow = before


def _power(real: Any, base: Any, exponent: Any) -> Any:
    """`math.pow`, whose result is a float also for integers."""
    if not any(isinstance(value, (torch.SymInt, torch.SymFloat)) for value in (base, exponent)):
        return real(base, exponent)
    return torch.sym_float(base) ** torch.sym_float(exponent)


def _extreme(real: Any, of_numbers: Any, of_tensors: Any, bound: str, *args: Any, **kwargs: Any) -> Any:
    values = tuple(args[0]) if len(args) == 1 and isinstance(args[0], (list, tuple)) else args
    is_symbolic = any(isinstance(value, (torch.Tensor, torch.SymInt, torch.SymFloat)) for value in values)
    if kwargs or len(values) < 2 or not is_symbolic:
        return real(*args, **kwargs)

    if not any(isinstance(value, torch.Tensor) for value in values):  # equal numbers are one operand
        values = tuple({(type(v), v.node.expr if isinstance(v, SYMBOLIC_TYPES) else v): v for v in values}.values())

    def of_two(a: Any, b: Any) -> Any:
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            fit = a.numel() == 1 and a.shape == b.shape and a.dtype == b.dtype
            return of_tensors(a, b) if fit else real(a, b)
        tensor, number = (a, b) if isinstance(a, torch.Tensor) else (b, a)
        if not isinstance(tensor, torch.Tensor):
            return of_numbers(a, b)
        is_exact = isinstance(number, int) or tensor.is_floating_point()
        return tensor.clamp(**{bound: number}) if tensor.numel() == 1 and is_exact else real(a, b)

    return functools.reduce(of_two, values)


def fake_state(module: torch.nn.Module, fake_mode: FakeTensorMode, env: ShapeEnv) -> dict[str, torch.Tensor]:
    """Fakes of parameters, then buffers, by all their names, with static sizes. One tensor has one fake."""
    faker = InputFaker(fake_mode, env, takes_fakes=True)
    named = {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }
    return {name: faker.tensor(value, Source(name, name), static_policy(value)) for name, value in named.items()}


def static_policy(tensor: torch.Tensor) -> InputPolicy:
    """A policy with static sizes."""
    return InputPolicy({dim: DimSpec.static() for dim in range(tensor.dim())})


def fake_leaf(leaf: InputLeaf, fake_mode: FakeTensorMode, env: ShapeEnv) -> Any:
    """A fake of a tensor, a SymInt for a dynamic integer, any other value as it is."""
    source = Source(leaf.source, leaf.source)
    if isinstance(leaf.value, torch.Tensor):
        fake = InputFaker(fake_mode, env, takes_fakes=True).tensor(leaf.value, source, leaf.policy)
        return fake if fake.is_leaf or fake.storage_offset() else _computed(fake, fake_mode)
    if leaf.number is not None:
        return env.create_symintnode(env.create_dim(leaf.value, source, leaf.number), hint=leaf.value)
    return leaf.value


def _computed(fake: torch.Tensor, fake_mode: FakeTensorMode) -> torch.Tensor:
    """The fake as a non-leaf that is no view: unlike a view of a leaf, a program may write to it."""
    with fake_mode, torch.enable_grad():
        return _Computed.apply(fake.detach().requires_grad_())


class _Computed(torch.autograd.Function):
    """Makes a non-leaf tensor like the input."""

    @staticmethod
    def forward(ctx: Any, like: torch.Tensor) -> torch.Tensor:
        return torch.empty_strided(like.size(), like.stride(), dtype=like.dtype, device=like.device)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return grads[0]

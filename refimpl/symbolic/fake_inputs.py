"""Fake tensors with symbolic sizes for the inputs of a trace.

Counterpart: torch/_subclasses/meta_utils.py MetaConverter
Differs: written on public operations inside the fake mode (empty_strided, as_strided), not on meta storages.
"""

from __future__ import annotations

from typing import Any

import torch

from refimpl._torch import FakeTensor, FakeTensorMode, WeakTensorKeyDictionary
from refimpl.errors import UnsupportedByRefimpl
from refimpl.symbolic.dynamic_shapes import InputPolicy, policy_of
from refimpl.symbolic.geometry import symbolic_geometry
from refimpl.symbolic.shape_env import ShapeEnv
from refimpl.symbolic.sources import Source, as_source


def symbolic_fake_mode(shape_env: ShapeEnv | None = None, **settings: Any) -> FakeTensorMode:
    """A fake mode over our symbols. Its cache of results must be off: it rebuilds nodes of torch's own class."""
    settings.setdefault("allow_fallback_kernels", False)
    mode = FakeTensorMode(shape_env=shape_env or ShapeEnv(), **settings)  # pyright: ignore[reportArgumentType]
    mode.cache_enabled = False
    return mode


class InputFaker:
    """Makes the fake inputs of one trace; the same tensor gives the same fake, tensors of one storage share one."""

    def __init__(self, fake_mode: FakeTensorMode, shape_env: ShapeEnv) -> None:
        self.fake_mode = fake_mode
        self.shape_env = shape_env
        self._fakes = WeakTensorKeyDictionary()
        self._bases: dict[int, torch.Tensor] = {}

    def tensor(self, tensor: torch.Tensor, source: Any, policy: Any = None) -> torch.Tensor:
        """A fake of a tensor. Raises UnsupportedByRefimpl for layouts and classes that have none."""
        known = self._fakes.get(tensor)
        if known is None:
            known = self._fakes[tensor] = self._make(tensor, as_source(source), policy_of(policy))
        return known

    def _make(self, tensor: torch.Tensor, source: Source, policy: InputPolicy | None) -> torch.Tensor:
        if isinstance(tensor, FakeTensor):
            return tensor
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
            raise UnsupportedByRefimpl(
                seen=f"a symbolic input of class {type(tensor).__name__} and layout {tensor.layout}",
                supported="dense tensors and parameters",
                do="trace it in real or fake mode",
            )
        env = self.shape_env
        default = "STATIC" if env.settings.assume_static_by_default else "DUCK"
        specs = [policy.dims.get(d) if policy else None for d in range(tensor.dim())]
        policies = [default if spec is None else spec.policy for spec in specs]
        sizes, strides, offset = symbolic_geometry(
            env, tensor.size(), tensor.stride(), tensor.storage_offset(), source, policies, [None] * tensor.dim()
        )
        with env.suppress_guards(), env.origins_off(), self.fake_mode, torch.no_grad():
            fake = torch.empty_strided(sizes, strides, dtype=tensor.dtype, device=tensor.device)
            if not isinstance(offset, int) or offset:
                fake = fake.as_strided(sizes, strides, offset)
        fake.requires_grad_(tensor.requires_grad)
        if isinstance(tensor, torch.nn.Parameter):
            fake = torch.nn.Parameter(fake, requires_grad=tensor.requires_grad)
        return fake


def fake_input(
    tensor: torch.Tensor, fake_mode: FakeTensorMode, shape_env: ShapeEnv, source_name: str, policy: Any = None
) -> torch.Tensor:
    """A fake of an input with symbolic sizes; fakes made for the same mode share storages and identities."""
    faker = shape_env.fakers.get(id(fake_mode))
    if faker is None or faker.fake_mode is not fake_mode:
        faker = shape_env.fakers[id(fake_mode)] = InputFaker(fake_mode, shape_env)
    return faker.tensor(tensor, source_name, policy)


def fake_int(value: int, shape_env: ShapeEnv, source_name: str, policy: Any = None) -> Any:
    """A backed SymInt for an int input; 0 and 1 stay numbers if the environment specialises them."""
    expr = shape_env.create_symbol(value, source_name, policy, positive=None)
    return shape_env.create_symintnode(expr, hint=value)

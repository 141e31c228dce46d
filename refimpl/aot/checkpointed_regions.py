"""Graphs of another front end with checkpointed regions: a region is run once, and its nodes are marked for the partition.

Counterpart: torch/_higher_order_ops/wrap.py tag_activation_checkpoint_impl
Differs: upstream runs the region under checkpoint, whose second run its modes turn into nothing; here there is no second run, so
that what is random is drawn once. A policy does not get to see an operator's result.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import traceback as fx_traceback
from torch.utils.checkpoint import CheckpointPolicy, SelectiveCheckpointContext, checkpoint, noop_context_fn

from refimpl._torch import HigherOrderOperator, TorchDispatchMode

_REGIONS = itertools.count()  # partitioners compare their numbers
_WRITE_UNSEEN = ("batch_norm", "instance_norm")  # to running statistics: once more where it is computed once more
_OF_CHECKPOINT = frozenset(inspect.signature(checkpoint).parameters) | {"preserve_rng_state"}


class RegionInterpreter(torch.fx.Interpreter):
    """Runs a graph node by node for a trace; errors stay as the program's operators raise them."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__(module)
        self.extra_traceback = False

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """See Interpreter. A checkpointed region becomes a part of the trace."""
        if not isinstance(target, HigherOrderOperator) or target.name() != "tag_activation_checkpoint":
            return super().call_function(target, args, kwargs)
        body, *operands = args
        policy = _policy_of(body)
        if policy is None:
            return super().call_function(target, args, kwargs)
        operands += [value for name, value in kwargs.items() if name not in _OF_CHECKPOINT]
        with _MarkingState(policy):
            return RegionInterpreter(body).run(*operands)


def _always(*_: Any, **__: Any) -> CheckpointPolicy:
    return CheckpointPolicy.PREFER_RECOMPUTE


def _policy_of(body: torch.fx.GraphModule) -> Callable[..., Any] | None:
    """What says of each operator whether it is computed again. None for regions that have to be run twice, as they are: with
    contexts of the program's own, and with effects that a second run repeats."""
    calls = [node for node in body.graph.nodes if node.op.startswith("call")]
    if any(word in str(node.target) for node in calls for word in _WRITE_UNSEEN):
        return None
    contexts = body.meta.get("_checkpoint_context_fn", noop_context_fn)
    return _always if contexts is noop_context_fn else getattr(contexts()[0], "policy_fn", None)


class _MarkingState(TorchDispatchMode):
    """Marks what is recorded with the policy's answer, and with the number of the region."""

    def __init__(self, policy: Callable[..., Any]) -> None:
        super().__init__()
        self._policy = policy
        self._region = next(_REGIONS)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # see RecordingMode

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        answer = self._policy(_context(), func, *args, **(kwargs or {}))
        if isinstance(answer, bool):
            answer = CheckpointPolicy.MUST_SAVE if answer else CheckpointPolicy.PREFER_RECOMPUTE
        fx_traceback.get_current_meta().update(recompute=answer, ac_graph_id=self._region)
        return func(*args, **(kwargs or {}))


def _context() -> SelectiveCheckpointContext:
    known = inspect.signature(SelectiveCheckpointContext).parameters
    given: dict[str, Any] = {"is_recompute": False, "op_output": None}
    return SelectiveCheckpointContext(**{name: value for name, value in given.items() if name in known})

"""A task function for the test of `fuzz.judge.observing`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch._dynamo.config
import torch._dynamo.guards
import torch._dynamo.utils

from fuzz.judge.observing import aten_features, compiler_features, prepare_process
from fuzz.judge.single import judge
from fuzz.program.render import to_program
from fuzz.program.structure import FuzzProgram
from oracle.subjects.registry import load
from oracle.subjects.spec import SubjectSpec


def observe_program(payload: Mapping[str, Any], progress: Callable[[str], None]) -> dict[str, Any]:
    """Judge a program as a campaign's worker does, and say what was seen."""
    spec = SubjectSpec.from_json(payload["subject"])
    subject = load(spec)
    prepare_process(spec)
    program = to_program(FuzzProgram.from_json(payload["program"]), name="observed")
    status = judge(program, subject).verdict.status.value
    guards: Any = torch._dynamo.guards
    utils: Any = torch._dynamo.utils
    return {
        "status": status,
        "compiler": compiler_features(spec),
        "aten": aten_features(program),
        "guard_latency": guards.profile_guard_manager(None, {}, 1),
        "configuration": utils._get_dynamo_config_for_logging(),
        "collects": torch._dynamo.config.run_gc_after_compile,
        "texts": [_graph().print_readable(print_output=False, expanded_def=expanded) for expanded in (True, False)],
    }


def _graph() -> torch.fx.GraphModule:
    return torch.fx.symbolic_trace(torch.nn.ReLU())

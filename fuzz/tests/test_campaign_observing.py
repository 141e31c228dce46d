"""What a worker sees of a program beside the verdict. In a process of its own: it changes the process for good."""

from __future__ import annotations

from typing import Any

import pytest
import sympy

from fuzz import observing
from fuzz.structure import FuzzProgram, OpCall, Ref
from oracle.isolate import Completed, Pool, Task
from oracle.program import Call
from oracle.subjects.registry import resolve


def seen_of(subject: str, program: FuzzProgram) -> dict[str, Any]:
    task = Task(
        key="observe",
        function="fuzz.tests.observing_tasks:observe_program",
        payload={"subject": resolve(subject).to_json(), "program": program.to_json()},
        group="",
        timeout_s=120,
        memory_bytes=4 * 2**30,
    )
    with Pool(workers=1, preload=("torch", "oracle.case")) as pool:
        (result,) = pool.run([task])
    assert isinstance(result.end, Completed), result.end
    return result.end.value


def test_overloads_graph_breaks_and_cheap_compiles() -> None:
    tensor = {"$": "tensor", "shape": [3], "dtype": "float32", "requires_grad": True}
    program = FuzzProgram(
        arguments=("a0",),
        calls=(Call(args=[tensor], backward=True),),
        statements=(
            OpCall(target="torch.sin", args=(Ref("a0"),), results=("v0",)),
            OpCall(target="torch._dynamo.graph_break"),
            OpCall(target="torch.mul", args=(Ref("v0"), 2), results=("v1",)),
        ),
        result=Ref("v1"),
    )
    seen = seen_of("aot_eager", program)
    assert seen["status"] == "pass"
    assert {"aten:aten.sin.default", "aten:aten.mul.Tensor", "aten:aten.cos.default"} <= set(seen["aten"])
    assert any(name.startswith("break:") for name in seen["compiler"])
    assert any(name.startswith("pass:aot_autograd") for name in seen["compiler"])
    assert seen["guard_latency"] == 0.0
    assert seen["configuration"] is None


def test_what_is_simplified_again_is_remembered_and_what_has_no_hash_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[object] = []
    monkeypatch.setattr(sympy, "simplify", lambda expression, *args, **options: seen.append(args) or expression)
    observing._remember_simplified.__wrapped__()
    simplify: Any = sympy.simplify
    x = sympy.Symbol("x")
    for _ in range(2):
        assert simplify(x + x) == 2 * x
    assert seen == [()]
    assert simplify([x], 1.5) == [x]
    assert simplify(x + x, 2.0) == 2 * x
    assert seen == [(), (1.5,), (2.0,)]

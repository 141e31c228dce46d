"""The levels agree: emulator, repaired interpreter and, as far as that goes without a GPU, compiler."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from refimpl.codegen.emulator import AssertionFailed, KernelError, WouldNotCompile
from refimpl.codegen.kernel import Kernel, LevelUnavailable, Parameter
from refimpl.codegen.levels import choice
from refimpl.codegen.levels.choice import AlsoCompiled, TooManySpills
from refimpl.codegen.levels.cubin import CompiledKernel, compile_batch, compile_to_cubin
from refimpl.codegen.levels.device import DeviceLevel
from refimpl.codegen.levels.emulated import EmulatorLevel
from refimpl.codegen.levels.interpreter import InterpreterError, InterpreterLevel, run_in_interpreter
from refimpl.codegen.levels.transport import Launch
from refimpl.tests.codegen.small_kernels import CASES, KernelCase, make_kernel

needs_triton = pytest.mark.skipif(
    find_spec("triton") is None, reason="Triton is an extra: pip install 'torch-oracle[triton]'"
)
SUBSET = ["arithmetic", "library", "own_reduction", "matmul_tiles", "branches", "bools", "random_numbers", "atomics"]
_FLOATS = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64}


def _assert_agree(seen: Any, expected: Any, case: KernelCase) -> None:
    for name, a, b in zip([p.name for p in case.kernel.arguments], seen, expected, strict=True):
        if isinstance(a, torch.Tensor):
            torch.testing.assert_close(
                a,
                b,
                rtol=case.rtol,
                atol=case.rtol,
                equal_nan=True,
                msg=lambda text, n=name: f"{case.name}.{n}: {text}",
            )


@cache
def _interpreted() -> dict[str, tuple[Any, KernelError | None]]:
    launches = [Launch(case.kernel, case.grid, case.make(), case.constants) for case in CASES]
    errors = run_in_interpreter(launches)
    return {case.name: (launch.arguments, error) for case, launch, error in zip(CASES, launches, errors, strict=True)}


@needs_triton
def test_a_comparison_of_numbers_is_a_truth_value_as_a_block_too() -> None:
    kernel = make_kernel(
        "both", "x:*fp32 o:*i1",
        "a = tl.load(x)\nb = tl.load(x + 1)\nblock = tl.full([1], 1.0, tl.float32) > 0\n"
        "tl.store(o + tl.arange(0, 1), block & (a == b))",
    )  # fmt: skip
    for level in (EmulatorLevel(), InterpreterLevel()):
        for values in ([1.0, 1.0], [1.0, 2.0]):
            out = torch.zeros(1, dtype=torch.bool)
            level.launch(kernel, (1,), [torch.tensor(values), out], {})
            assert out.item() == (values[0] == values[1])


@needs_triton
@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp32", "fp64"])
def test_of_equal_zeros_the_first_is_the_extremum_wherever_it_lies(dtype: str) -> None:
    propagating = "a, b, propagate_nan=tl.PropagateNan.ALL"
    kernel = make_kernel(
        "extrema", f"x:*{dtype} y:*{dtype} o:*{dtype} B:constexpr",
        f"i = tl.arange(0, B)\na = tl.load(x + i)\nb = tl.load(y + i)\n"
        f"tl.store(o + i, tl.maximum({propagating}))\ntl.store(o + B + i, tl.minimum({propagating}))",
    )  # fmt: skip
    x = torch.full((64,), -0.0, dtype=_FLOATS[dtype])
    x[::5] = 0.0
    for level in (EmulatorLevel(), InterpreterLevel()):
        out = torch.ones(2, 64, dtype=x.dtype)
        level.launch(kernel, (1,), [x, -x, out], {"B": 64})
        assert (out == 0).all()
        assert torch.equal(out.signbit(), x.signbit().expand(2, 64))


@needs_triton
@pytest.mark.parametrize("dtype", ["fp16", "fp32", "fp64"])
def test_a_negation_changes_the_sign_of_nan(dtype: str) -> None:
    """The compiler flips the sign, and does not multiply."""
    kernel = make_kernel(
        "negated", f"x:*{dtype} o:*{dtype} B:constexpr",
        "i = tl.arange(0, B)\ntl.store(o + i, tl.load(x + i) * -1.0)",
    )  # fmt: skip
    x = torch.tensor([0.0, -0.0, 1.0, -torch.inf, torch.nan, torch.nan, torch.nan, torch.nan], dtype=_FLOATS[dtype])
    x = x.copysign(torch.tensor([1.0, -1.0] * 4, dtype=x.dtype))
    for level in (EmulatorLevel(), InterpreterLevel()):
        out = torch.ones_like(x)
        level.launch(kernel, (1,), [x, out], {"B": 8})
        assert torch.equal(out.signbit(), ~x.signbit())
        torch.testing.assert_close(out, -x, rtol=0, atol=0, equal_nan=True)
    assert not re.search(r"\b(mul|sub|fma)\.(rn\.)?b?f\d", compile_to_cubin(kernel, {"B": 8}, 90).ptx)


@pytest.mark.parametrize("negation", ["-tl.load(x + i, i < 35)", "tl.load(x + i, i < 35) * -1.0"])
def test_the_emulator_negates_bfloat16_wherever_it_lies(negation: str) -> None:
    """PyTorch's loops give another NaN at the end of a tensor."""
    kernel = make_kernel(
        "negated", "x:*bf16 o:*bf16 B:constexpr", f"i = tl.arange(0, B)\ntl.store(o + i, {negation}, i < 35)"
    )
    x = torch.tensor([torch.nan, 0.0, 1.5, -torch.inf, -0.0] * 7, dtype=torch.bfloat16)
    out = torch.ones_like(x)
    EmulatorLevel().launch(kernel, (1,), [x, out], {"B": 64})
    assert torch.equal(out.view(torch.int16), x.view(torch.int16) ^ -0x8000)


@needs_triton
def test_assertions_are_checked_where_they_are_on() -> None:
    kernel = make_kernel(
        "claim", "x:*fp32", 'v = tl.load(x)\ntl.device_assert(v > 0, "not above zero")\ntl.store(x, 2.0)'
    )
    for make in (EmulatorLevel, InterpreterLevel):
        out = torch.zeros(1)
        with pytest.raises(AssertionFailed, match="not above zero"):
            make(asserts=True).launch(kernel, (1,), [out], {})
        make().launch(kernel, (1,), [out], {})
        assert out.item() == 2


@needs_triton
def test_machine_code_has_the_kernel_s_assertions_and_no_others() -> None:
    claims = make_kernel(
        "claims", "x:*i32", 'v = tl.load(x)\ntl.device_assert(v > 0, "not above zero")\ntl.store(x, v + v)'
    )
    wraps = make_kernel("wraps", "x:*i32", "v = tl.load(x)\ntl.store(x, v + v)")
    sums, plain = compile_to_cubin(claims, {}).ptx, compile_to_cubin(wraps, {}).ptx
    assert sums.count("call.uni") == 1
    assert "__assertfail" in sums
    assert "__assertfail" not in plain


@needs_triton
def test_a_kernel_that_does_not_compile_fails_with_the_compiler_s_words_first() -> None:
    kernel = make_kernel("odd", "x:*fp32", "tl.store(x + tl.arange(0, 4), tl.trans(tl.arange(0, 4)))")
    level = AlsoCompiled(EmulatorLevel(), [90])
    with pytest.raises(WouldNotCompile, match=r"^kernel 'odd': (?!at )") as raised:
        level.launch(kernel, (1,), [torch.zeros(4)], {})
    assert "tl.trans" in str(raised.value)


@needs_triton
def test_a_kernel_that_spills_too_much_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "MOST_SPILLS", -1)
    kernel = make_kernel("small", "x:*fp32", "tl.store(x, 2.0)")
    with pytest.raises(TooManySpills, match="0 bytes spilled by each thread on a GPU of capability 90"):
        AlsoCompiled(EmulatorLevel(), [90]).launch(kernel, (1,), [torch.zeros(1)], {})


@needs_triton
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_emulator_computes_what_the_interpreter_does(case: KernelCase) -> None:
    arguments = case.make()
    EmulatorLevel(races=True).launch(case.kernel, case.grid, arguments, case.constants)
    expected, error = _interpreted()[case.name]
    assert error is None, error
    _assert_agree(arguments, expected, case)
    pairs = zip(arguments, case.make(), strict=True)
    written = [(a, b) for a, b in pairs if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)]
    assert any(not torch.equal(a, b) for a, b in written), f"{case.name} writes nothing: the comparison says nothing"


@needs_triton
def test_a_wrong_kernel_disagrees() -> None:
    case = next(case for case in CASES if case.name == "arithmetic")
    wrong = Kernel(case.kernel.name, case.kernel.source.replace("2.5", "2.50001"), case.kernel.parameters)
    arguments = case.make()
    EmulatorLevel().launch(wrong, case.grid, arguments, case.constants)
    with pytest.raises(AssertionError, match=r"arithmetic\.o"):
        _assert_agree(arguments, _interpreted()[case.name][0], case)


@needs_triton
@pytest.mark.parametrize("capability", [80, 90])
def test_kernels_compile_without_a_gpu(capability: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_ORACLE_KERNEL_CACHE", str(tmp_path))
    cases = [case for case in CASES if case.name in SUBSET]
    results = compile_batch([(case.kernel, case.constants) for case in cases], capability)
    for case, result in zip(cases, results, strict=True):
        assert not isinstance(result, KernelError), result
        assert result.cubin.startswith(b"\x7fELF"), case.name
        assert f".target sm_{capability}" in result.ptx, case.name
        assert 0 < result.registers <= 255, case.name
        assert result.spills == 0, case.name
    matmul = results[[case.name for case in cases].index("matmul_tiles")]
    assert not isinstance(matmul, KernelError)
    assert matmul.shared_memory > 0


@needs_triton
def test_compiled_kernels_are_kept_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_ORACLE_KERNEL_CACHE", str(tmp_path))
    case = next(case for case in CASES if case.name == "arithmetic")
    first = compile_to_cubin(case.kernel, case.constants)
    files = sorted(tmp_path.iterdir())
    assert len(files) == 3
    assert compile_to_cubin(case.kernel, case.constants) == first  # `seconds` too: nothing was compiled again
    compile_to_cubin(case.kernel, case.constants, fp_fusion=True)
    assert len(list(tmp_path.iterdir())) == 6


REJECTED = {
    "range of no power of two": ("x:*fp32 B:constexpr", "i = tl.arange(0, 12)\ntl.store(x + i, 1.0)"),
    "loop that changes a type": ("x:*fp32 B:constexpr", "s = 0\nfor k in range(B):\n    s += 0.5\ntl.store(x, s)"),
    "small dot": (
        "x:*fp32 B:constexpr",
        "i = tl.arange(0, 4)\nv = tl.load(x + i[:, None] * 4 + i[None, :])\n"
        "tl.store(x + i[:, None] * 4 + i[None, :], tl.dot(v, v))",
    ),
    "exp of half": ("x:*fp16 B:constexpr", "i = tl.arange(0, 16)\ntl.store(x + i, tl.exp(tl.load(x + i)))"),
    "tensor as a size": ("x:*fp32 B:constexpr", "n = B * 2\ni = tl.arange(0, n)\ntl.store(x + i, 1.0)"),
    "several comparisons": ("x:*fp32 B:constexpr", "i = tl.arange(0, 16)\ntl.store(x + i, 1.0, mask=0 < i < 9)"),
    "float as a place": ("x:*fp32 B:constexpr", "tl.store(x + 1.0, 2.0)"),
    "blocks that do not fit": ("x:*fp32 B:constexpr", "tl.store(x + tl.arange(0, 8) + tl.arange(0, 16), 1.0)"),
    "bits of floats": ("x:*fp32 B:constexpr", "v = tl.load(x)\ntl.store(x, v & v)"),
    "number too large": ("x:*i8 B:constexpr", "v = tl.load(x)\ntl.store(x, v + 1000)"),
}


@needs_triton
@pytest.mark.parametrize("what", REJECTED)
def test_what_the_compiler_rejects_the_emulator_rejects(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_ORACLE_KERNEL_CACHE", str(tmp_path))
    parameters, body = REJECTED[what]
    kernel = make_kernel("rejected", parameters, body)
    dtype = {"*fp16": torch.float16, "*i8": torch.int8}.get(kernel.parameters[0].type, torch.float32)
    with pytest.raises(WouldNotCompile):
        compile_to_cubin(kernel, {"B": 16})
    with pytest.raises(WouldNotCompile):
        EmulatorLevel().launch(kernel, (1,), [torch.zeros(64, dtype=dtype)], {"B": 16})


@needs_triton
def test_interpreter_writes_through_views_and_keeps_the_rest() -> None:
    kernel = make_kernel("fill", "o:*fp32 n:i32 B:constexpr", "i = tl.arange(0, B)\ntl.store(o + i, 7.0, mask=i < n)")
    base = torch.zeros(20)
    InterpreterLevel().launch(kernel, (1,), [base[5:15], 10], {"B": 16})
    assert base.tolist() == [0.0] * 5 + [7.0] * 10 + [0.0] * 5


@needs_triton
def test_interpreter_reports_pointers_outside_of_arguments() -> None:
    kernel = make_kernel("stray", "o:*fp32 B:constexpr", "tl.store(o + tl.arange(0, B), 7.0)")
    base = torch.zeros(64)
    with pytest.raises(
        InterpreterError, match=r"a store outside of all arguments: 6 lanes.*40 bytes after the start of 'o'"
    ):
        InterpreterLevel().launch(kernel, (1,), [base[:10]], {"B": 16})
    assert base.count_nonzero() == 0


@needs_triton
def test_modules_that_cannot_be_run_are_named_and_the_next_launch_runs() -> None:
    case = next(case for case in CASES if case.name == "row_sums")
    launches = [
        Launch(Kernel("k", "def k(:", ()), (1,), [], {}),
        Launch(Kernel("k", "import triton", ()), (1,), [], {}),
        Launch(case.kernel, case.grid, case.make(), case.constants),
    ]
    broken, missing, right = run_in_interpreter(launches)
    assert "its module raised SyntaxError" in str(broken)
    assert "a module that does not define it" in str(missing)
    assert right is None
    with pytest.raises(WouldNotCompile, match=r"SyntaxError|invalid syntax"):
        compile_to_cubin(Kernel("k", "def k(:", ()), {})


@needs_triton
def test_interpreter_runs_here_where_triton_was_imported_for_it_and_says_so_where_not(
    run_fresh: Callable[..., Any],
) -> None:
    script = """
import os, sys
mode = sys.argv[1]
os.environ.pop("TRITON_INTERPRET", None)
if mode == "before":
    os.environ["TRITON_INTERPRET"] = "1"
import torch, triton, triton.language
if mode == "after":
    os.environ["TRITON_INTERPRET"] = "1"
from refimpl.codegen.levels.interpreter import InterpreterLevel, _worker
from refimpl.tests.codegen.small_kernels import CASES
case = next(case for case in CASES if case.name == "row_sums")
arguments = case.make()
InterpreterLevel().launch(case.kernel, case.grid, arguments, case.constants)
assert _worker._process is None
assert torch.equal(arguments[1], arguments[0].sum(1))
print("ran here")
"""
    ran, refused = (run_fresh(script, mode) for mode in ("before", "after"))
    assert "ran here" in ran.stdout, ran.stderr
    assert refused.returncode == 1
    assert "TRITON_INTERPRET was set after Triton was imported" in refused.stderr


def _compile_first() -> None:
    compile_to_cubin(CASES[0].kernel, CASES[0].constants)


def _interpret_first() -> None:
    run_in_interpreter([Launch(CASES[0].kernel, CASES[0].grid, CASES[0].make(), CASES[0].constants)])


@pytest.mark.parametrize(("version", "seen"), [("3.5.1", "Triton 3.5.1"), (None, "not installed")])
@pytest.mark.parametrize("run", [_compile_first, _interpret_first])
def test_a_triton_that_kernels_are_not_written_for_is_named(
    run: Callable[[], object], version: str | None, seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def installed(name: str) -> str:
        if version is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return version

    monkeypatch.setattr(importlib.metadata, "version", installed)
    with pytest.raises(LevelUnavailable, match=seen):
        run()


def test_a_device_that_is_not_there_is_named() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(LevelUnavailable, match="no CUDA device"):
        DeviceLevel()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: (a[0], a[1], a[2][:-1], a[3]), r"2 arguments\n  expected: 3: x, y, o"),
        (lambda a: (a[0], a[1], [*a[2][:-1], 5], a[3]), "a int for 'o'"),
        (lambda a: (a[0], a[1], [*a[2][:-1], a[2][2].double()], a[3]), r"a tensor of torch.float64 for 'o'"),
        (lambda a: (a[0], a[1], a[2], {}), r"constants \[\]"),
        (lambda a: (a[0], (1, 2, 3, 4), a[2], a[3]), r"grid \(1, 2, 3, 4\)"),
    ],
)
def test_launches_that_do_not_fit_are_named(change: Any, message: str) -> None:
    case = next(case for case in CASES if case.name == "arithmetic")
    launch = change((case.kernel, case.grid, list(case.make()), case.constants))
    with pytest.raises(KernelError, match=message):
        EmulatorLevel().launch(*launch)


def test_a_parameter_of_no_type_is_named() -> None:
    with pytest.raises(KernelError, match="parameter 'x' of type 'float'"):
        Kernel("k", "", (Parameter("x", "float"),))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_device_computes_what_the_emulator_does(case: KernelCase) -> None:
    arguments = case.make()
    on_device = [a.cuda() if isinstance(a, torch.Tensor) else a for a in case.make()]
    EmulatorLevel().launch(case.kernel, case.grid, arguments, case.constants)
    level = DeviceLevel()
    for _ in range(2):  # the second launch finds the kernel compiled
        on_device = [a.cuda() if isinstance(a, torch.Tensor) else a for a in case.make()]
        level.launch(case.kernel, case.grid, on_device, case.constants)
    for seen, expected in zip(on_device, arguments, strict=True):
        if isinstance(seen, torch.Tensor):
            rtol = max(case.rtol, 1e-5) if seen.is_floating_point() else 0.0
            torch.testing.assert_close(seen.cpu(), expected, rtol=rtol, atol=rtol, equal_nan=True)


@needs_triton
def test_cubins_are_compiled_for_tensors_that_begin_where_those_of_the_launch_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[bool] = []

    def compile_one(*arguments: Any, has_aligned_tensors: bool) -> CompiledKernel:
        asked.append(has_aligned_tensors)
        return compile_to_cubin(*arguments, has_aligned_tensors=has_aligned_tensors)

    monkeypatch.setattr(choice, "compile_to_cubin", compile_one)
    kernel = make_kernel("small", "x:*fp32", "tl.store(x, 2.0)")
    level, memory = AlsoCompiled(EmulatorLevel(), [90]), torch.zeros(16)
    for begin in (0, 4, 1, 2):  # in elements of four bytes
        level.launch(kernel, (1,), [memory[begin : begin + 1]], {})
    assert asked == [True, False]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def k(:", "source that is no Python"),
        ("import triton\n", "defines None under this name"),
        ("import triton\n@triton.jit\ndef k(a):\n    pass\n", r"those of the function: \['a'\]"),
    ],
)
def test_modules_that_hold_no_such_kernel_are_named(source: str, message: str) -> None:
    with pytest.raises(KernelError, match=message):
        EmulatorLevel().launch(Kernel("k", source, ()), (1,), [], {})

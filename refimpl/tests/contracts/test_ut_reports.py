"""Contracts of capture's helpers (rows UT of docs/contracts.md, and DY-20): counters, times, reports, files, modules."""

from __future__ import annotations

import gc
import json
import logging
import re
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx
from torch.nn.modules.module import register_module_forward_hook

import refimpl
from refimpl._torch import FakeTensorMode
from refimpl.capture.config import config
from refimpl.capture.public import metrics, platforms, timing
from refimpl.capture.public.counters import counters
from refimpl.upstream import modules
from refimpl.upstream.debugging import (
    format_bytecode,
    gen_record_file_name,
    get_debug_dir,
    lazy_format_graph_tabular,
    setup_compile_debug,
    setup_log_file,
    write_record_to_file,
)
from refimpl.upstream.nested_inputs import flatten_graph_inputs, get_locals_to_steal, set_locals_to_steal
from refimpl.upstream.profiler import CompileProfiler, disable_cache_limit, format_func_info
from refimpl.upstream.weak import CleanupHook, CleanupManager, ExactWeakKeyDictionary

Tensor = torch.Tensor


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    refimpl.reset()
    counters.clear()
    timing.reset_frame_count()
    yield
    refimpl.reset()
    counters.clear()
    timing.reset_frame_count()


def breaking(x: Tensor) -> Tensor:
    y = x + 1
    refimpl.graph_break()
    return y * 2


def test_what_is_captured_is_counted() -> None:
    """UT-01"""
    refimpl.compile(breaking, backend="eager")(torch.ones(2))
    assert sum(counters["graph_break"].values()) == 1
    assert counters["stats"]["unique_graphs"] == 2
    assert counters["stats"]["calls_captured"] == 2
    assert counters["frames"] == {"total": 2, "ok": 2}
    limited = refimpl.compile(breaking, backend="eager", dynamic=False, recompile_limit=1)
    for size in (2, 3):
        limited(torch.ones(size))
    assert counters["recompile_limit"]["breaking"] >= 1


# ---------------------------------------------------------------------------------------------------------------- times


def test_timed_functions_keep_their_seconds() -> None:
    """UT-02"""

    @timing.dynamo_timed
    def plain(x: int) -> int:
        return x + 1

    @timing.dynamo_timed(phase_name="lowering")
    def phase() -> None:
        raise KeyError

    assert [plain(1), plain(2)] == [2, 3]
    for _ in range(2):
        with pytest.raises(KeyError):
            phase()
        timing.increment_frame()
    assert len(timing.compilation_time_metrics[plain.__qualname__]) == 2
    assert [list(phases) for phases in timing.frame_phase_timing.values()] == [["lowering"], ["lowering"]]
    spent = timing.calculate_time_spent()
    assert spent["lowering"] == spent["total_wall_time"] > 0
    timing.reset_frame_count()
    assert not timing.compilation_time_metrics
    assert not timing.frame_phase_timing
    assert timing.calculate_time_spent() == {}


def test_the_time_report_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """UT-02"""
    timing.frame_phase_timing["0"]["backend"] = 1.2345678
    timing.print_time_report()
    assert capsys.readouterr().out == "TIMING: backend:1.23457 total_wall_time:1.23457\n"


def test_times_as_table_and_as_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """UT-03, UT-04"""
    monkeypatch.setitem(sys.modules, "tabulate", None)
    timing.compilation_time_metrics["f"] += [1.0, 0.25]
    assert timing.compile_times() == "TorchDynamo compilation metrics:\nFunction, Runtimes (s)\nf, 1.0000, 0.2500"
    assert timing.compile_times("csv") == (["f"], ["1.000000, 0.250000"])
    assert timing.compile_times("csv", aggregate=True) == (["f"], ["1.250000"])
    assert timing.tabulate([[1, 2]], headers=("a", "b")) == "a, b\n1, 2"


def test_the_table_is_logged_when_the_process_ends(
    caplog: pytest.LogCaptureFixture, run_fresh: Callable[..., Any]
) -> None:
    """UT-03"""
    timing.compilation_time_metrics["f"] += [1.0, 0.25]
    with caplog.at_level(logging.INFO, logger="refimpl.capture"):
        timing.dump_compile_times()
    assert caplog.messages == [timing.compile_times(repr="str", aggregate=True)]
    program = (
        "import logging, torch, refimpl\n"
        "logging.basicConfig(level=logging.INFO)\n"
        "refimpl.compile(lambda x: x + 1, backend='eager')(torch.ones(2))\n"
        "print('done')"
    )
    done = run_fresh(program)
    assert "TorchDynamo compilation metrics:" in done.stderr
    assert "CapturedFunction._compiled" in done.stderr.partition("TorchDynamo compilation metrics:")[2]


def test_a_table_by_the_package_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """UT-04"""

    class Package:
        @staticmethod
        def tabulate(rows: Any, headers: Any) -> str:
            return f"{rows} below {headers}"

    monkeypatch.setitem(sys.modules, "tabulate", Package)
    assert timing.tabulate([[1]], headers=["a"]) == "[[1]] below ['a']"


def test_calls_are_counted() -> None:
    """UT-05"""
    graph = fx.symbolic_trace(lambda x: (x + 1).sin()).graph
    assert timing.count_calls(graph) == 2
    before = timing.op_count
    timing.increment_op_count(3)
    assert timing.op_count == before + 3


def test_the_profiler_counts_and_reports() -> None:
    """UT-36"""
    with CompileProfiler() as profiler:
        refimpl.optimize(profiler)(lambda x: x + 1)(torch.ones(2))
    assert (profiler.frame_count, profiler.op_count) == (1, 1)
    assert "No graph breaks detected." in profiler.report()
    assert "No recompilation detected." in profiler.report()

    profiler = CompileProfiler()
    compiled = refimpl.optimize(profiler, dynamic=False, guard_fail_fn=profiler.guard_failed)(breaking)
    for size in range(2, 14):
        compiled(torch.ones(size))
    assert profiler.frame_count == 24, "no limit while it is the backend"
    report = profiler.report()
    assert re.search(r"12, .*graph.break", report), "of each of twelve sizes once"
    assert format_func_info(breaking.__code__) in report
    assert "config.recompile_limit" in report
    assert list(profiler.get_metrics()["guard_failures"]) == [breaking.__code__]
    before = config.recompile_limit
    with disable_cache_limit():
        assert config.cache_size_limit == sys.maxsize
    assert config.recompile_limit == before


def records() -> list[metrics.CompilationMetrics]:
    return [record for record in metrics.get_compilation_metrics() if isinstance(record, metrics.CompilationMetrics)]


def test_every_segment_has_a_record() -> None:
    """UT-16"""
    metrics.clear_compilation_metrics()
    refimpl.compile(breaking, backend="eager")(torch.ones(2))
    first, second = records()
    assert (first.co_name, first.co_filename) == ("breaking", __file__)
    assert (first.graph_op_count, first.graph_input_count, first.graph_node_count) == (1, 1, 3)
    assert first.has_guarded_code
    assert first.guard_count > 0
    assert first.entire_frame_compile_time_s >= first.backend_compile_time_s > 0
    assert len(first.restart_reasons) == 1
    assert second.restart_reasons == ()
    assert second.compile_id > first.compile_id
    assert second.frame_key != first.frame_key
    assert (second.cache_size, second.accumulated_cache_size) == (0, 1), "of its place, and of the code"
    with pytest.raises(RuntimeError):
        refimpl.compile(breaking, backend="eager", fullgraph=True)(torch.ones(2))
    failed = records()[-1]
    assert not failed.has_guarded_code
    assert failed.fail_type == "Unsupported"
    assert "graph" in str(failed.fail_reason)
    assert (failed.fail_user_frame_filename, failed.fail_user_frame_lineno) == (
        __file__, breaking.__code__.co_firstlineno + 2,
    )  # fmt: skip
    metrics.set_compilation_metrics_limit(2)
    try:
        assert metrics.get_compilation_metrics() == [second, failed], "the newest"
        refimpl.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
        assert metrics.get_compilation_metrics()[0] == failed
    finally:
        metrics.set_compilation_metrics_limit(metrics.LIMIT)


def test_a_record_tells_of_sizes_restarts_and_operators_of_libraries() -> None:
    """UT-16"""
    library = torch.library.Library("refimpl_metrics_test", "DEF")
    for name, tags in (("fit", (torch.Tag.pt2_compliant_tag,)), ("unfit", ())):
        library.define(f"{name}(Tensor x) -> Tensor", tags=tags)
        library.impl(name, torch.clone, "CompositeExplicitAutograd")
        torch.library.register_fake(f"refimpl_metrics_test::{name}", torch.empty_like, lib=library)
    fit, unfit = torch.ops.refimpl_metrics_test.fit, torch.ops.refimpl_metrics_test.unfit

    def helper(x: Tensor) -> Tensor:
        refimpl.graph_break()
        return x + 1

    def program(x: Tensor) -> Tensor:
        y = fit(x) + unfit(x)
        return helper(y + 1 if x.shape[0] > 3 else y)

    metrics.clear_compilation_metrics()
    refimpl.compile(program, backend="eager", dynamic=True)(torch.ones(4))
    first = records()[0]
    assert first.shape_env_guard_count == 1
    assert first.dynamo_time_before_restart_s > 0, "it was interpreted once more up to the call of the helper"
    assert records()[-1].dynamo_time_before_restart_s == 0
    assert (first.compliant_custom_ops, first.non_compliant_ops) == (
        {"refimpl_metrics_test.fit"}, {"refimpl_metrics_test.unfit"},
    )  # fmt: skip
    structured = first.structured()
    assert json.loads(json.dumps(structured)) == structured
    assert structured["non_compliant_ops"] == ["refimpl_metrics_test.unfit"]
    assert len(structured) == 26


# ------------------------------------------------------------------------------------------------------- files and logs


def test_a_folder_and_a_log_for_debugging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """UT-08"""
    logger = logging.getLogger("refimpl.capture")
    before = list(logger.handlers)
    with config.patch(debug_dir_root=str(tmp_path)):
        folder = get_debug_dir()
        assert get_debug_dir() == folder
        assert re.fullmatch(rf"run_[\d_]+-pid_{__import__('os').getpid()}", Path(folder).name)
        monkeypatch.delenv("TORCH_COMPILE_DEBUG", raising=False)
        with setup_compile_debug():
            assert logger.handlers == before
        monkeypatch.setenv("TORCH_COMPILE_DEBUG", "1")
        with setup_compile_debug():
            logger.error("to be found")
        assert "to be found" in (Path(folder) / "torchdynamo" / "debug.log").read_text(encoding="utf-8")
    with config.patch(log_file_name=str(tmp_path / "log.txt")), setup_log_file():
        logger.error("also found")
    assert "also found" in (tmp_path / "log.txt").read_text(encoding="utf-8")
    with setup_log_file():
        assert logger.handlers == before
    assert logger.handlers == before
    assert not get_debug_dir().startswith(str(tmp_path))


class Recording:
    def dump(self, file: Any) -> None:
        file.write(b"recorded")


def test_a_recording_is_never_written_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """UT-09"""
    with config.patch(debug_dir_root=str(tmp_path)):
        name = Path(gen_record_file_name(KeyError(), breaking.__code__))
    assert name.name == f"breaking_KeyError_{breaking.__code__.co_firstlineno}.rec"
    assert name.parent.name == "error_recordings"
    write_record_to_file(str(name), Recording())
    assert name.read_bytes() == b"recorded"
    name.write_bytes(b"first")
    write_record_to_file(str(name), Recording())
    assert name.read_bytes() == b"first"
    assert "is not written, because the file exists" in caplog.text
    write_record_to_file(str(name / "below a file" / "x.rec"), Recording())
    assert "cannot be written to" in caplog.text


def test_texts_are_made_when_they_are_shown() -> None:
    """UT-45"""
    graph = fx.symbolic_trace(lambda x: x + 1)
    lazy = lazy_format_graph_tabular("function", graph)
    graph.graph.inserting_before(next(iter(reversed(graph.graph.nodes))))
    node = next(node for node in graph.graph.nodes if node.op == "call_function")
    node.target = torch.mul
    assert "mul" in str(lazy), "it was not made before"
    assert str(lazy).startswith("function")
    text = format_bytecode("ORIGINAL", "breaking", "file.py", 3, breaking.__code__)
    assert text.startswith("ORIGINAL breaking file.py line 3 \n")
    assert "RETURN_VALUE" in text


# ------------------------------------------------------------------------------------------------------------ weak maps


class Key:
    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 1


def test_keys_by_identity_that_are_not_kept_alive() -> None:
    """UT-10"""
    table = ExactWeakKeyDictionary()
    first, second = Key(), Key()
    table[first], table[second] = 1, 2
    assert (table[first], table[second], len(table)) == (1, 2, 2)
    table[first] = 3
    assert table.get(first) == 3
    del first
    gc.collect()
    assert len(table) == 1
    assert Key() not in table
    assert table.get(Key(), "none") == "none"
    assert second in table
    assert [*map(id, table)] == [id(second)]
    with pytest.raises(KeyError):
        del table[Key()]
    table.clear()
    assert second not in table
    table[second] = 4
    del table[second]
    assert len(table) == 0
    table[second] = 5
    del second
    gc.collect()
    assert len(table) == 0


def test_a_map_dies_before_its_keys_do() -> None:
    """UT-10"""
    table, key = ExactWeakKeyDictionary(), Key()
    table[key] = 1
    ended = weakref.ref(table)
    del table
    assert ended() is None
    del key  # its callback finds no map


def test_a_global_goes_with_its_owner() -> None:
    """UT-11"""
    scope: dict[str, Any] = {}
    before = CleanupManager.count
    hook = CleanupHook.create(scope, "made", 3)
    assert scope == {"made": 3}
    with pytest.raises(AssertionError, match="made is a global already"):
        CleanupHook.create(scope, "made", 4)
    owner = Key()
    CleanupManager.instance[owner] = [hook, CleanupHook.create(scope, "other", 5)]
    assert CleanupManager.count == before + 2
    del owner
    gc.collect()
    assert scope == {}
    assert CleanupManager.count == before


# -------------------------------------------------------------------------------------------------------------- modules


def test_a_module_with_fake_parameters_is_named() -> None:
    """UT-42"""
    modules.assert_no_fake_params_or_buffers(torch.nn.BatchNorm1d(2))
    with FakeTensorMode():
        linear = torch.nn.Linear(2, 2)
        norm = torch.nn.BatchNorm1d(2, affine=False)
    with pytest.raises(AssertionError, match=r"Unexpected fake param weight(?s:.*)TORCH_FAKE_TENSOR_DEBUG"):
        modules.assert_no_fake_params_or_buffers(linear)
    with pytest.raises(AssertionError, match="Unexpected fake buffer running_mean"):
        modules.assert_no_fake_params_or_buffers(norm)


@pytest.mark.parametrize("kind", ["param", "buffer"])
def test_the_stack_of_a_fake_tensor_s_creation_is_shown_where_torch_records_it(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """UT-42"""
    monkeypatch.setattr("torch._subclasses.fake_tensor.FakeTensorConfig.debug", True)
    with FakeTensorMode():
        module = torch.nn.Linear(2, 2) if kind == "param" else torch.nn.BatchNorm1d(2, affine=False)
    with pytest.raises(
        AssertionError, match=rf"Unexpected fake {kind}(?s:.*)made at:(?s:.*)test_ut_reports\.py"
    ) as caught:
        modules.assert_no_fake_params_or_buffers(module)
    assert "TORCH_FAKE_TENSOR_DEBUG" not in str(caught.value)


def test_hooks_of_a_module() -> None:
    """UT-46"""
    module = torch.nn.Linear(2, 2)
    assert not modules.nnmodule_has_hooks(module)

    def hook(*args: Any) -> None:
        return None

    module.register_forward_hook(hook)
    module.register_full_backward_hook(hook)
    module.register_state_dict_pre_hook(hook)
    assert modules.nn_module_get_all_hooks(module) == [hook, hook], "those of the state dict have to be asked for"
    assert modules.nn_module_get_all_hooks(module, check_forward_hooks=True) == [hook]
    assert modules.nn_module_get_all_hooks(module, check_state_dict_hooks=True) == [hook]
    assert modules.nnmodule_has_hooks(module, check_backward_hooks=True)
    assert set(modules.all_hook_names) <= set(vars(module))
    assert not modules.nn_module_has_global_hooks()
    handle = register_module_forward_hook(hook)
    try:
        assert modules.nn_module_has_global_hooks()
    finally:
        handle.remove()


def test_proxies_handles_and_first_attributes() -> None:
    """UT-54"""
    module = torch.nn.Linear(2, 2)
    proxy = modules.nn_module_proxy(module)
    assert proxy is not module
    assert type(proxy) is torch.nn.Linear
    setattr(proxy, "noted", 3)
    assert getattr(module, "noted") == 3
    graph = fx.symbolic_trace(torch.nn.ReLU())
    assert modules.nn_module_proxy(graph) is graph
    assert modules.nn_module_proxy(3) == 3
    modules.invalid_removeable_handle().remove()
    assert modules.get_first_attr(module, "no_such", "bias") is module.bias
    with pytest.raises(AssertionError, match="none of the attributes a, b"):
        modules.get_first_attr(module, "a", "b")


# ------------------------------------------------------------------------------------------------------------ platforms


def test_the_question_agrees_with_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """DY-20"""
    platforms.check_if_dynamo_supported()
    assert platforms.is_dynamo_supported()
    monkeypatch.setattr(platforms.sys, "version_info", (3, 9, 1))
    assert not platforms.is_dynamo_supported()
    with pytest.raises(RuntimeError, match=r"3\.9(?s:.*)3\.10 to 3\.13"):
        platforms.check_if_dynamo_supported()
    for entry in (lambda: refimpl.compile(breaking), lambda: refimpl.export_graph(breaking)):
        with pytest.raises(RuntimeError, match=r"3\.9"):
            entry()


def test_backends_that_make_machine_code_ask_about_the_system_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """DY-20"""
    platforms.check_if_inductor_supported()
    assert platforms.is_inductor_supported()
    with monkeypatch.context() as patched:
        patched.setattr(platforms.sys, "platform", "win32")
        assert platforms.is_dynamo_supported()
        assert not platforms.is_inductor_supported()
        with pytest.raises(RuntimeError, match="Windows"):
            platforms.check_if_inductor_supported()
    monkeypatch.setattr(platforms.sys, "version_info", (3, 9, 1))
    assert not platforms.is_inductor_supported()
    with pytest.raises(RuntimeError, match=r"3\.9"):
        platforms.check_if_inductor_supported()


@pytest.mark.parametrize(("device", "has_triton", "is_supported"), [
    ("cpu", False, True), ("cuda", True, True), ("cuda", False, False), ("mps", True, False),
])  # fmt: skip
def test_devices_that_compile(
    monkeypatch: pytest.MonkeyPatch, device: str, has_triton: bool, is_supported: bool
) -> None:
    """UT-50"""
    monkeypatch.setattr(platforms.importlib.util, "find_spec", lambda name: object() if has_triton else None)
    assert platforms.is_compile_supported(device) is is_supported


# -------------------------------------------------------------------------------------------------------- nested inputs


def test_a_list_of_inputs_is_flattened_for_the_compiler() -> None:
    """UT-55"""
    graph = fx.symbolic_trace(lambda xs, y: xs[0] * 2 + xs[1] + y)
    set_locals_to_steal(graph, ["xs"])
    assert get_locals_to_steal(graph) == ["xs"]
    assert get_locals_to_steal(3) == []
    seen: list[int] = []

    def compiler(module: torch.nn.Module, leaves: list[Any]) -> Any:
        seen.append(len(leaves))
        return module

    one, two, three = (torch.full((2,), float(number)) for number in (1, 2, 3))
    call = flatten_graph_inputs(graph, [[one, two], three], compiler)
    stolen = [one, two]
    assert call(stolen, three).tolist() == [7, 7]
    assert seen == [3]
    assert stolen == [], "what the call may free is not held by its caller"

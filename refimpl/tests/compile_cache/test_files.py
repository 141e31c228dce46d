"""Files that are damaged, foreign or of another version are misses with a reason; writing is atomic, and the folder bounded."""

from __future__ import annotations

import json
import os
import pickle
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import refimpl
from refimpl.aot.options import AOTSettings, aot_settings
from refimpl.aot_entry_points import aot_module_simplified
from refimpl.backends import eager
from refimpl.compile_cache import programs, store
from refimpl.compile_cache.environment import FORMAT
from refimpl.tests.compile_cache.looking_up import compiled, counted, reasons


def function(x: Tensor) -> tuple[Tensor, ...]:
    y = x.sin()
    return (y * 2, y.t())


def _args() -> list[Tensor]:
    return [torch.arange(6.0).view(2, 3).requires_grad_()]


def _run(folder: Path) -> dict[str, int]:
    """Compile, and compare results and gradient with eager mode. What the cache counted."""
    args, eager_args = _args(), _args()
    call, counts = compiled(function, args, folder)
    results, expected = call(*args), function(*eager_args)
    for result, wanted in zip(results, expected, strict=True):
        assert torch.equal(result, wanted)
    assert results[1]._base is not None
    results[0].sum().backward()
    expected[0].sum().backward()
    assert torch.equal(args[0].grad, eager_args[0].grad)  # type: ignore[arg-type]
    return counts


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """The file of the function."""
    assert _run(tmp_path) == {"miss": 1, "saved": 1}
    (path,) = tmp_path.iterdir()
    return path


def _flipped(content: bytes) -> bytes:
    middle = (content.index(b"\n") + len(content)) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


class _Marked:
    """What runs if a file is unpickled."""

    def __reduce__(self) -> Any:
        return (exec, ("raise SystemExit('a file was unpickled')",))


DAMAGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "one bit": (_flipped, "damaged or truncated"),
    "the last byte": (lambda content: content[:-1], "damaged or truncated"),
    "the second half": (lambda content: content[: len(content) // 2], "damaged or truncated"),
    "all but the first line": (lambda content: content[: content.index(b"\n")], "damaged or truncated"),
    "everything": (lambda content: b"", "it begins with"),
    "another file": (lambda content: os.urandom(500), "it begins with"),
    "a pickle": (lambda content: pickle.dumps(_Marked()), "it begins with"),
    "more at the end": (lambda content: content + b"\n", "damaged or truncated"),
    "another version": (lambda content: content.replace(f" {FORMAT} ".encode(), b" 999 ", 1), "its version is '999'"),
    "another key": (lambda content: content.replace(content.split(b" ")[2], b"0" * 64, 1), "its key is '000"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_an_unusable_file_is_a_miss_and_is_replaced(name: str, kept: Path, caplog: pytest.LogCaptureFixture) -> None:
    damage, message = DAMAGES[name]
    kept.write_bytes(damage(kept.read_bytes()))
    found = reasons("miss", lambda: _run(kept.parent))
    assert found == [programs.DAMAGED]
    assert message in caplog.text
    assert _run(kept.parent) == {"hit": 1}


def test_the_file_of_another_user_is_a_miss(
    kept: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 123456)
    assert reasons("miss", lambda: _run(kept.parent)) == [programs.DAMAGED]
    assert "another user" in caplog.text


def test_a_folder_in_the_place_of_a_file_is_a_miss(kept: Path) -> None:
    kept.unlink()
    kept.mkdir()
    assert _run(kept.parent) == {"miss": 1}


# ------------------------------------------------------------------------------ the hash is right, and the content is not


def _record(path: Path) -> Any:
    return store.read(path.parent, path.stem, FORMAT)


def _write(path: Path, record: Any) -> None:
    store.write(path.parent, path.stem, FORMAT, record, 2**30)


def _without_program(record: Any) -> None:
    del record["program"]


def _code_for_a_guard(record: Any) -> None:
    record["guards"] = ["__import__('os').abort()"]


def _unknown_operator(record: Any) -> None:
    record["program"]["operators"]["torch.ops.aten.no_such.default"] = None


def _code_for_a_name(record: Any) -> None:
    record["program"]["graphs"]["forward"]["nodes"][1]["name"] = "x): import os; os.abort() #"


def _unknown_record(record: Any) -> None:
    record["program"]["facts"]["plan"]["record"][0] = "Popen"


def _missing_field(record: Any) -> None:
    del record["program"]["facts"]["plan"]["record"][1]["slots"]


def _earlier_node(record: Any) -> None:
    record["program"]["graphs"]["forward"]["nodes"].reverse()


def _no_fake(record: Any) -> None:
    record["program"]["fakes"].clear()


CONTENTS = (
    _without_program, _code_for_a_guard, _unknown_operator, _code_for_a_name, _unknown_record, _missing_field, _earlier_node,
    _no_fake,
)  # fmt: skip


@pytest.mark.parametrize("change", CONTENTS, ids=lambda change: change.__name__.strip("_"))
def test_malformed_content_is_a_miss(change: Callable[[Any], None], kept: Path) -> None:
    (record,) = _record(kept)
    change(record)
    _write(kept, [record])
    assert reasons("miss", lambda: _run(kept.parent)) == [programs.MALFORMED]
    assert _run(kept.parent) == {"hit": 1}


@pytest.mark.parametrize("content", [None, [None], {}, 3, "text"], ids=str)
def test_other_json_is_a_miss(content: Any, kept: Path) -> None:
    _write(kept, content)
    assert _run(kept.parent) == {"miss": 1, "saved": 1}


def test_content_that_unpacks_to_too_much_is_a_miss(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "LARGEST_RECORD", 100)
    assert reasons("miss", lambda: _run(kept.parent)) == [programs.DAMAGED]


# ------------------------------------------------------------------------------------------------------------------- guards


def _symbolic(x: Tensor) -> Tensor:
    return (x * 2).sin()


def _captured(folder: Path, size: int) -> tuple[Callable[..., Any], dict[str, int]]:
    refimpl.reset()
    with aot_settings(enable_autograd_cache=True, autograd_cache_folder=str(folder)):
        call = refimpl.compile(_symbolic, backend="aot_eager", dynamic=True)
        x = torch.randn(size, 3)
        result, counts = counted(lambda: call(x))
    assert torch.equal(result, _symbolic(x))
    return call, counts


def test_guards_of_a_kept_program_are_checked_and_added(tmp_path: Path) -> None:
    """A program with a guard that the trace has added serves sizes for which it holds, and is captured again for others."""
    assert _captured(tmp_path, 5)[1] == {"miss": 1, "saved": 1}
    (path,) = tmp_path.iterdir()
    (record,) = _record(path)
    assert record["guards"] == []
    symbol = next(size for fake in record["program"]["fakes"] for size in fake["shape"] if isinstance(size, str))
    record["guards"] = [f"StrictGreaterThan({symbol}, 7)"]
    _write(path, [record])
    call, counts = _captured(tmp_path, 9)
    assert counts == {"hit": 1}
    with aot_settings(enable_autograd_cache=True, autograd_cache_folder=str(tmp_path)):
        x = torch.randn(10, 3)
        assert torch.equal(call(x), _symbolic(x))
        x = torch.randn(4, 3)  # the guard fails: captured again, under other facts
        result, counts = counted(lambda: call(x))
    assert torch.equal(result, _symbolic(x))
    assert counts == {"miss": 1, "guard_miss": 1, "saved": 1}
    without, with_guard = _record(path)
    assert (without["guards"], with_guard["guards"]) == ([], record["guards"])
    assert _captured(tmp_path, 6)[1] == {"hit": 1}


# ------------------------------------------------------------------------------------------------------------- writing


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fails)
        assert _run(tmp_path) == {"miss": 1}
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert _run(tmp_path / "file" / "cache") == {"miss": 1}


@pytest.mark.parametrize("name", ["a\0b", "\udcff\ud800", "x" * 5000], ids=["nul", "no text", "long"])
def test_a_name_that_no_folder_can_have_is_no_error(name: str, tmp_path: Path) -> None:
    assert _run(tmp_path / name) == {"miss": 1}


def test_a_user_without_a_home_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("TORCH_ORACLE_AUTOGRAD_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", fails)
    with aot_settings(enable_autograd_cache=True):
        graph = torch.fx.symbolic_trace(function)
        call, counts = counted(lambda: aot_module_simplified(graph, _args(), eager))
    assert counts == {"miss": 1}
    assert torch.equal(call(*_args())[0], function(*_args())[0])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path, run_forked: Callable[[str], Any]) -> None:
    path = tmp_path / "key.program"
    os.mkfifo(path)
    code = "from pathlib import Path; from refimpl.compile_cache import store\n"
    code += (
        f"try:\n    store.read(Path({str(tmp_path)!r}), 'key', 1)\nexcept store.Unusable as error:\n    print(error)"
    )
    child = run_forked(code)
    assert child.stdout.strip() == "it is no regular file", child.stderr[-2000:]


def test_the_files_used_longest_ago_are_removed(tmp_path: Path) -> None:
    for number in range(6):
        store.write(tmp_path, f"key{number}", 1, os.urandom(1000).hex(), 2**30)
        os.utime(tmp_path / f"key{number}.program", (number, number))
    size = (tmp_path / "key0.program").stat().st_size
    assert store.read(tmp_path, "key0", 1) is not None  # reading is using
    old = tmp_path / "abandoned.part"
    old.write_text("")
    os.utime(old, (1, 1))
    (tmp_path / "written_now.part").write_text("")
    (tmp_path / "notes.txt").write_text("x" * 100_000)
    store.clean(tmp_path, size * 5)
    assert {path.name for path in tmp_path.iterdir()} == {
        "key0.program", "key4.program", "key5.program", "written_now.part", "notes.txt"
    }  # fmt: skip


def test_a_compile_keeps_the_folder_within_its_bound(tmp_path: Path) -> None:
    for size in range(2, 8):
        with aot_settings(autograd_cache_bytes=6000):
            compiled(function, [torch.ones(size, 2)], tmp_path)
    assert 0 < sum(path.stat().st_size for path in tmp_path.iterdir()) <= 6000


def test_the_folder_is_that_of_the_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TORCH_ORACLE_AUTOGRAD_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert store.folder_of(AOTSettings()) == tmp_path / "torch-oracle" / "autograd"
    monkeypatch.setenv("TORCH_ORACLE_AUTOGRAD_CACHE", str(tmp_path / "chosen"))
    assert store.folder_of(AOTSettings()) == tmp_path / "chosen"
    assert store.folder_of(AOTSettings(autograd_cache_folder="own")) == Path("own")


def test_it_is_off_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_ORACLE_AUTOGRAD_CACHE", str(tmp_path))
    refimpl.reset()
    _, counts = counted(lambda: refimpl.compile(_symbolic, backend="aot_eager")(torch.ones(2)))
    assert counts == {}
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_json_behind_one_line(kept: Path) -> None:
    head, _, _ = kept.read_bytes().partition(b"\n")
    assert head.split(b" ")[:3] == [store.MAGIC.encode(), str(FORMAT).encode(), kept.stem.encode()]
    assert [set(one) for one in json.loads(json.dumps(_record(kept)))] == [{"guards", "program"}]
    assert time.time() - kept.stat().st_mtime < 600


def test_torch_s_own_batching_rules_are_no_replaced_kernels(tmp_path: Path) -> None:
    """torch registers some of them in Python, at the first vmap of a process."""
    torch.vmap(torch.sin)(torch.ones(2, 2))
    assert _run(tmp_path) == {"miss": 1, "saved": 1}
    assert _run(tmp_path)["hit"] == 1

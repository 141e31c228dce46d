"""What the user types becomes a spec, or one clear message."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from oracle.errors import UsageError
from oracle.subjects.options import split_names, split_options
from oracle.subjects.registry import BUILT_IN, check_requirements, known, load, resolve
from oracle.subjects.spec import SubjectSpec


def test_the_registry_loads_no_torch() -> None:
    code = (
        "import sys, oracle.subjects.registry as r; r.resolve('inductor'); r.known(); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[2], timeout=60)


def test_the_ladder() -> None:
    rungs = {name: resolve(name).rung for name in BUILT_IN}
    assert {name: rung for name, rung in rungs.items() if rung is not None} == {
        "eager": 0, "dynamo": 1, "aot_eager": 2, "aot_eager_decomp_partition": 3, "inductor": 4
    }  # fmt: skip


def test_whose_random_numbers_are_their_own() -> None:
    assert [name for name in BUILT_IN if resolve(name).rng == "own"] == [
        "eager_fp64",
        "aot_eager_decomp_partition",
        "inductor",
    ]
    assert resolve("inductor[options.fallback_random=true]").rng == "eager"
    assert resolve("inductor[options.fallback_random=false]").rng == "own"


@pytest.mark.parametrize(
    ("name", "kind", "options"),
    [
        (
            "dynamo[dynamic=true,fullgraph=false]",
            "torch_compile",
            {"dynamic": True, "fullgraph": False, "backend": "eager"},
        ),
        (
            "inductor[mode=max-autotune-no-cudagraphs]",
            "torch_compile",
            {"mode": "max-autotune-no-cudagraphs", "backend": "inductor"},
        ),
        ("inductor[options.max_fusion_size=8]", "torch_compile", {"options.max_fusion_size": 8, "backend": "inductor"}),
        ("make_fx", "make_fx", {}),
        ("make_fx[ mode = fake ]", "make_fx", {"mode": "fake"}),
        ("export[strict=false]", "export", {"strict": False}),
        ("refimpl.make_fx[mode=real]", "refimpl.make_fx", {"mode": "real"}),
        ("pkg.module:backend[dynamic=null]", "backend", {"dynamic": None}),
        ("compile:pkg:Class.method[level=3,name='x y']", "compiler", {"level": 3, "name": "x y"}),
    ],
)
def test_names_with_options(name: str, kind: str, options: dict[str, object]) -> None:
    spec = resolve(name)
    assert (spec.name, spec.kind, dict(spec.options)) == (name, kind, options)
    assert SubjectSpec.from_json(spec.to_json()) == spec


def test_names_are_split_at_commas_outside_brackets() -> None:
    assert split_names("eager, inductor[mode=default,dynamic=true],a:b,") == [
        "eager",
        "inductor[mode=default,dynamic=true]",
        "a:b",
    ]


@pytest.mark.parametrize(
    ("text", "value"), [("1", 1), ("1.5", 1.5), ("true", True), ("None", None), ('"1"', "1"), ("a-b", "a-b")]
)
def test_option_values(text: str, value: object) -> None:
    assert split_options(f"x[k={text}]") == ("x", {"k": value})


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("inducto", ["did you mean inductor", "aot_eager_decomp_partition", "compile:module:function"]),
        ("", ["one of eager"]),
        ("inductor[mod=default]", ["option 'mod'", "did you mean mode"]),
        ("inductor[mode=fast]", ["mode=fast", "max-autotune"]),
        ("inductor[dynamic=1]", ["dynamic=1", "bool"]),
        ("inductor[mode=default,options.cpp_wrapper=true]", ["both mode and options"]),
        ("eager_fp64[mode=fake]", ["no options"]),
        ("eager[mode=fake]", ["mode", "process"]),
        ("make_fx[mode=imaginary]", ["real, fake, symbolic"]),
        ("refimpl.make_fx[mode=dreamt]", ["real, fake, symbolic"]),
        ("dynamo[dynamic=true", ["name[key=value,key=value]"]),
        ("dynamo[dynamic]", ["name[key=value,key=value]"]),
        ("dynamo[dynamic=true,dynamic=true]", ["twice"]),
        ("module:", ["module:function"]),
        (":function", ["module:function"]),
        ("compile:module", ["module:function"]),
        ("some/path.py:function", ["module:function"]),
    ],
)
def test_a_bad_name_is_one_clear_message(name: str, words: list[str]) -> None:
    with pytest.raises(UsageError) as raised:
        resolve(name)
    for word in words:
        assert word in str(raised.value)
    assert "what to do" in str(raised.value)


def test_known_lists_everything_with_its_options(tmp_path: Path) -> None:
    listed = {spec.name: text for spec, text in known()}
    assert list(listed) == list(BUILT_IN)
    assert "mode=real|fake|symbolic" in listed["make_fx"]
    file = tmp_path / "subjects.toml"
    file.write_text('[subjects.mine]\npath = "a:b"\n')
    assert [spec.name for spec, _ in known(subjects_file=file)] == [*BUILT_IN, "mine"]


def test_a_backend_that_an_installed_package_registers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "accel-0.1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: accel\nVersion: 0.1\n")
    (folder / "entry_points.txt").write_text("[torch_dynamo_backends]\naccel = accel.backend:compile_graph\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = resolve("accel[dynamic=true]")
    assert (spec.name, spec.path, spec.options) == (
        "accel[dynamic=true]",
        "accel.backend:compile_graph",
        {"dynamic": True},
    )
    assert "accel" in [spec.name for spec, _ in known()]
    with pytest.raises(UsageError, match="did you mean accel"):
        resolve("acel")


def test_the_subjects_file(tmp_path: Path) -> None:
    file = tmp_path / "subjects.toml"
    file.write_text(
        """
        [subjects.mine]
        path = "pkg.backend:compile_graph"
        options = { dynamic = true, options = { level = 2 } }
        env = { PKG_FLAG = "1" }
        rng = "own"

        [subjects.whole]
        path = "pkg:compile"
        kind = "compiler"

        [subjects.scalar-inductor]
        kind = "inductor"
        env = { TORCHINDUCTOR_VEC_ISA_OK = "0" }
        """
    )
    mine = resolve("mine[fullgraph=true]", subjects_file=file)
    assert (mine.kind, mine.path, dict(mine.env), mine.rng) == (
        "backend",
        "pkg.backend:compile_graph",
        {"PKG_FLAG": "1"},
        "own",
    )
    assert dict(mine.options) == {"dynamic": True, "options.level": 2, "fullgraph": True}
    assert (resolve("whole", subjects_file=file).kind, resolve("whole", subjects_file=file).path) == (
        "compiler",
        "pkg:compile",
    )
    scalar = resolve("scalar-inductor", subjects_file=file)
    assert (scalar.rung, scalar.rng, scalar.requires, dict(scalar.options)) == (
        4,
        "own",
        ("g++",),
        {"backend": "inductor"},
    )
    assert resolve("eager", subjects_file=file).kind == "eager"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[subjects.a]\npaht = "x:y"', ["subjects.a.paht", "path, kind, options, env, rng"]),
        ('[subject.a]\npath = "x:y"', ["subject"]),
        ('[subjects.a]\npath = "x"', ["subjects.a.path", "module:function"]),
        ('[subjects.a]\npath = "x:"', ["module:function"]),
        ("[subjects.a]\npath = 3", ["subjects.a.path", "a string"]),
        ('[subjects.a]\npath = "x:y"\nkind = "inductor"', ["subjects.a.kind"]),
        ('[subjects.a]\nkind = "inducto"', ["inducto", "a path"]),
        ("[subjects.a]", ["subjects.a", "kind"]),
        ('[subjects.a]\npath = "x:y"\nrng = "mine"', ["subjects.a.rng", "eager"]),
        ('[subjects.a]\npath = "x:y"\nenv = { A = 1 }', ["subjects.a.env.A", "quotes"]),
        ('[subjects.a]\npath = "x:y"\nenv = "A=1"', ["subjects.a.env", "a table"]),
        ('[subjects.a]\npath = "x:y"\noptions = { dynamic = [1] }', ["subjects.a.options.dynamic"]),
        ('[subjects.eager]\npath = "x:y"', ["subjects.eager", "built in"]),
        ('[subjects."a b"]\npath = "x:y"', ["a b", "a name"]),
        ("[subjects.a\n", ["TOML"]),
        ("subjects = 3", ["subjects"]),
    ],
)
def test_a_bad_subjects_file_is_one_clear_message(tmp_path: Path, text: str, words: list[str]) -> None:
    file = tmp_path / "subjects.toml"
    file.write_text(text)
    with pytest.raises(UsageError) as raised:
        resolve("a", subjects_file=file)
    for word in words:
        assert word in str(raised.value)


def test_options_in_the_file_are_checked_when_the_subject_is_named(tmp_path: Path) -> None:
    file = tmp_path / "subjects.toml"
    file.write_text('[subjects.a]\nkind = "export"\noptions = { mode = "fast" }')
    with pytest.raises(UsageError, match="option 'mode'"):
        resolve("a", subjects_file=file)


def test_a_missing_subjects_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere\.toml"):
        resolve("eager", subjects_file=tmp_path / "nowhere.toml")


def test_inductor_needs_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler = tmp_path / "g++"
    compiler.write_text("#!/bin/sh\n")
    compiler.chmod(0o755)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    check_requirements(resolve("inductor"))
    compiler.unlink()
    with pytest.raises(UsageError, match="apt-get install"):
        check_requirements(resolve("inductor"))
    check_requirements(resolve("aot_eager"))
    monkeypatch.setenv("CXX", sys.executable)
    check_requirements(resolve("inductor"))


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(UsageError, match="of kind 'later'"):
        load(SubjectSpec(name="x", kind="later"))
    with pytest.raises(UsageError, match="requirement 'abacus'"):
        check_requirements(SubjectSpec(name="x", kind="eager", requires=("abacus",)))

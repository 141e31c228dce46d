"""Parts of the conformance runner, one at a time: names, guard, stand-ins, cache, the table of expected failures, the page."""

from __future__ import annotations

import ast
import contextlib
import math
import sys
import types
import weakref
from pathlib import Path
from typing import Any
from unittest import mock

import functorch.compile
import pytest
import torch
from torch._dynamo import mutation_guard
from torch.fx.experimental import proxy_tensor, symbolic_shapes

from oracle.errors import UsageError
from oracle.isolate import Died, OutOfMemory, TimedOut
from oracle.subjects import refimpl as subject
from suites.conformance.expected import CATEGORIES, ExpectedFailure, judge_failures, read_expected
from suites.conformance.guard import IndependenceBreach, IndependenceGuard
from suites.conformance.outcomes import Ending, OutcomeCache, ResultRow, TestOutcome
from suites.conformance.report import write_page
from suites.conformance.run import outcome_of
from suites.conformance.shims import SHIMS
from suites.conformance.source import Names, original_of, rewrite
from suites.conformance.stand_in import EntryPointUsed, Phase, missing, raising
from suites.conformance.table import SUITES
from suites.conformance.tree import SourceTree

MAKE_FX = "torch.fx.experimental.proxy_tensor.make_fx"


def outcome(ending: str, test: str = "test_x.TestA.test_b") -> TestOutcome:
    return TestOutcome(test=test, ending=Ending(ending))


# --------------------------------------------------------------------------------------------------------------- names


def ran(source: str, substitutes: dict[str, object]) -> dict[str, object]:
    """What a module of this text holds after its names went through `Names`."""
    names = Names(substitutes)
    scope: dict[str, object] = {"__conformance__": names}
    exec(compile(rewrite(ast.parse(source), names.watched), "made_up.py", "exec"), scope)
    return scope


@pytest.mark.parametrize(
    "source",
    [
        "from torch.fx.experimental.proxy_tensor import make_fx as found",
        "import torch.fx.experimental.proxy_tensor as module\nfound = module.make_fx",
        "import torch.fx.experimental.proxy_tensor\nfound = torch.fx.experimental.proxy_tensor.make_fx",
        "from torch.fx.experimental import proxy_tensor\nfound = proxy_tensor.make_fx",
        "from functorch import make_fx as found",
        "import functorch\nfound = functorch.make_fx",
        "def inner():\n    from torch.fx.experimental.proxy_tensor import make_fx\n    return make_fx\nfound = inner()",
        "try:\n    from torch.fx.experimental.proxy_tensor import make_fx as found\nexcept ImportError:\n    found = None",
    ],
)
def test_a_test_file_gets_the_substitute_by_every_road(source: str) -> None:
    substitute = object()
    assert ran(source, {MAKE_FX: substitute})["found"] is substitute


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("class A:\n    make_fx = 3\nfound = A.make_fx", 3),
        ("from math import pi as found", 3.141592653589793),
        ("from torch.fx.experimental.proxy_tensor import get_proxy_mode as found", proxy_tensor.get_proxy_mode),
        ("import math\nmath.make_fx = 4\nfound = math.make_fx\ndel math.make_fx", 4),
    ],
)
def test_what_is_not_substituted_stays(source: str, expected: object) -> None:
    assert ran(source, {MAKE_FX: object()})["found"] == expected


def test_relative_imports_of_the_harness_are_resolved() -> None:
    """Modules of the installed torch may import one another relatively; a test file has no package."""
    source = "from . import proxy_tensor\nfrom .proxy_tensor import make_fx as found\nother = proxy_tensor.make_fx"
    substitute = object()
    names = Names({MAKE_FX: substitute})
    scope: dict[str, object] = {"__conformance__": names}
    tree = rewrite(ast.parse(source), names.watched, "torch.fx.experimental")
    exec(compile(tree, "made_up.py", "exec"), scope)
    assert scope["found"] is scope["other"] is substitute
    unchanged = ast.parse("from . import x")
    assert ast.unparse(rewrite(ast.parse("from . import x"), names.watched)) == ast.unparse(unchanged)


def test_a_patch_of_a_setting_reaches_the_substitute_s() -> None:
    name, parts = "torch._dynamo.config", ("capture companions",)
    config = subject.substitutes(parts)[name]
    names = Names({name: config}, subject.substitute_places(parts))
    with mock.patch(names.patched(f"{name}.error_on_recompile"), True):
        assert getattr(config, "error_on_recompile")
    assert not getattr(config, "error_on_recompile")


def test_the_parts_of_the_suites_are_known_and_those_of_the_first_suites_stay() -> None:
    for suite in SUITES.values():
        entry_points = subject.substituted_names(suite.parts)
        companions = subject.substituted_names(suite.companions)
        assert not set(entry_points) & set(companions), suite.name
        if suite.companions:
            assert set(suite.needs) <= set(entry_points), suite.name
    first = subject.substituted_names(SUITES["aotdispatch"].parts)
    assert not any(name.startswith(("torch._dynamo", "torch.compile")) for name in first)
    of_capture = subject.substituted_names(SUITES["dynamo_misc"].parts)
    assert set(first) < set(of_capture)
    assert "torch._dynamo.config" not in of_capture, "a setting alone is no dependence on an entry point"


@pytest.mark.parametrize("part", ["graphs", "capture", "capture companions", "export", "export companions"])
def test_a_substitute_is_of_the_kind_of_what_it_stands_for(part: str) -> None:
    """A function for a function and a class for a class: a module may have the name of a function in it."""
    told = {name: (original_of(name), substitute) for name, substitute in subject.substitutes((part,)).items()}
    assert {
        name for name, (original, ours) in told.items() if original is not None and callable(original) != callable(ours)
    } == set()
    assert {
        name for name, (original, ours) in told.items() if isinstance(original, type) and not isinstance(ours, type)
    } == set()


def test_what_belongs_to_export_is_no_dependence_on_it() -> None:
    """A test that makes a Dim, and exports nothing, is not in the denominator."""
    suite = SUITES["export_default"]
    entry_points = subject.substituted_names(suite.parts)
    assert {"torch.export.export", "torch.export._trace._export"} <= set(entry_points)
    assert "torch.export.Dim" not in entry_points
    assert "torch.export.Dim" in subject.substituted_names(suite.companions)


def test_an_export_test_gets_the_substitute_of_a_nested_import() -> None:
    substitutes = subject.substitutes(("export", "export companions"))
    source = (
        "import torch\ndef inner():\n    from torch.export import dims\n    return dims('a', 'b'), torch.export.export"
    )
    inner: Any = ran(source, substitutes)["inner"]
    made, export = inner()
    assert export is substitutes["torch.export.export"]
    assert [type(dim).__module__.partition(".")[0] for dim in made] == ["refimpl", "refimpl"]


def test_a_watched_attribute_can_be_captured() -> None:
    """The lookup is inside of what a test captures: there it asks nothing that capture does not know."""
    scope = ran("import torch\ndef f(x):\n    return torch.relu(x) + 1", {"torch.nn.functional.relu": object()})
    compiled: Any = subject.substitutes(("capture",))["torch.compile"]
    x = torch.tensor([-1.0, 2.0])
    assert compiled(scope["f"], backend="eager", fullgraph=True)(x).tolist() == [1.0, 3.0]


def test_torch_keeps_its_own() -> None:
    before = dict(vars(proxy_tensor))
    ran("from torch.fx.experimental.proxy_tensor import make_fx", {MAKE_FX: object()})
    assert dict(vars(proxy_tensor)) == before


def test_a_name_that_moved_is_found() -> None:
    assert not hasattr(symbolic_shapes, "sym_float"), "or this shows nothing"
    found = ran("from torch.fx.experimental.symbolic_shapes import sym_float as found", {})["found"]
    assert found is torch.sym_float
    source = "from torch.fx.experimental import symbolic_shapes\nfound = symbolic_shapes.sym_float"
    assert ran(source, {})["found"] is torch.sym_float


def test_a_name_that_is_gone_raises_where_the_file_is_prepared_for_it() -> None:
    source = "try:\n    from torch.fx import not_there as found\nexcept ImportError:\n    found = 'guarded'"
    assert ran(source, {})["found"] == "guarded"
    with pytest.raises(ImportError, match="not_there"):
        ran("from math import not_there", {})


def test_a_module_that_is_gone_is_there_and_unusable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Phase, "is_testing", True)
    found = ran("import torch.a_place_of_the_past.inner as module\nfound = module.thing", {})["found"]
    with pytest.raises(Exception, match=r"torch\.a_place_of_the_past\.inner\.thing is not in the installed torch"):
        found(1)  # pyright: ignore[reportCallIssue]
    for name in [name for name in sys.modules if name.startswith("torch.a_place_of_the_past")]:
        del sys.modules[name]
    delattr(torch, "a_place_of_the_past")


@pytest.mark.parametrize("arguments", [1, 3])
def test_skip_ops_works_with_both_signatures(arguments: int) -> None:
    told: list[tuple[object, ...]] = []

    def new(to_skip):
        return lambda function: told.append((function.__qualname__, to_skip))

    def old(class_name, test_name, to_skip):
        return lambda function: told.append((class_name, test_name, to_skip))

    class TestX:
        def test_y(self) -> None: ...

    TestX.test_y.__qualname__ = "TestX.test_y"
    adapt = SHIMS["torch.testing._internal.common_methods_invocations.skipOps"].adapt
    assert adapt is not None
    given = ({"a"},) if arguments == 1 else ("TestX", "test_y", {"a"})
    adapt(new)(*given)(TestX.test_y)
    adapt(old)(*given)(TestX.test_y)
    assert told == [("TestX.test_y", {"a"}), ("TestX", "test_y", {"a"})]


COUNTER = "torch._functorch.aot_autograd.AOT_COUNTER"


def test_a_patch_of_an_entry_point_reaches_the_substitute() -> None:
    source = f'from unittest.mock import patch\nwith patch("{COUNTER}", 7):\n    import math\n    found = math.tau'
    names = Names({COUNTER: math.tau}, {COUNTER: "math.tau"})
    scope: dict[str, object] = {"__conformance__": names}
    exec(compile(rewrite(ast.parse(source), names.watched), "made_up.py", "exec"), scope)
    assert scope["found"] == 7
    assert math.tau > 6, "or the patch outlives its block"


@pytest.mark.parametrize("target", [COUNTER, "made.up.name"])
def test_other_targets_of_a_patch_stay(target: str) -> None:
    assert Names({}).patched(target) == target


def test_a_setting_that_is_always_on_can_be_patched() -> None:
    source = (
        "from unittest.mock import patch\nimport unittest.mock\n"
        'with patch("functorch.compile.config.use_fake_tensor", True):\n    first = 1\n'
        'with unittest.mock.patch("torch._functorch.config.use_functionalize", True):\n    second = 2'
    )
    found = ran(source, {})
    assert (found["first"], found["second"]) == (1, 2)


def test_an_operator_that_left_the_database_is_not_asked_for() -> None:
    scope: dict[str, object] = {"told": []}
    operator = types.SimpleNamespace(name="add", variant_test_name="")
    scope |= {"op_db": [operator], "additional_op_db": [], "autograd_function_db": []}
    exec("def installed(case, name, to_skip):\n    told.append((case, name, to_skip))", scope)
    rows = {name: types.SimpleNamespace(op_name=name, variant_name="") for name in ("add", "gone")}
    adapt = SHIMS["common_utils.skipOps"].adapt
    assert adapt is not None
    adapt(scope["installed"])("TestA", "test_b", rows.values())
    assert scope["told"] == [("TestA", "test_b", [rows["add"]])]


def test_a_module_that_left_the_database_is_not_asked_for() -> None:
    scope: dict[str, object] = {"told": [], "module_db": [types.SimpleNamespace(module_cls=torch.nn.Linear)]}
    exec("def installed(decorator, modules):\n    told.append(modules)", scope)
    adapt = SHIMS["common_utils.decorateForModules"].adapt
    assert adapt is not None
    adapt(scope["installed"])(None, [torch.nn.Linear, torch.nn.Bilinear])
    assert scope["told"] == [[torch.nn.Linear]]


# ----------------------------------------------------------------------------------------------------------- stand-ins


def test_a_stand_in_raises_in_a_test_and_not_while_a_file_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    function = raising("torch.f", torch.sin)
    decorated = function(lambda: 1)  # pyright: ignore[reportCallIssue]
    assert isinstance(decorated, types.FunctionType)
    monkeypatch.setattr(Phase, "is_testing", True)
    for use in (function, decorated, lambda: getattr(function, "attribute")):
        with pytest.raises(EntryPointUsed, match=r"torch\.f was used"):
            use()  # pyright: ignore[reportCallIssue]


def test_the_stand_in_of_a_class_is_a_class_that_makes_no_object() -> None:
    class Upstream:
        limit = 3

    standing_in = raising("torch.Upstream", Upstream)
    assert isinstance(standing_in, type)
    assert issubclass(standing_in, Upstream)
    with pytest.raises(EntryPointUsed):
        standing_in(1, 2)  # pyright: ignore[reportCallIssue]


def test_a_stand_in_is_not_taken_for_an_expected_error() -> None:
    assert not issubclass(EntryPointUsed, RuntimeError | AssertionError | TypeError | ValueError | NotImplementedError)


def test_a_class_may_derive_from_a_missing_name() -> None:
    derived = types.new_class("Derived", (missing("torch.Gone"),))
    assert derived().__class__.__name__ == "Derived"


# --------------------------------------------------------------------------------------------------------------- guard


@pytest.fixture
def guarded(tmp_path: Path) -> tuple[IndependenceGuard, types.ModuleType]:
    """A guard over a made-up refimpl, whose `call` calls what it is given."""
    file = tmp_path / "refimpl" / "made_up.py"
    module = types.ModuleType("made_up")
    exec(compile("def call(function, *arguments):\n    return function(*arguments)", str(file), "exec"), vars(module))
    guard = IndependenceGuard(
        torch_folder=Path(torch.__file__).parent,
        refimpl_folder=file.parent,
        forbidden_functions=(torch.compile,),
        public_classes=(torch.nn.Module, torch.SymInt),
    )
    return guard, module


@pytest.mark.parametrize("function", [proxy_tensor.make_fx, torch.compile, symbolic_shapes.guard_int])
def test_a_forbidden_call_from_refimpl_raises_and_is_noted(guarded: tuple, function: object) -> None:
    guard, module = guarded
    with guard.watch(), pytest.raises(IndependenceBreach, match=r"0001-independence"):
        module.call(function, abs)
    assert len(guard.breaches) == 1


def test_files_of_the_harness_are_allowed(guarded: tuple, tmp_path: Path) -> None:
    _, module = guarded
    guard = IndependenceGuard(
        torch_folder=Path(torch.__file__).parent,
        refimpl_folder=tmp_path / "refimpl",
        allowed_files=(str(mutation_guard.__file__),),
    )
    with guard.watch():
        module.call(mutation_guard.is_dynamic_nn_module, torch.nn.Linear(1, 1), False)
        with pytest.raises(IndependenceBreach):
            module.call(proxy_tensor.make_fx, abs)
    assert len(guard.breaches) == 1


def test_a_swallowed_breach_stays_noted(guarded: tuple) -> None:
    guard, module = guarded
    with guard.watch(), contextlib.suppress(Exception):
        module.call(proxy_tensor.make_fx, abs)
    assert "make_fx" in guard.breaches[0]
    with guard.watch():
        pass
    assert guard.breaches == [], "of the last watch only"


def test_what_is_allowed_is_not_noted(guarded: tuple) -> None:
    guard, module = guarded
    with guard.watch():
        proxy_tensor.make_fx(torch.sin)(torch.ones(2))  # not by refimpl
        module.call(torch.nn.functional.relu, torch.ones(2))
        module.call(symbolic_shapes.GuardOnDataDependentSymNode, None, "an exception type")
    assert guard.breaches == []


def test_properties_of_public_classes_are_allowed_too(guarded: tuple) -> None:
    _, module = guarded
    guards = [
        IndependenceGuard(
            torch_folder=Path(torch.__file__).parent,
            refimpl_folder=Path(module.call.__code__.co_filename).parent,
            public_classes=classes,
        )
        for classes in ((symbolic_shapes.SymNode,), ())
    ]
    node = symbolic_shapes.SymNode(None, None, int, 3)
    with guards[0].watch():
        module.call(symbolic_shapes.SymNode.has_hint, node)
        module.call(symbolic_shapes.SymNode.hint.fget, node)
    assert guards[0].breaches == []
    with guards[1].watch(), pytest.raises(IndependenceBreach):
        module.call(symbolic_shapes.SymNode.has_hint, node)


def test_single_functions_are_allowed_by_name(guarded: tuple) -> None:
    _, module = guarded
    allowed = (torch.func.functional_call, functorch.compile.nop)
    guard = IndependenceGuard(
        torch_folder=Path(torch.__file__).parent,
        refimpl_folder=Path(module.call.__code__.co_filename).parent,
        allowed_functions=allowed,
    )
    graph = torch.fx.symbolic_trace(torch.nn.ReLU())
    with guard.watch():
        module.call(torch.func.functional_call, torch.nn.ReLU(), {}, (torch.ones(2),))
        module.call(functorch.compile.nop, graph, [])
    assert guard.breaches == []
    with guard.watch(), pytest.raises(IndependenceBreach):
        module.call(functorch.compile.aot_function, torch.sin, functorch.compile.nop)


def test_a_transformed_program_is_allowed_and_the_transform_is_not(guarded: tuple) -> None:
    guard, module = guarded
    program = torch.func.grad(lambda x: x.sin().sum())
    with guard.watch():
        module.call(program, torch.ones(2))
    assert guard.breaches == []
    with guard.watch(), pytest.raises(IndependenceBreach):
        module.call(torch.func.vmap, torch.sin)


def test_methods_of_public_classes_are_allowed_wherever_they_are_written(guarded: tuple) -> None:
    guard, module = guarded
    mutation_guard.install_generation_tagging_init()  # from here on torch.nn.Module has a constructor of torch._dynamo
    node = symbolic_shapes.ShapeEnv().create_unbacked_symint()
    with guard.watch():
        module.call(torch.nn.Module)
        module.call(torch.SymInt.__add__, node, 1)
    assert guard.breaches == []
    with guard.watch(), pytest.raises(IndependenceBreach, match=r"sym_node\.py"):
        module.call(node.node.add, node.node)


def test_what_the_garbage_collector_calls_is_not_refimpl_s(guarded: tuple) -> None:
    guard, module = guarded
    called: list[str] = []
    forbidden = str(Path(torch.__file__).parent / "_dynamo" / "made_up.py")
    scope = {"called": called}
    text = "def on_death(dead): called.append('on_death')\nclass A:\n    def __del__(self): called.append('__del__')\n"
    exec(compile(text, forbidden, "exec"), scope)
    owner = [scope["A"]()]  # pyright: ignore[reportCallIssue]
    watcher = weakref.ref(owner[0], scope["on_death"])  # pyright: ignore[reportArgumentType]
    with guard.watch():
        module.call(owner.clear)
    assert sorted(called) == ["__del__", "on_death"]
    assert watcher() is None
    assert guard.breaches == []


def test_the_guard_leaves_no_watch_behind(guarded: tuple) -> None:
    guard, module = guarded
    with guard.watch():
        pass
    module.call(proxy_tensor.make_fx, abs)
    assert sys.getprofile() is None


# ----------------------------------------------------------------------------------------------- outcomes and the cache


@pytest.mark.parametrize(
    ("stock", "stand_in", "is_inside"),
    [
        ("pass", "error", True),
        ("pass", "fail", True),
        ("pass", "skip", True),
        ("pass", "timeout", True),
        ("pass", "crash", True),
        ("pass", "pass", False),
        ("xfail", "xfail", False),
        ("xfail", "xpass", True),
        ("fail", "error", False),
        ("skip", "skip", False),
        ("xpass", "fail", False),
    ],
)
def test_the_denominator(stock: str, stand_in: str, is_inside: bool) -> None:
    row = ResultRow(stock=outcome(stock), stand_in=outcome(stand_in), subject=None)
    assert row.is_in_denominator == is_inside
    assert not row.is_passed
    assert row.is_failed == is_inside


@pytest.mark.parametrize(
    ("subject", "is_passed"), [("pass", True), ("xfail", True), ("skip", False), ("breach", False)]
)
def test_a_skip_or_a_breach_is_no_pass(subject: str, is_passed: bool) -> None:
    row = ResultRow(stock=outcome("pass"), stand_in=outcome("error"), subject=outcome(subject))
    assert (row.is_passed, row.is_failed) == (is_passed, not is_passed)


def test_ends_of_a_process_have_their_words() -> None:
    died = Died(signal=11, exit_code=None, stage="", traceback='File "x.py", line 3 in f\nFile "y.py"', stderr="")
    assert outcome_of("t", died) == TestOutcome(
        test="t", ending=Ending.CRASH, error="the process ended by signal 11", where='File "x.py", line 3 in f'
    )
    late = TimedOut(seconds=2.0, stage="", traceback="", stderr="")
    assert outcome_of("t", late).error == "still running after 2 s"
    assert outcome_of("t", OutOfMemory(bytes=2**30, stage="", traceback="")).ending is Ending.MEMORY


def test_the_cache_keeps_what_was_written_before_an_interrupt(tmp_path: Path) -> None:
    cache = kept(tmp_path)
    first, second = outcome("pass", "test_x.TestA.test_b"), outcome("error", "test_x.TestA.test_c")
    cache.add(first)
    cache.add(second)
    with cache.path.open("a", encoding="utf-8") as file:
        file.write('{"test": "test_x.TestA.test_d", "end')
    assert kept(tmp_path).read() == {first.test: first, second.test: second}


def test_the_cache_belongs_to_all_that_an_outcome_depends_on(tmp_path: Path) -> None:
    paths = [
        kept(tmp_path).path,
        kept(tmp_path, content="22").path,
        kept(tmp_path, torch_version="2.12.0").path,
        kept(tmp_path, names=("torch.f",)).path,
        kept(tmp_path, names=("torch.f", "torch.g")).path,
        kept(tmp_path, names=("torch.f",), subject="source 1").path,
        kept(tmp_path, names=("torch.f",), subject="source 2").path,
    ]
    assert len(set(paths)) == len(paths)


def kept(
    folder: Path,
    content: str = "11",
    torch_version: str = "2.13.0",
    names: tuple[str, ...] | None = None,
    subject: str = "",
) -> OutcomeCache:
    tree = SourceTree(root=Path("/src"), version="2.1.0", content=content)
    return OutcomeCache(folder, tree=tree, suite="proxy_tensor", torch=torch_version, names=names, subject=subject)


# --------------------------------------------------------------------------------------------------- expected failures


def test_a_failure_without_a_row_is_unexpected_and_a_row_without_a_failure_is_stale() -> None:
    rows = (
        ExpectedFailure(tests=("*.test_a*",), category="text", reason="one"),
        ExpectedFailure(tests=("*.test_b",), category="text", reason="two"),
        ExpectedFailure(tests=("*.test_elsewhere",), category="text", reason="three"),
    )
    judgement = judge_failures(rows, failed=["x.test_a1", "x.test_c"], passed=["x.test_a2", "x.test_b"])
    assert judgement.reasons == {"x.test_a1": rows[0]}
    assert judgement.unexpected == ("x.test_c",)
    assert judgement.stale == (rows[1],)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[failure", "TOML"),
        ('[[failure]]\ntests = ["a"]\ncategory = "text"\n', "reason"),
        ('[[failure]]\ntests = ["a"]\ncategory = "because"\nreason = "x"\n', "category (one of"),
        ('[[failure]]\ntests = ["a"]\ncategory = "text"\nreason = "x"\nsince = "1"\n', "perhaps tree and torch"),
    ],
)
def test_a_wrong_table_is_refused(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "s.toml").write_text(text, encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        read_expected("s", tree="2.1", torch="2.13", folder=tmp_path)
    assert says in str(caught.value)


def test_rows_may_be_for_some_trees_only(tmp_path: Path) -> None:
    row = '[[failure]]\ntests = ["a"]\ncategory = "text"\nreason = "x"\ntree = "2.1.*"\n'
    (tmp_path / "s.toml").write_text(row, encoding="utf-8")
    assert len(read_expected("s", tree="2.1.0a0", torch="2.13.0+cpu", folder=tmp_path)) == 1
    assert read_expected("s", tree="2.2.0", torch="2.13.0+cpu", folder=tmp_path) == ()


@pytest.mark.parametrize("suite", SUITES)
def test_the_committed_table_reads(suite: str) -> None:
    for row in read_expected(suite, tree="2.1.0a0", torch="2.13.0+cpu"):
        assert row.category in CATEGORIES
        assert row.reason
        assert all(test.startswith("test_") for test in row.tests), row


def test_a_section_of_the_page_is_replaced_and_the_rest_stays(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- begin s -->\nold\n<!-- end s -->\nafter\n", encoding="utf-8")
    write_page(page, "s", "new\n")
    write_page(page, "s", "newer\n")
    assert page.read_text(encoding="utf-8") == "before\n<!-- begin s -->\n\nnewer\n\n<!-- end s -->\nafter\n"
    with pytest.raises(UsageError, match="begin other"):
        write_page(page, "other", "new\n")

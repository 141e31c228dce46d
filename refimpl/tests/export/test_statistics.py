"""Settings of export's own, what programs are made of, and the log of exports."""

from __future__ import annotations

import logging
import warnings

import pytest
import torch
from torch import nn

from refimpl.capture.config import config
from refimpl.capture.public.errors import UserError
from refimpl.export import export
from refimpl.export.entry_points import DEFAULT_EXPORT_DYNAMO_CONFIG, ExportDynamoConfig, _export
from refimpl.export.statistics import Export, ExportEvent, get_ep_stats, listening, running_export
from refimpl.tests.export.forms import STRICT


class Logging(nn.Module):
    """Says what it does, in all the ways there are, and has a recurrent part."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(3, 4, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        print("shape", x.shape)
        logging.debug("debug")
        logging.info("rows: %s", x.shape[0])
        logging.warning("warning")
        logging.error("error")
        logging.critical("critical")
        logging.log(10, "log")
        warnings.warn("warned", stacklevel=2)
        return self.recurrent(x)[0]


@pytest.mark.filterwarnings("ignore:warned")
@STRICT
def test_logging_does_not_end_a_graph(strict: bool, capsys: pytest.CaptureFixture[str]) -> None:
    module, x = Logging(), torch.randn(2, 5, 3)
    program = export(module, (x,), strict=strict)
    capsys.readouterr()
    torch.testing.assert_close(program.module()(x), module.recurrent(x)[0])
    assert capsys.readouterr().out == ""  # not in the program
    assert config.ignore_logging_functions == set()


def test_other_functions_that_write_end_a_graph() -> None:
    class Writing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            input("what is it? ")
            return x + 1

    with pytest.raises(RuntimeError, match="output_of_program"):
        export(Writing(), (torch.ones(2),), strict=True)


def test_the_settings_are_those_of_upstream() -> None:
    names = {function.__qualname__ for function in DEFAULT_EXPORT_DYNAMO_CONFIG.reorderable_logging_functions}
    assert names == {"critical", "debug", "error", "exception", "info", "log", "warning", "print", "warn"}
    fresh = ExportDynamoConfig()
    assert (fresh.allow_rnn, fresh.reorderable_logging_functions) == (True, set())
    with fresh.patched():
        assert (config.allow_rnn, config.ignore_logging_functions) == (True, set())
    assert config.allow_rnn is False


def test_statistics_count_calls_in_all_graphs() -> None:
    class Branching(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.cond(x.sum() > 0, lambda x: x.sin() + 1, lambda x: x.cos(), (x,))
            return y.sin()

    linear = get_ep_stats(export(nn.Linear(2, 2), (torch.ones(2),)))
    assert linear == {"op_count": 1, "op_set": {"torch._ops.aten.linear.default"}}
    found = get_ep_stats(export(Branching(), (torch.ones(2),)))
    assert found["op_count"] == 8  # sum, gt, cond, getitem, sin; sin, add; cos
    assert {"torch._ops.aten.sin.default", "torch._ops.aten.cos.default"} <= found["op_set"]


def test_exports_are_told_of() -> None:
    seen: list[tuple[ExportEvent, Export | None]] = []
    around: list[Export | None] = []

    class Asking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            around.append(running_export())
            if x.dim() == 1:
                return self.inner(x)
            return x if x.sum() > 0 else -x

    module = Asking()
    with listening(lambda event: seen.append((event, running_export()))):
        export(module, (torch.ones(2),))
        with pytest.raises(UserError):
            export(module, (torch.ones(2, 2),))
        with pytest.raises(ValueError, match="Module"):
            export(torch.sin, (torch.ones(2),))  # type: ignore[arg-type]
    export(module, (torch.ones(2),))  # nobody listens any more
    assert [event.name for event, _ in seen] == ["export.enter", "export.time"] + ["export.enter", "export.error"] * 2
    assert all(event.flags == {"non_strict", "pre_dispatch"} for event, _ in seen)
    assert seen[1][0].data["op_count"] == 1
    assert 0 < seen[1][0].data["seconds"] < 60
    assert seen[3][0].data["type"].endswith("UserError")
    assert seen[5][0].data["type"] == "builtins.ValueError"
    under_way = around[0]
    assert under_way is not None
    assert under_way.hierarchy == {"": "Asking", "inner": "Linear"}
    assert all(met is not None for _, met in seen)
    assert running_export() is None


def test_events_go_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="refimpl.export"):
        export(nn.Linear(2, 2), (torch.ones(2),), strict=True)
    messages = [record.getMessage() for record in caplog.records if record.name == "refimpl.export"]
    assert [message.split()[0] for message in messages] == ["export.enter", "export.time"]
    assert "'strict'" in messages[0]


@pytest.mark.parametrize("strict", [False, True])
def test_flags_say_for_which_dispatch_an_export_is(strict: bool) -> None:
    """EX-34"""
    events: list[ExportEvent] = []
    with listening(events.append):
        for pre_dispatch in (True, False):
            _export(nn.Linear(2, 2), (torch.ones(2),), strict=strict, pre_dispatch=pre_dispatch)
        with pytest.raises(UserError):
            _export(nn.Linear(2, 2), torch.ones(2), strict=strict)  # type: ignore[arg-type]
        export(nn.Linear(2, 2), (torch.ones(2),), strict=strict)
    mode = "strict" if strict else "non_strict"
    entered = [event.flags for event in events if event.name == "export.enter"]
    assert entered == [{mode, "pre_dispatch"}, {mode, "aot_dispatch"}, {mode, "aot_dispatch"}, {mode, "pre_dispatch"}]

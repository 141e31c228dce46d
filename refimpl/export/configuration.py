"""Settings that export has of its own for reading bytecode.

Counterpart: torch/export/_trace.py ExportDynamoConfig, DEFAULT_EXPORT_DYNAMO_CONFIG
Differs: calls of functions that only log are left out of the program; upstream makes them after the graph, which an exported
program does not keep either.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from refimpl.capture.config import ConfigPatch, config


@dataclass
class ExportDynamoConfig:
    """allow_rnn: accepted; recurrent modules are captured like others. reorderable_logging_functions: functions whose calls do
    not end the graph."""

    allow_rnn: bool = True
    reorderable_logging_functions: set[Callable[..., Any]] = field(default_factory=set)

    def patched(self) -> ConfigPatch:
        """Within it capture has these settings."""
        return config.patch(
            allow_rnn=self.allow_rnn,
            ignore_logging_functions=config.ignore_logging_functions | self.reorderable_logging_functions,
        )


DEFAULT_EXPORT_DYNAMO_CONFIG = ExportDynamoConfig(
    reorderable_logging_functions={
        logging.critical,
        logging.debug,
        logging.error,
        logging.exception,
        logging.info,
        logging.log,
        logging.warning,
        print,
        warnings.warn,
    }
)

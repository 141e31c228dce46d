"""Observe eager in a second process, to measure the judge's false alarms.

Two runs of eager in one process share memory addresses, alignment, hash seeds and everything that earlier cases left. A run in
another process shows whether the judge takes any of that for a difference.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import pickle
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

import torch

from oracle.dtypes import ARITHMETIC_COMPLEX, ARITHMETIC_INTEGERS, COMPLEX, FLOAT8, INTEGERS
from oracle.errors import InternalError
from oracle.observe import observe
from oracle.observe.outcome import Outcome, Raised, Returned
from oracle.program import Program
from oracle.program.build import instantiate
from oracle.program.clone import bytes_of


class Peer:
    """A spawned process that runs many programs. It ends with its parent."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._here, there = context.Pipe()
        self._process = context.Process(target=_serve, args=(there,), daemon=True)
        self._process.start()
        there.close()

    def observe(self, program: Program, *, device: str) -> Outcome:
        """Eager's outcome in that process. Raises InternalError if the process died, which says nothing about eager's values."""
        request = {"program": program.to_json(), "device": device}
        try:
            self._here.send_bytes(json.dumps(request).encode())
            # Trusted: the bytes come from a process that this one started, through a private pipe.
            answer: Outcome | str = pickle.loads(self._here.recv_bytes())  # noqa: S301  see above
        except (EOFError, OSError) as error:
            raise InternalError(f"the second process died on program {program.name!r}") from error
        if isinstance(answer, str):
            raise InternalError(answer)
        return answer


def _serve(connection: Connection) -> None:
    torch.set_num_threads(1)
    while True:
        try:
            request: Mapping[str, Any] = json.loads(connection.recv_bytes())
        except EOFError:
            return
        outcome: Outcome | str
        try:
            outcome = observe(instantiate(Program.from_json(request["program"]), device=request["device"]))
            assert isinstance(outcome, (Returned, Raised))
            data = _packed(outcome)
        except Exception as error:  # at the process edge: sent to the parent, which raises it
            data = _packed(f"the second process: {type(error).__name__}: {error}")
        connection.send_bytes(data)


class _Pickler(pickle.Pickler):
    """A pickler that also takes tensors of newer dtypes, memory formats and layouts, which plain pickle refuses."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, torch.Tensor) and obj.dtype in _NEWER_DTYPES and obj.layout is torch.strided:
            data = bytes_of(obj)
            return _unpacked_tensor, (data, str(obj.dtype).removeprefix("torch."), tuple(obj.shape))
        if isinstance(obj, (torch.memory_format, torch.layout)):
            return _torch_constant, (str(obj).removeprefix("torch."),)
        return NotImplemented


# Dtypes without a typed storage class, which plain pickle needs. Which of them exist depends on the version of torch.
_NEWER_DTYPES = (
    (INTEGERS - ARITHMETIC_INTEGERS)
    | (COMPLEX - ARITHMETIC_COMPLEX)
    | FLOAT8
    | {dtype for name, dtype in vars(torch).items() if name.startswith("float4_")}
)


def _unpacked_tensor(data: torch.Tensor, dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    return data.view(getattr(torch, dtype)).reshape(shape)


def _torch_constant(name: str) -> Any:
    return getattr(torch, name)


def _packed(answer: Outcome | str) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer).dump(answer)
    return buffer.getvalue()


_peer: Peer | None = None


def observe_in_second_process(program: Program, *, device: str) -> Outcome:
    """Eager's outcome in the peer of this process, which the first call starts."""
    global _peer  # one for each worker, since it takes seconds to start
    if _peer is None:
        _peer = Peer()
    return _peer.observe(program, device=device)

# SPDX-License-Identifier: Apache-2.0
"""The host protocol (spec/protocol.md) around a backend in Python.

    slmoe run -b "cmd:python3 -m slm.serve mymodule:MyBackend name=value ..."

`mymodule` is imported as if from the current directory, or is the path of a .py file; each
name=value is handed to the class as a string argument.
"""
from __future__ import annotations

import importlib
import json
import mmap
import os
import sys
import time
import traceback
from typing import Any, Dict, Iterator, Mapping, Optional, Sequence

import numpy as np

from slm import bf16
from slm.backend import (BATCH_INVARIANT, DETERMINISTIC, OPERATIONS, PREPARED, STRIDED, TAPS,
                         WEIGHTS, Backend, Refusal, call)
from slm.config import Config

PROTOCOL, ABI = 1, [1, 1]
REQUESTS, REPLIES, ARENA = 3, 4, 5
#: slmoe keeps this much of what a case prints, from the beginning.
PRINTED = 1000

DTYPES = {"f32": np.dtype("<f4"), "bf16": np.dtype("<u2"), "f64": np.dtype("<f8"),
          "i32": np.dtype("<i4"), "i64": np.dtype("<i8")}

Message = Mapping[str, Any]


class Arena:
    """The shared memory of one open handle, mapped twice: inputs cannot be written to."""

    def __init__(self, fd: int, size: int) -> None:
        self._inputs = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ)
        self._outputs = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)

    def view(self, tensor: Message, writable: bool = False) -> np.ndarray:
        """The elements of a tensor where they lie."""
        dtype = DTYPES[tensor["dtype"]]
        if 0 in tensor["shape"]:
            return np.empty(tensor["shape"], dtype)
        return np.ndarray(tensor["shape"], dtype, self._outputs if writable else self._inputs,
                          tensor["offset"], [dtype.itemsize * step for step in tensor["stride"]])


def inputs_of(arena: Arena, frame: Message, weights: bool) -> Dict[str, np.ndarray]:
    """Views of the inputs: of the layer's weights, or of everything else."""
    return {tensor["name"]: arena.view(tensor) for tensor in frame["tensors"]
            if tensor["role"] != "out" and
            (frame["op"] in PREPARED and tensor["name"] in WEIGHTS) == weights}


def as_element(name: str, value: Any, shape: Sequence[int], dtype: str) -> np.ndarray:
    """An output as it is to be stored: rounded once, of that very shape."""
    array = np.asarray(value)
    if array.shape != tuple(shape):
        raise ValueError(f"output {name} has shape {list(array.shape)}, must have {list(shape)}")
    if dtype == "bf16":
        return array if array.dtype == np.uint16 else bf16.from_float32(array)
    target = DTYPES[dtype]
    if (array.dtype.kind in "iu") != (target.kind == "i") or array.dtype.kind not in "iuf":
        raise TypeError(f"output {name} is an array of {array.dtype}, must be of {target}")
    with np.errstate(over="ignore", invalid="ignore"):
        stored = array.astype(target)
    if target.kind == "i" and not np.array_equal(stored, array):
        raise OverflowError(f"output {name} does not fit in {target}")
    return stored


def left_in(arena: Arena, frame: Message) -> Optional[np.ndarray]:
    """Which tokens the mask counts; a token's cutoff is written only if it is (Q5)."""
    for tensor in frame["tensors"]:
        if tensor["name"] == "mask":
            return arena.view(tensor) != 0
    return None


def store_outputs(arena: Arena, frame: Message, outputs: Any) -> None:
    """Write what a method returned into the arena: all of it, or an exception."""
    if not isinstance(outputs, Mapping):
        raise TypeError(f"{frame['op']} returned {type(outputs).__name__}, must return a dict")
    wanted = {t["name"]: t for t in frame["tensors"] if t["role"] != "in"}
    for name in outputs:
        if name not in wanted and name not in TAPS.get(frame["op"], ()):
            raise KeyError(f"{frame['op']} has no output {name!r}; it has {sorted(wanted)}")
    ready = {name: as_element(name, value, wanted[name]["shape"], wanted[name]["dtype"])
             for name, value in outputs.items() if name in wanted}
    counted = left_in(arena, frame)
    for name, array in ready.items():
        view = arena.view(wanted[name], writable=True)
        if counted is not None and name == "cutoff":
            view[counted] = array[counted]
        else:
            view[...] = array


def last_line(error: BaseException) -> str:
    """What the last line of its traceback says; of a long message the first line."""
    return traceback.format_exception_only(type(error), error)[-1].strip().partition("\n")[0]


def say_traceback(error: BaseException) -> None:
    """Print it without the frames that served it, whole lines that slmoe will keep."""
    trace = error.__traceback__
    while trace and trace.tb_frame.f_code.co_filename in (__file__, call.__code__.co_filename):
        trace = trace.tb_next
    lines = "".join(traceback.format_exception(type(error), error, trace)).splitlines(True)
    while len(lines) > 2 and sum(len(line.encode()) for line in lines) > PRINTED:
        del lines[1]
    print("".join(lines), end="", file=sys.stderr, flush=True)


def status(name: str, op: str, **members: Any) -> Dict[str, Any]:
    return {"type": "status", "status": name, "op": op, **members}


class Server:
    """One backend, one open handle at a time, one reply a request."""

    def __init__(self, backend: Backend) -> None:
        self.backend, self.arena, self.op = backend, None, ""
        backend.progress = lambda done, total: send(
            {"type": "progress", "done": int(done), "total": int(total)})

    def hello(self) -> Dict[str, Any]:
        backend, arithmetic = self.backend, vars(self.backend.arithmetic).copy()
        arithmetic["store"] = dict(arithmetic["store"])
        if backend.flags & ~(DETERMINISTIC | BATCH_INVARIANT | STRIDED):
            raise ValueError("flags: can be DETERMINISTIC, BATCH_INVARIANT and STRIDED")
        if unknown := set(backend.operations()) - set(OPERATIONS):
            raise ValueError(f"operations: {sorted(unknown)} are none")
        return {"type": "hello", "protocol": PROTOCOL, "name": backend.name,
                "version": backend.version, "url": backend.url, "note": backend.note, "abi": ABI,
                "flags": backend.flags, "levels": backend.levels(),
                "ops": list(backend.operations()), "arithmetic": arithmetic}

    def supports(self, request: Message) -> Dict[str, Any]:
        answer = self.backend.supports(Config.from_wire(request["config"]), request["op"],
                                       request["n_tokens"])
        return {"type": "supports", "offered": answer is True,
                "reason": answer if isinstance(answer, str) else ""}

    def workspace(self, request: Message) -> Dict[str, Any]:
        return {"type": "workspace", "bytes": 0}

    def open(self, request: Message) -> Dict[str, Any]:
        self.op = request["op"]
        try:
            self.arena = Arena(ARENA, request["arena"])
        except OSError as error:
            raise Refusal("SLM_ERR_MEMORY", "arena", 0, "address space for it") from error
        self.backend.prepare(Config.from_wire(request["config"]),
                             inputs_of(self.arena, request, weights=True))
        return status("SLM_OK", self.op)

    def call(self, request: Message) -> Dict[str, Any]:
        arrays = inputs_of(self.arena, request, weights=False)
        self.backend.seconds, start = None, time.perf_counter()
        outputs = call(self.backend, request["op"], arrays, request["n_tokens"])
        seconds = self.backend.seconds or time.perf_counter() - start
        store_outputs(self.arena, request, outputs)
        return status("SLM_OK", request["op"], seconds=seconds)

    def close(self, request: Message) -> Dict[str, Any]:
        self.arena = None
        self.backend.close()
        return status("SLM_OK", self.op)

    def answer(self, request: Message) -> Dict[str, Any]:
        """The reply to a request; an exception of the backend becomes one, too."""
        kind = request.get("type")
        if kind not in ("supports", "workspace", "open", "call", "close"):
            return {"type": "refused", "why": f"no request: {kind!r}"}
        try:
            return getattr(self, kind)(request)
        except Refusal as refusal:
            return status(refusal.status, request.get("op", self.op), field=refusal.field,
                          index=refusal.index, expected=refusal.expected)
        except Exception as error:  # noqa: BLE001  the case fails, the process goes on
            say_traceback(error)
            if kind in ("supports", "workspace"):
                return {"type": "refused", "why": f"{kind}(): {last_line(error)}"}
            return status("SLM_ERR_INTERNAL", request.get("op", self.op), index=0, field="",
                          expected=last_line(error))


def plain(value: Any) -> Any:
    """Numbers as JSON has them: numpy scalars, and no infinity."""
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{value!r} cannot be sent")


def send(message: Message) -> None:
    line = json.dumps(message, default=plain).encode() + b"\n"
    while line:
        line = line[os.write(REPLIES, line):]


def requests() -> Iterator[Message]:
    with os.fdopen(REQUESTS, "rb") as lines:
        for line in lines:
            yield json.loads(line)


def load(target: str, options: Sequence[str]) -> Backend:
    """The backend that "module:Class" and name=value stand for."""
    module_name, _, class_name = target.rpartition(":")
    if not module_name:
        raise ValueError(f"{target}: must be module:Class or file.py:Class")
    if module_name.endswith(".py"):
        sys.path.insert(0, os.path.dirname(os.path.abspath(module_name)))
        module_name = os.path.splitext(os.path.basename(module_name))[0]
    made = getattr(importlib.import_module(module_name), class_name)
    return made(**dict(option.split("=", 1) for option in options))


def main(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0].startswith("-"):
        asked = arguments[:1] == ["--help"]
        print(__doc__.strip(), file=sys.stdout if asked else sys.stderr)
        return 0 if asked else 2
    for fd in (REQUESTS, REPLIES, ARENA):
        try:
            os.set_inheritable(fd, False)
        except OSError:
            print("slm.serve: started without slmoe: see its --help", file=sys.stderr)
            return 2
    try:
        server = Server(load(arguments[0], arguments[1:]))
        hello = server.hello()
    except Exception as error:  # noqa: BLE001
        say_traceback(error)
        send({"type": "refused", "why": f"{arguments[0]}: {last_line(error)}"})
        return 1
    send(hello)
    for request in requests():
        send(server.answer(request))
    return 0


if __name__ == "__main__":
    # The module that is imported by backends is `slm.serve`, not `__main__`.
    sys.exit(importlib.import_module("slm.serve").main(sys.argv[1:]))

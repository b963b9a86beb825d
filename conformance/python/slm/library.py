# SPDX-License-Identifier: Apache-2.0
"""The backends in C, called from Python: the exact reference and the one on OpenBLAS.

    ref = slm.library.Library("ref")
    ref.prepare(slm.Config(n=3, k=2), {})
    ref.select(score=score, bias=bias)["ids"]

Same methods, arrays and refusals as any `slm.Backend`; the checks at the door are the
contract's, so a wrong shape raises `slm.Refusal` too. It needs libslm.so (CMake target
slm_shared): from the argument `path`, from $SLM_LIBRARY, from build/ of the checkout, or
from where the loader looks.
"""
from __future__ import annotations

import ctypes
import os
import pathlib
from ctypes import POINTER, Structure, byref, c_char, c_char_p, c_double, c_int, c_size_t, c_ssize_t
from ctypes import c_uint, c_uint32, c_void_p
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

import numpy as np

from slm import bf16
from slm.backend import OPERATIONS, Arithmetic, Array, Backend, Outputs, Refusal
from slm.config import ENUMERATIONS, Config

MAX_RANK, STAGES = 4, ("logit", "score", "weight", "z", "h", "o", "u", "r", "hs", "y")
DTYPES = (np.dtype("<f4"), np.dtype("<u2"), np.dtype("<f8"), np.dtype("<i4"), np.dtype("<i8"))
F32, BF16, F64 = 0, 1, 2
IN, OPTIONAL, OUT, TAP, INOUT = range(5)
STATUSES = ("SLM_OK", "SLM_ERR_SHAPE", "SLM_ERR_ALIAS", "SLM_ERR_UNSUPPORTED", "SLM_ERR_DOMAIN",
            "SLM_ERR_NONFINITE", "SLM_ERR_TARGET", "SLM_ERR_TIE", "SLM_ERR_MEMORY",
            "SLM_ERR_INTERNAL")


# The structs of spec/include/slm, member by member.


class CError(Structure):
    _fields_ = [("status", c_int), ("op", c_char * 32), ("field", c_char * 32), ("index", c_size_t),
                ("expected", c_char * 160)]


class CTensor(Structure):
    _fields_ = [("data", c_void_p), ("dtype", c_int), ("space", c_int), ("rank", c_uint32),
                ("shape", c_size_t * MAX_RANK), ("stride", c_ssize_t * MAX_RANK)]


class CConfig(Structure):
    _fields_ = ([(name, c_size_t) for name in "struct_size d l n k f S fs B".split()] +
                [(name, c_int) for name in ENUMERATIONS] +
                [(name, c_double) for name in ("eps", "beta_gate", "beta_up", "rate")])


class CCall(Structure):
    _fields_ = [("struct_size", c_size_t), ("n_tokens", c_size_t), ("n_parts", c_size_t),
                ("workspace", c_void_p), ("workspace_size", c_size_t), ("stream", c_void_p),
                ("progress", c_void_p), ("progress_user", c_void_p), ("reserved", c_void_p * 4)]


class CArithmetic(Structure):
    _fields_ = [("struct_size", c_size_t), ("accumulator", c_double), ("input", c_double),
                ("store", c_double * len(STAGES)), ("sigmoid_ulp", c_double),
                ("tanh_ulp", c_double), ("tanh_abs", c_double), ("rsqrt_ulp", c_double),
                ("balance", c_double), ("flushes_subnormals", c_uint32),
                ("store_gradient", c_double), ("store_weight_gradient", c_double)]


class CField(Structure):
    _fields_ = [("name", c_char_p), ("dims", c_char_p), ("role", c_int), ("kind", c_int),
                ("experts", c_uint), ("since", c_uint), ("offset", c_size_t)]


class COpInfo(Structure):
    _fields_ = [("op", c_int), ("name", c_char_p), ("purpose", c_char_p), ("level", c_uint),
                ("args_size", c_size_t), ("n_fields", c_size_t), ("fields", POINTER(CField)),
                ("prepared", c_int)]


SUPPORTS = ctypes.CFUNCTYPE(c_int, POINTER(CConfig), c_int, c_size_t, c_char_p, c_size_t)
OPEN = ctypes.CFUNCTYPE(c_int, POINTER(CConfig), POINTER(c_void_p), POINTER(CError))
CLOSE = ctypes.CFUNCTYPE(None, c_void_p)
OPERATION = ctypes.CFUNCTYPE(c_int, c_void_p, c_void_p, POINTER(CError))  # prepare(), too
WORKSPACE = ctypes.CFUNCTYPE(c_size_t, c_void_p, c_int, POINTER(CCall))


class CBackend(Structure):
    _fields_ = [("struct_size", c_size_t), ("abi_major", c_uint32), ("abi_minor", c_uint32),
                ("name", c_char_p), ("version", c_char_p), ("url", c_char_p), ("flags", c_uint32),
                ("levels", c_uint32), ("arithmetic", POINTER(CArithmetic)),
                ("ops", POINTER(c_void_p)), ("supports", SUPPORTS), ("open", OPEN),
                ("close", CLOSE), ("prepare", OPERATION), ("workspace", WORKSPACE)]


def find_library(path: Optional[str] = None) -> ctypes.CDLL:
    """Load libslm.so."""
    built = pathlib.Path(__file__).resolve().parents[3] / "build" / "libslm.so"
    chosen = path or os.environ.get("SLM_LIBRARY") or (built if built.exists() else "libslm.so")
    try:
        library = ctypes.CDLL(str(chosen))
    except OSError as error:
        raise OSError(f"{error}\n  build the target slm_shared and set SLM_LIBRARY to its "
                      "libslm.so") from None
    library.slm_op_describe.restype = POINTER(COpInfo)
    library.slm_weight_fields.restype = POINTER(CField)
    for name in ("ref", "cpu", "cpu_blas"):
        if hasattr(library, f"slm_{name}_backend"):
            getattr(library, f"slm_{name}_backend").restype = POINTER(CBackend)
    return library


def c_config(config: Config) -> CConfig:
    members = {name: getattr(config, name) for name, _ in CConfig._fields_[1:]}
    for name, words in ENUMERATIONS.items():
        members[name] = words.index(members[name])
    return CConfig(struct_size=ctypes.sizeof(CConfig), **members)


def as_input(name: str, value: Any, dtype: int) -> Array:
    """An array of the argument's element type; no value changes on the way."""
    array, target = np.asarray(value), DTYPES[dtype]
    if array.dtype == target:
        return array
    if dtype == BF16:
        if not bf16.is_exact(array):
            raise ValueError(f"{name}: not every value is exact in bf16")
        return bf16.from_float32(array)
    with np.errstate(over="ignore", invalid="ignore"):
        converted = array.astype(target)
    if not np.array_equal(converted, array, equal_nan=array.dtype.kind == "f"):
        raise ValueError(f"{name}: not every value of {array.dtype} is exact in {target}")
    return converted


def c_tensor(array: Optional[Array], dtype: int) -> CTensor:
    """A view of an array that somebody keeps alive; None is an absent argument."""
    if array is None:
        return CTensor()
    shape, size = array.shape, array.dtype.itemsize
    return CTensor(data=array.ctypes.data if array.size else None, dtype=dtype, rank=array.ndim,
                   shape=(c_size_t * MAX_RANK)(*shape),
                   stride=(c_ssize_t * MAX_RANK)(*(step // size for step in array.strides)))


class Library(Backend):
    """name: "ref", "cpu" or "cpu-blas". With exact, real-valued outputs of ref are binary64: the
    real number, rounded once."""

    def __init__(self, name: str = "ref", path: Optional[str] = None,
                 exact: Union[bool, str] = False) -> None:
        self._library = find_library(path)
        symbol = f"slm_{name.replace('-', '_')}_backend"
        if not hasattr(self._library, symbol):
            raise ValueError(f"this libslm has no backend {name!r}")
        self._table = getattr(self._library, symbol)().contents
        self._handle, self._kept, self._open = c_void_p(), [], False
        self._exact = exact in (True, "1")
        self.name, self.version = self._table.name.decode(), self._table.version.decode()
        self.flags = self._table.flags & ~1  # its door is kept here
        declared = self._table.arithmetic.contents
        self.arithmetic = Arithmetic(
            **{name: getattr(declared, name) for name, _ in CArithmetic._fields_[1:]
               if name not in ("store", "flushes_subnormals")},
            store=dict(zip(STAGES, declared.store)),
            flushes_subnormals=bool(declared.flushes_subnormals))

    def operations(self) -> Sequence[str]:
        return [op for i, op in enumerate(OPERATIONS) if self._table.ops[1 + i]]

    def levels(self) -> int:
        return self._table.levels

    def supports(self, config: Config, op: str, n_tokens: int) -> Union[bool, str]:
        reason = ctypes.create_string_buffer(256)
        if not self._table.supports or self._table.supports(
                byref(c_config(config)), list(OPERATIONS).index(op), n_tokens, reason, 256):
            return True
        return reason.value.decode()

    def prepare(self, config: Config, weights: Mapping[str, Array]) -> None:
        self.close()
        error, given = CError(), c_config(config)
        if self._table.open:
            self._check(self._table.open(byref(given), byref(self._handle), byref(error)), error)
        self.config, self.weights, self._open = config, weights, True
        if not weights:
            return
        offered = self.supports(config, "layer_forward", 0)
        if offered is not True:
            raise Refusal("SLM_ERR_UNSUPPORTED", "weights", 0, f"another backend: {offered}")
        count = c_size_t()
        fields = self._library.slm_weight_fields(byref(count))
        struct = (c_char * (fields[count.value - 1].offset + ctypes.sizeof(CTensor)))()
        c_size_t.from_buffer(struct).value = len(struct)
        self._fill(struct, fields[:count.value], dict(weights), given, "weights")
        self._check(self._library.slm_check_weights(byref(given), struct, byref(error)), error)
        status = self._table.prepare(self._handle, ctypes.addressof(struct), byref(error))
        self._check(status, error)

    def close(self) -> None:
        if self._handle and self._table.close:
            self._table.close(self._handle)
        self._handle, self._kept, self._open = c_void_p(), [], False
        super().close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self.close()

    @staticmethod
    def _check(status: int, error: CError) -> None:
        if status:
            raise Refusal(STATUSES[status], error.field.decode(), error.index,
                          error.expected.decode())

    def _fill(self, struct: Any, fields: Sequence[CField], arrays: Dict[str, Array],
              config: CConfig, what: str) -> None:
        """Put arrays into a struct of tensors; what is not there stays absent."""
        for field in fields:
            dtype = self._library.slm_field_dtype(byref(field), byref(config))
            name = field.name.decode()
            value = arrays.pop(name, None)
            if value is not None:
                value = as_input(name, value, dtype)
                self._kept.append(value)
                ctypes.memmove(ctypes.addressof(struct) + field.offset,
                               byref(c_tensor(value, dtype)), ctypes.sizeof(CTensor))
        if arrays:
            raise TypeError(f"{what}: no argument {sorted(arrays)[0]!r}")

    def _sizes(self, info: COpInfo, arrays: Mapping[str, Array], call: CCall) -> None:
        """T and R: the first dimension of the first input that begins with them."""
        for letter, member in ((b"T", "n_tokens"), (b"R", "n_parts")):
            for field in info.fields[:info.n_fields]:
                value = arrays.get(field.name.decode())
                if field.dims.startswith(letter) and value is not None and np.ndim(value):
                    setattr(call, member, np.shape(value)[0])
                    break

    def _copies(self, info: COpInfo, arrays: Mapping[str, Array],
                config: CConfig) -> Dict[str, Array]:
        """What the operation will change in place: the caller's arrays stay as they are."""
        made = {}
        for field in info.fields[:info.n_fields]:
            name = field.name.decode()
            if field.role == INOUT and name in arrays:
                dtype = self._library.slm_field_dtype(byref(field), byref(config))
                made[name] = np.array(as_input(name, arrays[name], dtype))
        return made

    def _outputs(self, info: COpInfo, config: CConfig, call: CCall, struct: Any,
                 exact: bool) -> List[Tuple[str, Array]]:
        """Arrays for every output that the configuration has, taps too."""
        library, made, size = self._library, [], c_size_t()
        kind = library.slm_field_golden_dtype if exact else library.slm_field_dtype
        for field in info.fields[:info.n_fields]:
            applies = library.slm_field_applies(byref(field), byref(config))
            if field.role not in (OUT, TAP) or not applies:
                continue
            shape = []
            for letter in field.dims:
                if not library.slm_dim(byref(config), byref(call), c_char(letter), byref(size)):
                    raise Refusal("SLM_ERR_SHAPE", field.name.decode(), 0, "a smaller size")
                shape.append(size.value)
            dtype = kind(byref(field), byref(config))
            array = np.zeros(shape, DTYPES[dtype])
            ctypes.memmove(ctypes.addressof(struct) + field.offset, byref(c_tensor(array, dtype)),
                           ctypes.sizeof(CTensor))
            made.append((field.name.decode(), array))
        return made

    def _call(self, op: str, arrays: Dict[str, Any]) -> Outputs:
        if not self._open:
            raise RuntimeError("prepare() comes first")
        number, error, config = list(OPERATIONS).index(op), CError(), c_config(self.config)
        info = self._library.slm_op_describe(number).contents
        struct = (c_char * info.args_size)()
        call = CCall.from_buffer(struct)
        call.struct_size, call.n_tokens = info.args_size, arrays.pop("n_tokens", 0)
        arrays = {name: value for name, value in arrays.items() if value is not None}
        kept = len(self._kept)
        try:
            self._sizes(info, arrays, call)
            changed = self._copies(info, arrays, config)
            given = {**arrays, **changed}
            self._fill(struct, info.fields[:info.n_fields], given, config, op)
            outputs = dict(self._outputs(info, config, call, struct, False))
            self._check(self._library.slm_check(number, byref(config), struct, byref(error)), error)
            offered = self.supports(self.config, op, call.n_tokens)
            if offered is not True:
                raise Refusal("SLM_ERR_UNSUPPORTED", op, 0, f"another backend: {offered}")
            if self._exact:
                outputs = dict(self._outputs(info, config, call, struct, True))
            if self._table.workspace:
                call.workspace_size = self._table.workspace(self._handle, number, byref(call))
            if call.workspace_size:
                room = np.empty(call.workspace_size + 64, np.uint8)
                call.workspace = room.ctypes.data + -room.ctypes.data % 64
            run = OPERATION(self._table.ops[1 + number])
            self._check(run(self._handle, ctypes.addressof(struct), byref(error)), error)
        finally:
            del self._kept[kept:]
        if self.config.k == self.config.n:
            outputs.pop("cutoff", None)
        return {**outputs, **changed}


def _method(op: str):
    def method(self: Library, **arrays: Any) -> Outputs:
        return self._call(op, arrays)

    method.__name__, method.__doc__ = op, getattr(Backend, op).__doc__
    return method


for _op in OPERATIONS:
    setattr(Library, _op, _method(_op))

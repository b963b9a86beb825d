# SPDX-License-Identifier: Apache-2.0
"""What a backend in Python is: a class whose methods are named like the operations."""
from __future__ import annotations

import dataclasses
from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Union

import numpy as np

from slm.config import Config

Array = np.ndarray
#: What a method returns: output name to array.
Outputs = Mapping[str, Array]

#: Flags: what a backend promises, and what is then held against it (clauses A2, X2):
#: same call, same bits; a token's bits do not depend on its batch; takes views of any stride.
DETERMINISTIC, BATCH_INVARIANT, STRIDED = 2, 4, 8
#: Levels: what is claimed, else skipped.
INFER, TRAIN, DIST = 1, 2, 4

#: Every operation and the level that it belongs to.
OPERATIONS: Mapping[str, int] = {
    "route": INFER, "select": INFER, "permute": INFER, "situ_glu": INFER, "dense_ffn": INFER,
    "rmsnorm": INFER, "layer_forward": INFER, "qb_exact": TRAIN, "qb_hist_accumulate": TRAIN,
    "qb_hist_merge": DIST, "qb_hist_solve": TRAIN, "sign_step": TRAIN, "load_metrics": INFER,
    "situ_glu_backward": TRAIN, "rmsnorm_backward": TRAIN, "select_backward": TRAIN,
    "dense_ffn_backward": TRAIN, "layer_backward": TRAIN, "qb_observe": TRAIN, "qb_commit": TRAIN,
}

#: Operations on the weights of prepare().
PREPARED = ("layer_forward", "layer_backward")

#: Outputs that a call may ask for or not; what it does not ask for is let go.
TAPS: Mapping[str, Sequence[str]] = {
    "route": ("cutoff", "logit", "score"), "select": ("cutoff",), "dense_ffn": ("h",),
    "layer_forward": ("cutoff", "logit", "score", "z", "h", "o", "u", "r", "hs"),
    "qb_exact": ("candidate", "cutoff"), "qb_hist_solve": ("candidate",),
    "dense_ffn_backward": ("gate_up", "h", "dh", "dgate_up"),
    "layer_backward": ("dbias", "logit", "weight", "z", "gate_up", "h", "o", "u", "r",
                       "shared_gate_up", "hs", "dr", "du", "dweight", "dlogit", "dh", "dgate_up",
                       "dz", "dhs", "dshared_gate_up"),
}

#: Names of the layer's weights: they go to prepare(), not to the operations on them.
WEIGHTS = frozenset(("w_router", "w_down", "w_gate", "w_up", "w_out", "w_expert", "gamma", "w_lift",
                     "w_shared_gate", "w_shared_up", "w_shared_out", "w_shared"))


class Refusal(Exception):
    """A call that must not succeed: raise it before anything else, outputs stay untouched.

    status    "SLM_ERR_NONFINITE", "SLM_ERR_TIE", ... as in slm_status
    field     the offending argument, "bias", or member of the configuration
    index     row-major position of its lowest offending element
    expected  what would have been right, for people
    """

    def __init__(self, status: str, field: str = "", index: int = 0, expected: str = "") -> None:
        super().__init__(f"{status}: {field}[{index}]: expected {expected}")
        self.status, self.field, self.index, self.expected = status, field, int(index), expected


@dataclasses.dataclass(frozen=True)
class Arithmetic:
    """Declared arithmetic (clause A1); the judge derives every bound from it.

    The defaults are binary32 with functions good to 4 units of 2^-24. 0 means exact.
    """

    accumulator: float = 2.0**-24  #: roundoff of one addition in a dot product
    input: float = 0.0  #: relative rounding of factors: tf32 2^-11, bf16 2^-8
    #: roundoff of stored values beyond binary32, by stage (z h o u r hs y): bf16 2^-8
    store: Mapping[str, float] = dataclasses.field(default_factory=dict)
    sigmoid_ulp: float = 4.0  #: relative error of sigmoid in units of 2^-24
    tanh_ulp: float = 4.0
    tanh_abs: float = 0.0  #: absolute error of tanh in units of 2^-24
    rsqrt_ulp: float = 4.0
    balance: float = 2.0**-53  #: roundoff of the balancing arithmetic
    flushes_subnormals: bool = False
    store_gradient: float = 0.0  #: of stored gradients of activations, beyond binary32
    store_weight_gradient: float = 0.0


class Backend:
    """Base class: override the operations that you have; the others are skipped.

    A method gets its input arrays by name and returns a dict of its outputs. Shapes are
    given below in the letters of `Config`; T is the number of tokens.

    - Inputs are read-only views, aligned to their element alone; of any stride, if `flags`
      has STRIDED, else packed.
      Optional ones that are absent are left out, hence the defaults.
    - An array of a bf16 configuration is uint16: see `slm.bf16`.
    - Outputs marked "tap" may be left out; the others must be there, with exactly that
      shape. A real-valued output is rounded once to the element type of the call, so
      float32 is always right; an integer output must be of an integer type.
    - `raise Refusal(...)` is how a call fails. Any other exception is a FAIL of the case,
      with its traceback.

    One instance serves one configuration at a time: `prepare()`, calls, `close()`.
    """

    name: str = "python"
    version: str = "0"
    url: str = ""
    note: str = ""
    flags: int = 0
    arithmetic: Arithmetic = Arithmetic()

    config: Config = Config()
    weights: Mapping[str, Array] = {}
    #: a call may set the seconds that `slmoe bench` is told: those without copies to a device.
    seconds: Optional[float] = None
    #: progress(done, total) may be called by a slow operation.
    progress: Callable[[int, int], None] = staticmethod(lambda done, total: None)

    def operations(self) -> Sequence[str]:
        """The operations offered: by default the methods that a subclass defines."""
        return [op for op in OPERATIONS if getattr(type(self), op) is not getattr(Backend, op)]

    def levels(self) -> int:
        """The levels claimed: by default those of the operations offered."""
        return sum({OPERATIONS[op] for op in self.operations()})

    def supports(self, config: Config, op: str, n_tokens: int) -> Union[bool, str]:
        """True, or the reason why that operation is not done under that configuration."""
        return True

    def prepare(self, config: Config, weights: Mapping[str, Array]) -> None:
        """Take a configuration and, for the layer, the weights, once before the calls.

        w_router [n, d]; w_down [l, d]; w_gate, w_up [n, f, l]; w_out [n, l, f]; gamma [l],
        absent means ones; w_lift [d, l]; w_shared_gate, w_shared_up [S fs, d];
        w_shared_out [d, S fs], the shared ones absent for S = 0. Without a gate in relu;
        linear experts have w_expert [n, l, l] and w_shared [S, d, d] instead.
        """
        self.config, self.weights = config, weights

    def close(self) -> None:
        """Let go of the weights: their memory is about to go."""
        self.config, self.weights = Config(), {}

    # ---- level infer ----

    def route(self, *, x: Array, w_router: Array, bias: Array) -> Outputs:
        """Score, choose, weigh. R1-R4

        x [T, d], w_router [n, d], bias [n] f32 ->
        ids [T, k] i32 best first, weight [T, k] f32; taps cutoff [T] (not if k = n),
        logit [T, n], score [T, n], all f32
        """
        raise NotImplementedError

    def select(self, *, bias: Array, score: Optional[Array] = None,
               logit: Optional[Array] = None) -> Outputs:
        """Choose and weigh from given scores [T, n] or from given logits [T, n]. R2-R4

        bias [n] -> ids [T, k] i32, weight [T, k] f32; tap cutoff [T] (not if k = n)
        """
        raise NotImplementedError

    def permute(self, *, ids: Array) -> Outputs:
        """Group the (token, slot) pairs by expert, stably. L5

        ids [T, k] i32 -> counts [n], offsets [n + 1], order [T k]: t k + slot; all i64
        """
        raise NotImplementedError

    def situ_glu(self, *, gate_up: Array) -> Outputs:
        """The activation. L1

        gate_up [T, 2f], gate first -> h [T, f]
        """
        raise NotImplementedError

    def dense_ffn(self, *, x: Array, w_up: Array, w_out: Array,
                  w_gate: Optional[Array] = None) -> Outputs:
        """A gated feed-forward network at full width. L1, L3

        x [T, d], w_gate, w_up [f, d], w_out [d, f] -> y [T, d]; tap h [T, f]
        """
        raise NotImplementedError

    def rmsnorm(self, *, u: Array, gamma: Optional[Array] = None) -> Outputs:
        """RMSNorm of rows; gamma None means ones. L2

        u [T, l], gamma [l] -> r [T, l]
        """
        raise NotImplementedError

    def layer_forward(self, *, x: Array, bias: Array) -> Outputs:
        """The whole layer on the weights of prepare(). R1-R5, L1-L6

        x [T, d], bias [n] f32 -> y [T, d], ids [T, k] i32, weight [T, k] f32; taps cutoff,
        logit, score as of route, z [T, l], h [T, k, f], o [T, k, l], u [T, l], r [T, l],
        hs [T, S fs]. A tap must be the very value that the next stage used.
        """
        raise NotImplementedError

    def load_metrics(self, *, ids: Array, mask: Optional[Array] = None) -> Outputs:
        """How far a choice is from equal load. Q7

        ids [T, k] i32, mask [T] i32 (0 leaves a token out, Q5)
        -> load [n] i64, metric [4] f64: max_vio, cv, dead, residual
        """
        raise NotImplementedError

    # ---- level train ----

    def qb_exact(self, *, score: Array, bias: Array, mask: Optional[Array] = None) -> Outputs:
        """Quantile Balancing by the exact order statistic. Q1, Q2

        score [T, n], bias [n] f32, mask [T] i32 (0 leaves a token out, Q5)
        -> new_bias [n] f32; taps candidate [n] f64, cutoff [T] f32
        """
        raise NotImplementedError

    def qb_hist_accumulate(self, *, score: Array, bias: Array, hist: Array,
                           mask: Optional[Array] = None) -> Outputs:
        """Counts of required biases in uniform bins. Q3

        score [T, n], bias [n] f32, hist [n, B] i64, mask [T] i32 (0 leaves a token out, Q5)
        -> hist [n, B]: the old counts and the new
        """
        raise NotImplementedError

    def qb_hist_solve(self, *, hist: Array, bias: Array, n_tokens: int) -> Outputs:
        """New bias from pooled counts whose rows sum to n_tokens each. Q3

        hist [n, B] i64, bias [n] f32 -> new_bias [n] f32; tap candidate [n] f64
        """
        raise NotImplementedError

    def sign_step(self, *, bias: Array, load: Array) -> Outputs:
        """The loss-free sign update. Q6

        bias [n] f32, load [n] i64 -> new_bias [n] f32
        """
        raise NotImplementedError

    def qb_observe(self, *, score: Array, bias: Array, ticket: Array, stamp: Array, hist: Array,
                   mask: Optional[Array] = None) -> Outputs:
        """Counts of one micro-batch of a training step, at most once. Q4, Q8

        score [T, n], bias [n] f32, ticket [4], stamp [4], hist [n, B] i64, mask [T] i32
        -> stamp [4], hist [n, B]
        """
        raise NotImplementedError

    def qb_commit(self, *, new_bias: Array, bias: Array, stamp: Array, hist: Array) -> Outputs:
        """The proposed bias put in force. Q4, Q8

        new_bias [n], bias [n] f32, stamp [4], hist [n, B] i64 -> bias, stamp, hist
        """
        raise NotImplementedError

    def situ_glu_backward(self, *, gate_up: Array, dh: Array) -> Outputs:
        """Gradients of the activation. G1

        gate_up [T, 2f], gate first, dh [T, f] -> dgate_up [T, 2f]
        """
        raise NotImplementedError

    def rmsnorm_backward(self, *, u: Array, dr: Array, gamma: Optional[Array] = None) -> Outputs:
        """Gradients of the RMSNorm; gamma None means ones. G2

        u, dr [T, l], gamma [l] -> du [T, l], dgamma [l] f32 (not without a norm)
        """
        raise NotImplementedError

    def select_backward(self, *, logit: Array, ids: Array, dweight: Array) -> Outputs:
        """Gradient of the logits through the weights of the chosen. G3, G5

        logit [T, n], ids [T, k] i32, dweight [T, k] -> dlogit [T, n]: 0 where not chosen
        """
        raise NotImplementedError

    def dense_ffn_backward(self, *, x: Array, w_gate: Array, w_up: Array, w_out: Array,
                           dy: Array) -> Outputs:
        """Gradients of the feed-forward network. G1, G4

        x, dy [T, d], w_gate, w_up [f, d], w_out [d, f] -> dx [T, d], dw_gate, dw_up [f, d],
        dw_out [d, f], those of weights f32; taps gate_up [T, 2f], h, dh [T, f], dgate_up [T, 2f]
        """
        raise NotImplementedError

    def layer_backward(self, *, x: Array, ids: Array, dy: Array) -> Outputs:
        """Gradients of the whole layer at the choice ids, on the weights of prepare(). G1-G5

        x, dy [T, d], ids [T, k] i32 -> dx [T, d], and f32 for every weight dw_router, dw_down,
        dw_gate, ... shaped like it: written, 0 where an expert is idle; dgamma with a norm. Taps:
        dbias [n], values (logit, weight, z, gate_up [T, k, 2f], h, o, u, r,
        shared_gate_up [T, 2 S fs], hs) and the gradients of values (dr, du, dweight, dlogit, dh,
        dgate_up, dz, dhs, dshared_gate_up), shaped like them.
        """
        raise NotImplementedError

    # ---- level dist ----

    def qb_hist_merge(self, *, parts: Array) -> Outputs:
        """Pooled counts of several parts. Q3, C1

        parts [R, n, B] i64 -> hist [n, B] i64
        """
        raise NotImplementedError


def call(backend: Backend, op: str, arrays: Mapping[str, Array], n_tokens: int) -> Outputs:
    """Call an operation with what its signature has."""
    arguments: Dict[str, Any] = dict(arrays)
    if op == "qb_hist_solve":
        arguments["n_tokens"] = n_tokens
    return getattr(backend, op)(**arguments)

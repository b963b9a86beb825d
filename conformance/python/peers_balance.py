# SPDX-License-Identifier: Apache-2.0
"""The router tail and Quantile Balancing of a backend in C beside PyTorch and NumPy: one table.

    cmake --build build --target slm_shared
    OMP_NUM_THREADS=2 python3 conformance/python/peers_balance.py [--backend cpu] [--tokens 4096]

Batches of the backend and of each peer take turns, so that what else the machine does falls on all of
them; a row gives medians and their ratio. A batch of the backend is one call of its operation in
memory that was written before; checks at the door are made once. A batch of a peer is the shortest
composition of its library that gives the same numbers up to rounding, with as many threads; one that
does more than part of the operation says so. Peers choose any of equal keys. Nothing here is expected of
anybody.

With one thread (OMP_NUM_THREADS=1) times are those of the thread, which what else runs hardly touches.
"""
from __future__ import annotations

import argparse
import ctypes
import os
import pathlib
import statistics
import sys
import time
from typing import Any, Callable, Dict, List, Tuple

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from slm import library  # noqa: E402
from slm.backend import OPERATIONS  # noqa: E402
from slm.config import Config  # noqa: E402

Batch = Callable[[], Any]
MOST_SORTED = 1 << 23  # elements that torch.quantile is given at once: it refuses 2^24 and more


class Direct(library.Library):
    """Calls of an operation on arguments that stay where they are."""

    def bind(self, op: str, arrays: Dict[str, np.ndarray]) -> Batch:
        number, error = list(OPERATIONS).index(op), library.CError()
        config = library.c_config(self.config)
        info = self._library.slm_op_describe(number).contents
        struct = (ctypes.c_char * info.args_size)()
        call = library.CCall.from_buffer(struct)
        call.struct_size = info.args_size
        self._sizes(info, arrays, call)
        self._fill(struct, info.fields[:info.n_fields], dict(arrays), config, op)
        outputs = self._outputs(info, config, call, struct, False)
        call.workspace_size = self._table.workspace(self._handle, number, ctypes.byref(call))
        room = np.zeros(call.workspace_size + 64, np.uint8)
        call.workspace = room.ctypes.data + -room.ctypes.data % 64
        self._check(self._library.slm_check(number, ctypes.byref(config), struct,
                                            ctypes.byref(error)), error)
        run, address = library.OPERATION(self._table.ops[1 + number]), ctypes.addressof(struct)

        def batch(kept: Any = (struct, outputs, room)) -> None:
            self._check(run(self._handle, address, ctypes.byref(error)), error)

        return batch


def peers_of_choice(torch: Any, logit: Any, bias: Any, k: int) -> List[Tuple[str, str, Batch]]:
    score = logit.sigmoid()

    def tail() -> Any:
        found = logit.sigmoid()
        keys, ids = (found + bias).topk(k + 1, dim=1)
        chosen = found.gather(1, ids[:, :k])
        return chosen / chosen.sum(1, keepdim=True), ids, keys[:, k]

    return [("select score", "torch.topk alone, k", lambda: score.topk(k, dim=1)),
            ("select logit", "torch sigmoid, add, topk, gather, normalise", tail)]


def peers_of_balance(torch: Any, score: Any, bias: Any, k: int,
                     bins: int) -> List[Tuple[str, str, Batch]]:
    n, tokens = score.shape[1], score.shape[0]
    nth = (k * (tokens - 1) + n - 1) // n
    columns = max(1, MOST_SORTED // tokens)

    def required() -> Any:
        return (score + bias).topk(k + 1, dim=1).values[:, k:] - score

    def quantiles(r: Any) -> List[Any]:
        return [torch.quantile(r[:, j:j + columns], k / n, dim=0, interpolation="higher")
                for j in range(0, n, columns)]

    def counts(r: Any) -> List[Any]:
        return [torch.histc(r[:, j], bins, -1.0 + float(bias.min()), 1.0 + float(bias.max()))
                for j in range(n)]

    r = required()
    rows = r.numpy()
    return [("qb_exact", "torch.quantile alone, in chunks", lambda: quantiles(r)),
            ("qb_exact", "torch topk, subtract, quantile", lambda: quantiles(required())),
            ("qb_exact", "numpy.partition alone", lambda: np.partition(rows, nth, axis=0)),
            ("qb_hist_accumulate", "torch.histc alone, each expert", lambda: counts(r)),
            ("qb_hist_accumulate", "torch topk, subtract, histc", lambda: counts(required()))]


def medians(ours: Batch, peer: Batch, batches: int, clock: Callable[[], float]) -> Tuple[float, float]:
    """Seconds of a batch of each; one of each is not counted."""
    taken: Tuple[List[float], List[float]] = ([], [])
    for turn in range(batches + 1):
        for times, batch in zip(taken, (ours, peer)):
            start = clock()
            batch()
            if turn:
                times.append(clock() - start)
    return statistics.median(taken[0]), statistics.median(taken[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--backend", default="cpu", help="cpu, cpu-blas or ref")
    parser.add_argument("--tokens", type=int, nargs="+", default=[4096], help="rows of a batch")
    parser.add_argument("--experts", type=int, default=896)
    parser.add_argument("--top-k", type=int, default=16)
    parser.add_argument("--bins", type=int, default=1000)
    parser.add_argument("--batches", type=int, default=5, help="of each, besides a first one")
    args = parser.parse_args()
    try:
        import torch
    except ImportError:
        print("peers_balance: it needs PyTorch", file=sys.stderr)
        return 77
    threads = int(os.environ.get("OMP_NUM_THREADS", "0").split(",")[0]) or os.cpu_count() or 1
    torch.set_num_threads(threads)
    clock = time.thread_time if threads == 1 else time.perf_counter
    n, k = args.experts, args.top_k
    ours = Direct(args.backend)
    ours.prepare(Config(n=n, k=k, B=args.bins, balance="relaxed"), {})
    print(f"{ours.name} {ours.version}; torch {torch.__version__}; numpy {np.__version__}; "
          f"n {n}, k {k}, B {args.bins}; threads {threads}; medians of {args.batches} batches, ms")
    print(f"{'T':>6}  {'operation':<18}  {'peer':<44} {'ours':>9} {'peer':>9} {'ratio':>6}")
    for tokens in args.tokens:
        random = np.random.default_rng(tokens)
        logit = random.standard_normal((tokens, n), dtype=np.float32)
        bias = (0.05 * random.standard_normal(n)).astype(np.float32)
        score = torch.from_numpy(logit).sigmoid()
        given = {"score": score.numpy(), "bias": bias}
        bound = {"select score": ours.bind("select", given),
                 "select logit": ours.bind("select", {"logit": logit, "bias": bias}),
                 "qb_exact": ours.bind("qb_exact", given),
                 "qb_hist_accumulate": ours.bind("qb_hist_accumulate", {
                     **given, "hist": np.zeros((n, args.bins), np.int64)})}
        with torch.inference_mode():
            bias_there = torch.from_numpy(bias)
            for op, peer, batch in (
                    peers_of_choice(torch, torch.from_numpy(logit), bias_there, k) +
                    peers_of_balance(torch, score, bias_there, k, args.bins)):
                a, b = medians(bound[op], batch, args.batches, clock)
                print(f"{tokens:>6}  {op:<18}  {peer:<44} {a * 1e3:>9.3f} {b * 1e3:>9.3f} "
                      f"{b / a:>6.1f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""Public bug reports about balancing (Q1, Q3, Q6), ranks (C1) and ids given to dispatch (L5)."""

from fractions import Fraction as F

from golden.cases import Family, empty, fill, gen
from golden.real import f32

from .balancing import RELAXED, centred
from .documents import sparse
from .public_layers import grouped
from .refusing import refuse

GITHUB = "https://github.com/"
REPORT = {"provenance": "public-report"}


def statistic() -> Family:
    f = Family("qb/public-statistic",
               "The required biases of each token once: replayed tokens shift the quantile, an "
               "offset of all biases is taken off, counts and loads are 64-bit integers.",
               ["Q1", "Q6"], ["quantile-off-by-one", "no-centring", "counts-binary32",
                              "load-against-share"])
    replay = {**REPORT, "source": GITHUB + "pytorch/torchtitan/pull/1593"}
    half = F(1, 2)
    # r of expert 0 is -.4, -.3, -.2 and, where it is the cutoff itself, its bias .1.
    once = [[f32(v), 0.5] for v in (".9", ".8", ".7")] + [[f32(".3"), f32(".9")]]
    bias = [f32(".1"), 0.0]

    def r(column, rows):
        values = []
        for s in rows:
            keys = [F(f32(F(v) + F(b))) for v, b in zip(s, bias)]
            values.append(min(keys) - F(s[column]))
        return sorted(values)

    for name, rows, index in (("each-token-once", once, 2), ("two-replayed", once + once[:2], 3)):
        candidate = [r(0, rows)[index], r(1, rows)[index]]
        f.add(name, "qb_exact", {"n": 2, "k": 1, **RELAXED}, {"score": rows, "bias": bias},
              out={"candidate": candidate, "new_bias": centred(*candidate)}, **replay,
              note="the element -.2 of four" if index == 2 else
              "the element -.3 of six: why a recomputed forward may not be counted")
    rows = [f32(v.split()) for v in (".9 .5 .4", ".8 .5 .3", ".7 .6 .2")]
    candidate = [half - F(f32(".8")), F(0), half - F(f32(".3"))]
    for name, shift in (("centred", 0.0), ("centred-from-8", 8.0)):
        given = [shift] * 3
        alpha = [sorted(F(f32(F(v) + F(shift))) for v in row)[1] for row in rows]
        columns = [sorted(a - F(row[j]) for a, row in zip(alpha, rows))[1] for j in range(3)]
        assert shift or columns == candidate
        f.add(name, "qb_exact", {"n": 3, "k": 1, **RELAXED}, {"score": rows, "bias": given},
              out={"candidate": columns, "new_bias": centred(*columns)}, **REPORT,
              source=GITHUB + "pytorch/torchtitan/issues/1506")
    rate = 2.0**-10
    f.add("units", "sign_step", {"n": 4}, {"bias": fill((4,), 0.0), "load": [10, 20, 30, 20]},
          out={"new_bias": [rate, 0.0, -rate, 0.0]}, **REPORT,
          source=GITHUB + "AI-Hypercomputer/maxtext/issues/2494")
    big = 2**24
    f.add("loads-past-binary32", "sign_step", {"n": 3},
          {"bias": fill((3,), 0.0), "load": [big, big + 1, big + 2]},
          out={"new_bias": [rate, 0.0, -rate]}, **REPORT,
          source=GITHUB + "pytorch/pytorch/issues/96613")
    return f


def counts() -> Family:
    f = Family("hist/public-counts",
               "Bins and ranks where binary32 and bf16 lose integers; r on an edge for any "
               "number of bins.",
               ["Q3", "C1"], ["counts-binary32", "counts-bf16", "bins-closed-above",
                              "first-part-only"])
    dtype = {**REPORT, "source": GITHUB + "pytorch/pytorch/issues/96613"}
    f.add("past-binary32", "qb_hist_accumulate", {"n": 2, "k": 1, "B": 4},
          {"score": [[0.75, 0.25]], "bias": [0.0, 0.0],
           "hist": [[0, 2**24, 2**24, 0], [0, 0, 2**24, 2**53]]},
          out={"hist": [[0, 2**24 + 1, 2**24, 0], [0, 0, 2**24 + 1, 2**53]]}, **dtype)
    f.add("sixty-four-ranks", "qb_hist_merge", {"n": 3, "B": 2},
          {"parts": fill((64, 3, 2), 638)}, out={"hist": [[40832] * 2] * 3},
          **{**dtype, "source": GITHUB + "NVIDIA/Megatron-LM/pull/7081"})
    limit = {**REPORT, "source": GITHUB + "pytorch/pytorch/issues/64947"}
    target = 4194305  # the ceiling of m k / n, 4194304.5 and 4194304.25
    for name, m, first in (("rank-reached", 2**24 + 2, target),
                           ("rank-one-short", 2**24 + 2, target - 1),
                           ("rank-of-odd-reached", 2**24 + 1, target),
                           ("rank-of-odd-one-short", 2**24 + 1, target - 1)):
        q = F(m, 4)
        row = [first, m - first - 7, 0, 7]
        t, before = (0, 0) if first == target else (1, first)
        one = F(-1) + (t + (q - before) / row[t]) / 2
        rest = [F(-1) + F(1, 4) / 2] * 3
        f.add(name, "qb_hist_solve", {"n": 4, "k": 1, "B": 4, "T": m},
              {"hist": [row] + [[m, 0, 0, 0]] * 3, "bias": fill((4,), 0.0)},
              out={"candidate": [one] + rest, "new_bias": centred(one, *rest)},
              kills=["counts-binary32"], **limit,
              note="a rank from binary32 sizes is 4194304, one short")
    edge = {**REPORT, "source": GITHUB + "pytorch/pytorch/pull/87832"}
    for bins in (1, 2, 3, 4, 7, 10, 100, 999, 1000, 1001):
        f.add(f"zero-of-{bins}", "qb_hist_accumulate", {"n": 2, "k": 1, "B": bins},
              {"score": [[0.75, 0.25]], "bias": [0.0, 0.0], "hist": fill((2, bins), 0)},
              out={"hist": sparse(bins, {bins // 4: 1}, {bins // 2: 1})}, **edge,
              kills=["bins-closed-above"] if bins % 2 == 0 else ["counts-doubled"])
    f.add("tenth-of-a-bin", "qb_hist_accumulate", {"n": 2, "k": 1, "B": 10},
          {"score": [[f32(v), 0.0] for v in (".1", ".2", ".3", ".4", ".5", ".6", ".7", ".8", ".9")],
           "bias": [0.0, 0.0], "hist": fill((2, 10), 0)},
          source=GITHUB + "numpy/numpy/issues/20610", kills=["counts-doubled"])
    return f


def ranks() -> Family:
    f = Family("hist/public-ranks",
               "A rank without tokens, a rank more than experts, only the last expert in use: "
               "pooled counts are those of one rank.",
               ["C1", "Q3", "L5"], ["first-part-only", "mean-of-parts", "last-expert-dropped",
                                    "empty-batch-fails"])
    idle = {**REPORT, "source": GITHUB + "deepseek-ai/DeepEP/pull/374"}
    for n, parts in ((5, 2), (128, 6), (3, 4)):
        bins = 4
        table = [[[0] * bins for _ in range(n)] for _ in range(parts)]
        for e in range(n):  # expert e was seen by rank e mod R, the last rank by nobody
            if parts > 1 and e % parts != parts - 1:
                table[e % parts][e][e % bins] = e + 1
        whole = [[sum(p[e][t] for p in table) for t in range(bins)] for e in range(n)]
        f.add(f"n{n}-ranks{parts}", "qb_hist_merge", {"n": n, "B": bins}, {"parts": table},
              out={"hist": whole}, **idle)
        f.add(f"idle-rank-n{n}", "qb_hist_accumulate", {"n": n, "k": 1, "B": bins},
              {"score": empty(0, n), "bias": fill((n,), 0.0), "hist": whole},
              out={"hist": whole}, **idle)
        last = {**REPORT, "source": GITHUB + "sgl-project/sglang/pull/15250"}
        ids = [[n - 1]] * 4
        f.add(f"last-expert-of-{n}", "permute", {"n": n, "k": 1}, {"ids": ids},
              out=grouped(ids, n), **last)
        f.add(f"last-expert-of-{n}-measured", "load_metrics", {"n": n, "k": 1}, {"ids": ids},
              out={"load": [0] * (n - 1) + [4]}, **last)
        f.add(f"last-expert-of-{n}-routed", "route", {"d": 1, "n": n, "k": 1},
              {"x": [[1.0], [2.0]], "w_router": [[0.0]] * (n - 1) + [[1.0]],
               "bias": fill((n,), 0.0)}, out={"ids": [[n - 1]] * 2, "weight": [[1.0]] * 2},
              **last)
    whole = gen((9, 5), 531, 20, 2.0**-21, 0.5)
    f.add("one-rank", "qb_hist_accumulate", {"n": 5, "k": 2, "B": 8},
          {"score": whole, "bias": fill((5,), 0.0), "hist": fill((5, 8), 0)},
          source=GITHUB + "sgl-project/sglang/pull/15250", kills=["counts-doubled"])
    return f


def bad_ids() -> Family:
    f = Family("reject/public-ids",
               "Ids that repeat in a row or lie outside 0..n-1 are refused before anything is "
               "indexed with them.",
               ["L5", "X1"], ["ids-unchecked", "index-not-reported"])
    report = GITHUB + "ggml-org/llama.cpp/issues/27015"
    rows = (("repeated", [[2, 2], [0, 1]], 1), ("repeated-later", [[2, 1], [0, 3], [3, 3]], 5),
            ("minus-one", [[-1, 1], [0, 4]], 0), ("past-the-end", [[3, 1], [0, 4]], 3),
            ("least", [[0, -(2**31)]], 1), ("largest", [[2**31 - 1, 0]], 0),
            ("all-alike", [[0, 0]] * 3, 1))
    for op in ("permute", "load_metrics"):
        for name, ids, index in rows:
            refuse(f, f"{op.replace('_', '-')}-{name}", op, "ids", "DOMAIN", {"ids": ids},
                   index=index)
            f.cases[-1].provenance = "public-report"
            f.cases[-1].source = report
    return f


def families() -> list[Family]:
    return [statistic(), counts(), ranks(), bad_ids()]

# SPDX-License-Identifier: Apache-2.0
"""The examples that the two documents print, typed from them.

A decimal of a document is stored as its nearest binary32; an expected value is then exact
for the stored inputs, as the document's formula gives it. What the texts lost, or give
without inputs (the report's figure 5), says so in its note.
"""

from fractions import Fraction as F

from golden.cases import Family, fill
from golden.real import f32, rn32

CHAPTER = "chapter, The router makes two different decisions"
NOTE_ROUTE = "note, minimal structure reference"
NOTE_QB = "note, exact coordinate reference"
CHAPTER_QB = "chapter, Quantile Balancing; note, one update of Quantile Balancing"

S64 = [
    [56, 44, 19, 11], [43, 28, 14, 40], [20, 11, 18, 6], [51, 29, 21, 16],
    [41, 49, 7, 48], [45, 54, 35, 28], [45, 56, 14, 37], [43, 39, 57, 17],
]
SCORE_4310 = [[v / 64 for v in row] for row in S64]
CUTOFF_4310 = [v / 64 for v in (44, 40, 18, 29, 48, 45, 45, 43)]
BIAS_4310 = [v / 64 for v in (-6, -4, 5, 5)]

# The note's torch.manual_seed(21): sigmoid(randn(8, 4)), as PyTorch 1.13.1 drew it.
SCORE_21 = [float.fromhex(v) for v in """
    0x1.c33664p-2 0x1.00fe3cp-2 0x1.13e890p-1 0x1.1657a4p-1
    0x1.1d0d4ap-2 0x1.7804ccp-2 0x1.895990p-1 0x1.724694p-1
    0x1.fca162p-3 0x1.34b40ap-2 0x1.ff7cc6p-2 0x1.1c8ddap-1
    0x1.698898p-1 0x1.7984dap-2 0x1.b3e9f6p-2 0x1.742168p-1
    0x1.a8aeacp-1 0x1.bce148p-2 0x1.39b578p-2 0x1.9cf170p-1
    0x1.b4d3dep-1 0x1.87300ap-1 0x1.21a4e2p-1 0x1.575756p-2
    0x1.927864p-1 0x1.fd3b76p-2 0x1.6c7a02p-2 0x1.568fd6p-1
    0x1.886beep-2 0x1.e6e3d0p-2 0x1.1ae000p-1 0x1.c10d4ap-2""".split()]
SCORE_21 = [SCORE_21[i : i + 4] for i in range(0, 32, 4)]
BIAS_21 = [float.fromhex(v) for v in
           ("-0x1.e2eaecp-5", "0x1.1602a0p-3", "-0x1.27172cp-5", "-0x1.4e086cp-5")]
CANDIDATE_21 = [float.fromhex(v) for v in
                ("-0x1.77a78p-6", "0x1.5fc86cp-3", "0x0p+0", "-0x1.378ap-8")]

ONE = {"n": 4, "k": 1}
ZERO = [0.0] * 4


def column(ids):
    return [[e] for e in ids]


def ratio(*decimals):
    """Shares of the stored binary32 values of these decimals."""
    s = [F(f32(v)) for v in decimals]
    return [[v / sum(s) for v in s]]


def mixture() -> Family:
    f = Family("select/mixture",
               "The bias chooses who is invited; the raw score decides how loud each one is.",
               ["R2", "R3"])
    raw = [f32(["0.90", "0.80", "0.65", "0.20"])]
    f.add("chapter-45-55", "select", {"n": 4, "k": 2},
          {"score": raw, "bias": f32(["-0.40", "0", "0.25", "0"])},
          out={"ids": [[2, 1]], "weight": ratio("0.65", "0.80")},
          provenance="document", source=CHAPTER,
          note="65/145 and 80/145 up to the storage of the decimals; the text lost the two "
               "biases, its selection scores .50 .80 .90 .20 imply them")
    f.add("chapter-unbiased", "select", {"n": 4, "k": 2}, {"score": raw, "bias": ZERO},
          out={"ids": [[0, 1]], "weight": ratio("0.90", "0.80")},
          provenance="document", source=CHAPTER)
    f.add("note-ninths", "select", {"n": 3, "k": 2},
          {"score": [f32(["0.9", "0.8", "0.1"])], "bias": [-1.0, 0.0, 2.0]},
          out={"ids": [[2, 1]], "weight": ratio("0.1", "0.8")},
          provenance="document", source=NOTE_ROUTE,
          note="1/9 and 8/9 up to the storage of the decimals")
    f.add("dyadic-45-55", "select", {"n": 4, "k": 2},
          {"score": [[90 / 128, 80 / 128, 65 / 128, 20 / 128]],
           "bias": [-40 / 128, 0.0, 25 / 128, 0.0]},
          out={"ids": [[2, 1]], "weight": [[F(65, 145), F(80, 145)]], "cutoff": [50 / 128]},
          note="the bias chooses and does not weigh: 65/145 and 80/145, exact inputs",
          tags=["probe"])
    f.add("dyadic-ninths", "select", {"n": 3, "k": 2},
          {"score": [[9 / 16, 8 / 16, 1 / 16]], "bias": [-1.0, 0.0, 2.0]},
          out={"ids": [[2, 1]], "weight": [[F(1, 9), F(8, 9)]], "cutoff": [-7 / 16]})
    return f


def balance_before_after() -> Family:
    f = Family("select/balance-example",
               "Loads (4,3,1,0) become (2,2,2,2) and (3,0,2,3) become (2,2,2,2).",
               ["R2", "Q1", "Q4"])
    note = "the report's figure gives loads only; this instance is constructed, without ties"
    f.add("4310-before", "select", ONE, {"score": SCORE_4310, "bias": ZERO},
          out={"ids": column([0, 0, 0, 0, 1, 1, 1, 2]), "weight": [[1.0]] * 8,
               "cutoff": CUTOFF_4310},
          provenance="document", source=CHAPTER_QB, note=note)
    f.add("4310-after", "select", ONE, {"score": SCORE_4310, "bias": BIAS_4310},
          out={"ids": column([0, 3, 2, 0, 3, 1, 1, 2]), "weight": [[1.0]] * 8},
          provenance="document", source=CHAPTER_QB, note=note)
    f.add("seed-21-before", "select", ONE, {"score": SCORE_21, "bias": ZERO},
          out={"ids": column([3, 2, 3, 3, 0, 0, 0, 2]), "weight": [[1.0]] * 8},
          provenance="document", source=NOTE_QB)
    f.add("seed-21-after", "select", ONE, {"score": SCORE_21, "bias": BIAS_21},
          out={"ids": column([2, 2, 3, 3, 0, 1, 0, 1]), "weight": [[1.0]] * 8},
          provenance="document", source=NOTE_QB,
          note="token 0 ties experts 2 and 3; the note's [2,2,2,2] rests on the lower id "
               "winning, the higher one gives [2,2,1,3]")
    return f


def loads() -> Family:
    f = Family("metrics/documents", "The loads of the documents' examples, measured.",
               ["Q7"])
    half = F(1, 2)

    def case(id, choice, load, metric, **rest):
        f.add(id, "load_metrics", ONE, {"ids": column(choice)},
              out={"load": load, "metric": metric}, provenance="document", **rest)

    # cv(4,3,1,0) = sqrt(10/4)/2, cv(3,0,2,3) = sqrt(6/4)/2: roots rounded once, typed
    case("4310-before", [0, 0, 0, 0, 1, 1, 1, 2], [4, 3, 1, 0],
         [1.0, float.fromhex("0x1.94c583ada5b53p-1"), 1.0, F(3, 8)], source=CHAPTER_QB)
    case("4310-after", [0, 3, 2, 0, 3, 1, 1, 2], [2, 2, 2, 2], [0.0] * 4, source=CHAPTER_QB)
    case("seed-21-before", [3, 2, 3, 3, 0, 0, 0, 2], [3, 0, 2, 3],
         [half, float.fromhex("0x1.3988e1409212ep-1"), 1.0, F(1, 4)], source=NOTE_QB)
    case("seed-21-after", [2, 2, 3, 3, 0, 1, 0, 1], [2, 2, 2, 2], [0.0] * 4, source=NOTE_QB)
    case("4310-four-bins", [0, 3, 2, 0, 3, 1, 3, 2], [2, 1, 2, 3],
         [half, float.fromhex("0x1.6a09e667f3bcdp-2"), 0.0, F(1, 8)], source=CHAPTER_QB,
         note="the loads that a histogram of 4 bins leads to")
    return f


def quantile() -> Family:
    f = Family("qb/documents",
               "The exact coordinate update of the documents, and its refusals.",
               ["Q1", "Q2"])
    strict = {"n": 4, "k": 1}
    f.add("4310", "qb_exact", strict, {"score": SCORE_4310, "bias": ZERO},
          out={"new_bias": BIAS_4310, "candidate": [v / 64 for v in (-3, -1, 8, 8)],
               "cutoff": CUTOFF_4310},
          provenance="document", source=CHAPTER_QB,
          note="the report's figure gives loads only; this instance is constructed")
    f.add("4310-relaxed", "qb_exact", {**strict, "balance": "relaxed"},
          {"score": SCORE_4310, "bias": ZERO},
          out={"new_bias": BIAS_4310}, provenance="document", source=CHAPTER_QB,
          note="both modes agree where strict accepts")
    f.add("seed-21", "qb_exact", strict, {"score": SCORE_21, "bias": ZERO},
          out={"new_bias": BIAS_21, "candidate": CANDIDATE_21},
          provenance="document", source=NOTE_QB)
    f.add("ones-tie", "qb_exact", {"n": 2, "k": 1},
          {"score": fill((4, 2), 1.0), "bias": [0.0, 0.0]},
          status="SLM_ERR_TIE", field="new_bias", index=0, provenance="document",
          source=NOTE_QB)
    f.add("target-not-integral", "qb_exact", {"n": 2, "k": 1},
          {"score": [[0.75, 0.25], [0.5, 0.625], [0.125, 0.875]], "bias": [0.0, 0.0]},
          status="SLM_ERR_TARGET", field="n_tokens", index=0, provenance="document",
          source=NOTE_QB)
    f.add("no-cutoff", "qb_exact", {"n": 2, "k": 2},
          {"score": [[0.75, 0.25], [0.5, 0.625]], "bias": [0.0, 0.0]},
          status="SLM_ERR_DOMAIN", field="top_k", index=0, provenance="document",
          source=NOTE_QB)
    return f


def pooled() -> Family:
    f = Family("qb/union-of-shards",
               "The quantile of the union is not the mean of the shards' quantiles.",
               ["Q1", "Q5"])
    # r of expert 0: (0,0,0,1/8) in shard A, 1/8 four times in shard B; cutoff 1/2
    a = [[0.5, 0.75, 0.5, 0.25]] * 3 + [[0.375, 0.75, 0.5, 0.25]]
    b = [[0.375, 0.75, 0.5, 0.25]] * 4
    config = {"n": 4, "k": 1, "balance": "relaxed"}
    source = "note, Histogram All-reduce"
    rest = [-0.25, 0.0, 0.25]
    f.add("shard-a", "qb_exact", config, {"score": a, "bias": ZERO},
          out={"new_bias": [0.0] + rest, "candidate": [0.0] + rest},
          provenance="document", source=source)
    f.add("shard-b", "qb_exact", config, {"score": b, "bias": ZERO},
          out={"new_bias": [3 / 32, -9 / 32, -1 / 32, 7 / 32], "candidate": [0.125] + rest},
          provenance="document", source=source)
    f.add("pooled", "qb_exact", config, {"score": a + b, "bias": ZERO},
          out={"new_bias": [0.0] + rest, "candidate": [0.0] + rest},
          provenance="document", source=source,
          note="candidate 0; the mean of the shards' would be 1/16")
    return f


def sparse(bins, *experts):
    flat = [0] * (bins * len(experts))
    for j, counts in enumerate(experts):
        for t, count in counts.items():
            flat[j * bins + t] = count
    return [flat[i : i + bins] for i in range(0, len(flat), bins)]


def _histogram(score, bins, width):
    """Typed by the formula: with b = 0, bin = floor((r + 1) B / 2)."""
    table = [{} for _ in range(width)]
    for row in score:
        alpha = sorted(map(F, row))[-2]
        for j, s in enumerate(row):
            t = min((alpha - F(s) + 1) * bins // 2, bins - 1)
            table[j][t] = table[j].get(t, 0) + 1
    return sparse(bins, *table)


def histogram() -> Family:
    f = Family("hist/documents",
               "The balancing examples through pooled counts; 4 bins are too coarse.",
               ["Q3"])
    source = CHAPTER_QB
    for bins in (4, 1000):
        counts = _histogram(SCORE_4310, bins, 4)
        f.add(f"4310-accumulate-{bins}", "qb_hist_accumulate", {**ONE, "B": bins},
              {"score": SCORE_4310, "bias": ZERO, "hist": fill((4, bins), 0)},
              out={"hist": counts}, provenance="document", source=source)
        candidate = {4: [F(-1, 4), F(-1, 6), F(1, 12), F(1, 7)],
                     1000: [F(v, 1000) for v in (-186, -140, 2, 2)]}[bins]
        mean = sum(candidate) / 4
        f.add(f"4310-solve-{bins}", "qb_hist_solve", {**ONE, "B": bins, "T": 8},
              {"hist": counts, "bias": ZERO},
              out={"candidate": candidate, "new_bias": [v - mean for v in candidate]},
              provenance="document", source=source)
        choice = {4: [0, 3, 2, 0, 3, 1, 3, 2], 1000: [0, 3, 2, 0, 3, 1, 1, 2]}[bins]
        f.add(f"4310-after-{bins}", "select", ONE,
              {"score": SCORE_4310, "bias": [rn32(v - mean) for v in candidate]},
              out={"ids": column(choice)}, provenance="document", source=source)
    counts = _histogram(SCORE_21, 1000, 4)
    f.add("seed-21-accumulate", "qb_hist_accumulate", ONE,
          {"score": SCORE_21, "bias": ZERO, "hist": fill((4, 1000), 0)},
          out={"hist": counts}, provenance="document", source=NOTE_QB)
    f.add("seed-21-solve", "qb_hist_solve", {**ONE, "T": 8}, {"hist": counts, "bias": ZERO},
          out={"candidate": [F(v, 1000) for v in (-88, 2, -44, -20)],
               "new_bias": [F(2 * v + 75, 2000) for v in (-88, 2, -44, -20)]},
          provenance="document", source=NOTE_QB,
          note="it targets the q-th required bias, the exact rule the next one")
    return f


def families() -> list[Family]:
    return [mixture(), balance_before_after(), loads(), quantile(), pooled(), histogram()]

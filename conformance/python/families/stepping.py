# SPDX-License-Identifier: Apache-2.0
"""The state of a balancing step: qb_observe and qb_commit (Q4, Q8)."""

import math

from golden.balance import (EVALUATION, RECOMPUTATION, TRAINING, checksum, fresh_stamp,
                            qb_hist_accumulate, qb_hist_solve)
from golden.cases import Family, Tensor, empty, fill, gen, resolve
from golden.real import f32

from .counting import nothing
from .documents import sparse
from .masking import NAN, PADDING, PADS, REST, scattered

GITHUB = "https://github.com/"
FLT_MAX = float.fromhex("0x1.fffffep+127")
LAST = 2**63 - 1
EVALUATED = GITHUB + "pytorch/torchtitan/pull/4412 , " + GITHUB + "pytorch/torchtitan/pull/4148"
RECOMPUTED = (GITHUB + "pytorch/torchtitan/pull/1593 , "
              + GITHUB + "NVIDIA-NeMo/Automodel/pull/3247")
REFUSAL = ["refusal-missing"]


def ticket(bias, version=0, micro_batch=0, mode=TRAINING):
    """What a forward pass knew that routed with this bias."""
    return [mode, version, checksum(bias), micro_batch]


def stamp(bias, version=0, micro_batches=0, tokens=0):
    return [version, checksum(bias), micro_batches, tokens]


def flat(rows):
    return [v for row in rows for v in row]


# Three micro-batches of 2, 1 and 2 counted tokens, and what they add with b = 0, B = 8.
ZERO = [0.0] * 3
A = [[0.75, 0.5, 0.25], [0.25, 0.75, 0.5]]
B = [[1.0, 0.0, 0.5]]
C = [[0.5, 0.25, 0.0], [NAN, 7.0, -1.0], [0.0, 0.25, 1.0]]
AFTER_A = sparse(8, {3: 1, 5: 1}, {3: 1, 4: 1}, {4: 1, 5: 1})
AFTER_B = sparse(8, {2: 1, 3: 1, 5: 1}, {3: 1, 4: 1, 6: 1}, {4: 2, 5: 1})
AFTER_C = sparse(8, {2: 1, 3: 2, 5: 2}, {3: 1, 4: 3, 6: 1}, {1: 1, 4: 2, 5: 2})
THREE = {"n": 3, "k": 1, "B": 8}


def micro_batches() -> Family:
    f = Family("state/micro-batches",
               "Each micro-batch of a step is counted once, with the bias that is in force.",
               ["Q8", "Q4"], ["tokens-not-counted", "micro-batches-not-counted",
                              "replay-counted-twice", "bias-applied-at-observe",
                              "range-from-new-bias"])

    def case(id, score, n, before, after, at, tokens, now=None, mask=None, **rest):
        """The next micro-batch of n counted tokens, or an earlier one (now)."""
        inputs = {"score": score, "bias": ZERO, "hist": before,
                  "ticket": ticket(ZERO, 5, at if now is None else now),
                  "stamp": stamp(ZERO, 5, at, tokens)}
        counts = now is None
        f.add(id, "qb_observe", THREE, inputs | ({"mask": mask} if mask else {}),
              out={"hist": after,
                   "stamp": stamp(ZERO, 5, at + counts, tokens + n * counts)}, **rest)

    empty_hist = nothing(3, 8)
    case("first", A, 2, empty_hist, AFTER_A, 0, 0, tags=["probe"],
         note="a micro-batch of a training step is counted, once")
    case("second", B, 1, AFTER_A, AFTER_B, 1, 2,
         kills=["bias-applied-at-observe", "range-from-new-bias"],
         note="still with the bias of the first: what the counts propose is not in force")
    case("third", C, 2, AFTER_B, AFTER_C, 2, 3, mask=[1, 0, 1], clause=["Q8", "Q5"],
         kills=["tokens-count-masked", "mask-ignored", "mask-inverted"],
         note="its padding row is not looked at")
    case("unsplit", A + B + [C[0], C[2]], 5, empty_hist, AFTER_C, 0, 0,
         note="the counts of three micro-batches")
    case("first-again", A, 2, AFTER_C, AFTER_C, 3, 5, now=0)
    case("third-again", C, 2, AFTER_C, AFTER_C, 3, 5, now=2, mask=[1, 0, 1])
    case("without-tokens", empty(0, 3), 0, AFTER_A, AFTER_A, 1, 2, clause=["Q8", "R5"],
         kills=["micro-batches-not-counted"])
    case("padding-only", fill((2, 3), NAN), 0, AFTER_A, AFTER_A, 1, 2, mask=[0, 0],
         clause=["Q8", "Q5"], kills=["tokens-count-masked", "micro-batches-not-counted"])
    f.add("padding-left-out", "qb_observe", {"n": 2, "k": 1},
          {"score": REST + PADS, "bias": [0.0] * 2, "ticket": ticket([0.0] * 2),
           "stamp": stamp([0.0] * 2), "hist": nothing(2, 1000),
           "mask": [1] * 4 + [0] * 4},
          out={"stamp": stamp([0.0] * 2, 0, 1, 4),
               "hist": sparse(1000, {300: 1, 349: 1, 400: 1, 449: 1}, {500: 4})},
          provenance="public-report", source=PADDING, clause=["Q8", "Q5"],
          kills=["tokens-count-masked", "mask-ignored", "mask-inverted"])
    bias = [0.25, -0.25, 0.125]
    f.add("range-of-the-bias-in-force", "qb_observe", {"n": 3, "k": 1, "B": 5},
          {"score": B, "bias": bias, "ticket": ticket(bias, 1, 1),
           "stamp": stamp(bias, 1, 1, 2), "hist": sparse(5, {0: 2}, {4: 2}, {2: 2})},
          out={"stamp": stamp(bias, 1, 2, 3),
               "hist": sparse(5, {0: 2, 1: 1}, {3: 1, 4: 2}, {2: 3})},
          note="lo = -5/4 and hi = 5/4; alpha = 5/8, r = -3/8, 5/8 and 1/8")
    counts = [[2**62, 0, 2**61], [2**61, 2**62, 0]]
    f.add("onto-large-counts", "qb_observe", {"n": 2, "k": 1, "B": 3},
          {"score": [[0.75, 0.25]], "bias": [0.0] * 2,
           "ticket": ticket([0.0] * 2, 2**62, 2**40),
           "stamp": stamp([0.0] * 2, 2**62, 2**40, 2**62 + 2**61), "hist": counts},
          out={"stamp": stamp([0.0] * 2, 2**62, 2**40 + 1, 2**62 + 2**61 + 1),
               "hist": [[2**62 + 1, 0, 2**61], [2**61, 2**62 + 1, 0]]},
          kills=["tokens-not-counted"])
    f.add("last-count", "qb_observe", {"n": 2, "k": 1, "B": 1},
          {"score": [[0.75, 0.25]], "bias": [0.0] * 2,
           "ticket": ticket([0.0] * 2, 2**63 - 2, 2**63 - 2),
           "stamp": stamp([0.0] * 2, 2**63 - 2, 2**63 - 2, 2**63 - 2),
           "hist": fill((2, 1), 2**63 - 2)},
          out={"stamp": stamp([0.0] * 2, 2**63 - 2, LAST, LAST),
               "hist": [[LAST], [LAST]]}, note="the row sums are 2^63 - 1")
    for n, k, m in ((6, 2, 21), (24, 5, 17)):
        drawn = gen((n,), n + m, 10, 2.0**-13)
        config = {"n": n, "k": k, "B": 40}
        earlier = gen((9, n), n, 20, 2.0**-22, 0.5)
        counts = qb_hist_accumulate(resolve({**config, "T": 9}), {
            "score": earlier.values("score"), "bias": drawn.values("bias"),
            "hist": [0] * (40 * n)})["hist"]
        f.add(f"seeded-n{n}", "qb_observe", config,
              {"score": gen((m, n), n + m, 20, 2.0**-22, 0.5), "bias": drawn,
               "ticket": ticket(drawn.values("bias"), 12, 3),
               "stamp": stamp(drawn.values("bias"), 12, 3, 9),
               "hist": Tensor((n, 40), data=counts), "mask": scattered(m)})
    return f


def evaluation() -> Family:
    f = Family("state/evaluation",
               "An evaluation changes nothing: the step goes on as if it had not been.",
               ["Q4", "Q8"], ["evaluation-counted"])
    zero = [0.0] * 4
    config = {"n": 4, "k": 1, "B": 8}
    train = [[0.75, 0.5, 0.25, 0.0], [0.5, 1.0, 0.25, 0.125], [0.75, 0.25, 0.5, 0.5],
             [0.875, 0.5, 0.0, 0.75]]
    counts = sparse(8, {3: 3, 4: 1}, {2: 1, 4: 1, 5: 2}, {4: 1, 5: 2, 7: 1},
                    {4: 2, 5: 1, 6: 1})
    source = {"provenance": "public-report", "source": EVALUATED}
    whole = {"score": train, "bias": zero, "hist": nothing(4, 8)}
    f.add("training-batch", "qb_observe", config,
          {**whole, "ticket": ticket(zero), "stamp": stamp(zero)},
          out={"hist": counts, "stamp": stamp(zero, 0, 1, 4)},
          kills=["tokens-not-counted"], **source)
    skewed = gen((40, 4), 12, 12, 2.0**-14, 0.5)
    f.add("ten-times-larger", "qb_observe", config,
          {"score": skewed, "bias": zero, "hist": counts,
           "ticket": ticket(zero, 0, 1, EVALUATION), "stamp": stamp(zero, 0, 1, 4)},
          out={"hist": counts, "stamp": stamp(zero, 0, 1, 4)}, tags=["probe"],
          note="an evaluation batch moves no count and no stamp", **source)
    solved = qb_hist_solve(resolve({**config, "T": 4}), {"hist": flat(counts), "bias": zero})
    f.add("step-after-it", "qb_hist_solve", {**config, "T": 4},
          {"hist": counts, "bias": zero}, provenance="oracle", clause=["Q4", "Q3"],
          kills=["no-centring", "no-interpolation"], want=("new_bias", "candidate"))
    f.add("commit-after-it", "qb_commit", config,
          {"new_bias": Tensor((4,), data=solved["new_bias"]), "bias": zero,
           "stamp": stamp(zero, 0, 1, 4), "hist": counts}, provenance="oracle",
          kills=["commit-keeps-histogram"])
    f.add("empty-step", "qb_observe", config,
          {**whole, "ticket": ticket(zero, 0, 0, EVALUATION), "stamp": stamp(zero)},
          out={"hist": nothing(4, 8), "stamp": stamp(zero)})
    odd = {"score": fill((2, 4), NAN), "bias": [0.0, NAN, math.inf, 0.0],
           "hist": sparse(8, {0: -3}, {1: 7}, {}, {2: 1}), "mask": [2, 7]}
    f.add("nothing-else-is-looked-at", "qb_observe", config,
          {**odd, "ticket": [EVALUATION, 77, 8, -4], "stamp": [-1, 3, -2, 11]},
          out={"hist": odd["hist"], "stamp": [-1, 3, -2, 11]},
          note="scores, bias, stamp and counts may be anything")
    return f


def recomputation() -> Family:
    f = Family("state/recomputation",
               "A forward pass that is run again for the backward pass is not counted again.",
               ["Q8", "Q4"], ["recompute-counted-twice", "replay-counted-twice",
                              "tokens-not-counted"])
    source = {"provenance": "public-report", "source": RECOMPUTED}
    zero = [0.0] * 4
    config = {"n": 4, "k": 2, "B": 20}
    rows = [f32(row.split()) for row in
            ("0.9 0.6 0.5 0.3", "0.8 0.6 0.5 0.3", "0.7 0.6 0.5 0.3", "0.4 0.7 0.6 0.5")]
    r = [[f32("0.5") - s for s in row] for row in rows]  # exact in binary64
    counts = qb_hist_accumulate(resolve({**config, "T": 2}), {
        "score": flat(rows[:2]), "bias": zero, "hist": [0] * 80})["hist"]
    first = Tensor((4, 20), data=counts)
    counts = qb_hist_accumulate(resolve({**config, "T": 2}), {
        "score": flat(rows[2:]), "bias": zero, "hist": counts})["hist"]
    whole = Tensor((4, 20), data=counts)

    def case(id, score, before, after, mode, at, now, tokens, n, **rest):
        f.add(id, "qb_observe", config,
              {"score": score, "bias": zero, "ticket": ticket(zero, 3, now, mode),
               "stamp": stamp(zero, 3, at, tokens), "hist": before},
              out={"hist": after, "stamp": stamp(zero, 3, at + (n > 0), tokens + n)},
              **source, **rest)

    case("first-two-tokens", rows[:2], nothing(4, 20), first, TRAINING, 0, 0, 0, 2)
    case("recomputed", rows[:2], first, first, RECOMPUTATION, 1, 0, 2, 0,
         note="the stamp still says 2 tokens", tags=["probe"])
    case("replayed", rows[:2], first, first, TRAINING, 1, 0, 2, 0,
         note="the ticket says micro-batch 0, which was observed", tags=["probe"])
    case("last-two-tokens", rows[2:], first, whole, TRAINING, 1, 1, 2, 2,
         note="4 tokens in all, not 6")
    case("recomputed-at-the-end", rows[2:], whole, whole, RECOMPUTATION, 2, 1, 4, 0)
    exact = {"n": 4, "k": 2, "balance": "relaxed"}
    f.add("counted-once", "qb_exact", exact, {"score": rows, "bias": zero},
          out={"candidate": [r[2][0], "any", "any", "any"]}, clause=["Q1", "Q8"],
          kills=["quantile-off-by-one"], note="r of expert 0 is -.4 -.3 -.2 .1, its q + 1st -.2",
          **source)
    f.add("counted-twice", "qb_exact", exact,
          {"score": rows[:2] + rows, "bias": zero},
          out={"candidate": [r[1][0], "any", "any", "any"]}, clause=["Q1", "Q8"],
          kills=["quantile-off-by-one"],
          note="what a caller gets who counts the first two tokens twice, -.3", **source)
    f.add("nothing-else-is-looked-at", "qb_observe", config,
          {"score": fill((1, 4), NAN), "bias": fill((4,), NAN), "mask": [5],
           "ticket": [RECOMPUTATION, -1, 1, LAST], "stamp": [4, 4, 4, 4],
           "hist": fill((4, 20), -1)},
          out={"hist": fill((4, 20), -1), "stamp": [4, 4, 4, 4]},
          kills=["recompute-counted-twice"])
    return f


def commit() -> Family:
    f = Family("state/commit",
               "A commit puts the bits of the new bias in force and begins an empty step.",
               ["Q8", "Q4"], ["commit-keeps-histogram", "commit-keeps-version",
                              "commit-keeps-micro-batches", "commit-keeps-tokens",
                              "commit-adds", "checksum-of-old-bias",
                              "checksum-not-inverted", "minus-zero-lost"])

    def case(id, new_bias, bias, version=0, micro_batches=2, tokens=3, hist=None, **rest):
        n = len(bias)
        f.add(id, "qb_commit", {"n": n, "B": 4},
              {"new_bias": new_bias, "bias": bias,
               "stamp": stamp(bias, version, micro_batches, tokens),
               "hist": hist or sparse(4, *[{0: tokens - 1, 3: 1}] * n)},
              out={"bias": new_bias, "stamp": fresh_stamp(new_bias, version + 1),
                   "hist": nothing(n, 4)}, **rest)

    case("next-step", [0.125, -0.25, 0.125], [0.5, 0.25, -0.75], 41, tags=["probe"],
         note="bias, version, checksum and an empty histogram")
    case("first-step", [0.25, -0.25], [0.0, 0.0], kills=["commit-keeps-version"])
    f.add("checksum-of-two-zeros", "qb_commit", {"n": 2, "B": 1},
          {"new_bias": [0.0, 0.0], "bias": [0.5, -0.5], "stamp": stamp([0.5, -0.5], 8, 1, 4),
           "hist": [[4], [4]]},
          out={"bias": [0.0, 0.0], "stamp": [9, -5302298732530578752, 0, 0],
               "hist": [[0], [0]]}, kills=["checksum-of-old-bias", "checksum-not-inverted"])
    case("negative-zero", [-0.0, 0.0], [0.0, 0.0], kills=["minus-zero-lost"],
         note="the bits are the policy: -0 has another checksum")
    case("same-bias", [0.5, -0.5], [0.5, -0.5], 6,
         kills=["commit-keeps-version", "commit-adds"])
    case("extreme", [FLT_MAX, -FLT_MAX, 2.0**-149, -0.0], [0.0] * 4,
         kills=["minus-zero-lost", "checksum-of-old-bias"])
    case("before-any-micro-batch", [0.5, -0.5], [0.0, 0.0], 1, 0, 0, nothing(2, 4),
         kills=["checksum-of-old-bias"])
    case("whatever-was-counted", [0.5, -0.5], [0.0, 0.0], 1, 1, 7,
         sparse(4, {0: -3, 1: LAST}, {}), kills=["commit-keeps-histogram"],
         note="the counts are not looked at")
    case("last-version", [0.5, -0.5], [0.25, -0.25], 2**63 - 2,
         kills=["commit-keeps-version"], note="no step can follow it")
    f.add("one-expert", "qb_commit", {"n": 1, "B": 2},
          {"new_bias": [1.0], "bias": [0.0], "stamp": stamp([0.0], 0, LAST - 1, LAST),
           "hist": [[LAST, 0]]},
          out={"bias": [1.0], "stamp": fresh_stamp([1.0], 1), "hist": [[0, 0]]})
    bias = gen((896,), 8, 12, 2.0**-15)
    f.add("seeded-896", "qb_commit", {"n": 896, "B": 2},
          {"new_bias": gen((896,), 9, 22, 2.0**-26), "bias": bias,
           "stamp": stamp(bias.values("bias"), 100, 4, 12), "hist": fill((896, 2), 6)})
    return f


def refusals() -> Family:
    f = Family("reject/state",
               "What was not routed with the bias in force, was lost, or does not fit is refused.",
               ["Q8", "X1"], ["stale-bias-accepted", "checksum-not-compared",
                              "lost-micro-batch-accepted", "restored-bias-unchecked",
                              *REFUSAL])
    bias, other = [0.25, -0.25], [-0.25, 0.25]
    config = {"n": 2, "k": 1, "B": 4}
    good = {"score": [[0.75, 0.25], [0.25, 0.625]], "bias": bias,
            "ticket": ticket(bias, 7, 2), "stamp": stamp(bias, 7, 2, 6),
            "hist": [[6, 0, 0, 0], [0, 3, 0, 3]]}

    def observe(id, status, field, index=None, config=config, alone=None, **change):
        f.add(id, "qb_observe", config, good | change, status=f"SLM_ERR_{status}",
              field=field, index=index, kills=[alone, *REFUSAL] if alone else REFUSAL)

    f.add("observed", "qb_observe", config, good, provenance="oracle",
          kills=["tokens-not-counted"], note="the lawful call that the others change")
    observe("no-such-mode", "DOMAIN", "ticket", 0, ticket=ticket(bias, 7, 2, 3))
    observe("negative-mode", "DOMAIN", "ticket", 0, ticket=ticket(bias, 7, 2, -1))
    observe("stale-version", "DOMAIN", "ticket", 1, alone="stale-bias-accepted",
            ticket=ticket(bias, 6, 2))
    observe("version-ahead", "DOMAIN", "ticket", 1, alone="stale-bias-accepted",
            ticket=ticket(bias, 8, 2))
    observe("another-checksum", "DOMAIN", "ticket", 2, alone="checksum-not-compared",
            ticket=ticket(other, 7, 2))
    observe("lost-micro-batch", "DOMAIN", "ticket", 3, alone="lost-micro-batch-accepted",
            ticket=ticket(bias, 7, 3))
    observe("negative-micro-batch", "DOMAIN", "ticket", 3, ticket=ticket(bias, 7, -1))
    observe("stale-and-lost", "DOMAIN", "ticket", 1, ticket=ticket(other, 6, 3))
    observe("stale-replay", "DOMAIN", "ticket", 1, alone="stale-bias-accepted",
            ticket=ticket(bias, 6, 0))
    observe("negative-version", "DOMAIN", "stamp", 0, ticket=ticket(bias, -1, 2),
            stamp=stamp(bias, -1, 2, 6))
    observe("version-at-its-end", "DOMAIN", "stamp", 0, ticket=ticket(bias, LAST, 2),
            stamp=stamp(bias, LAST, 2, 6))
    observe("restored-another-bias", "DOMAIN", "stamp", 1, alone="restored-bias-unchecked",
            bias=other)
    observe("stamp-of-another-bias", "DOMAIN", "stamp", 1, alone="restored-bias-unchecked",
            stamp=stamp(other, 7, 2, 6))
    observe("negative-zero-restored", "DOMAIN", "stamp", 1,
            alone="restored-bias-unchecked", bias=[0.0, -0.0],
            ticket=ticket([0.0, 0.0], 7, 2), stamp=stamp([0.0, 0.0], 7, 2, 6))
    observe("negative-micro-batches", "DOMAIN", "stamp", 2, stamp=stamp(bias, 7, -1, 6))
    observe("micro-batches-at-their-end", "DOMAIN", "stamp", 2,
            stamp=stamp(bias, 7, LAST, 6))
    observe("negative-tokens", "DOMAIN", "stamp", 3, stamp=stamp(bias, 7, 2, -6))
    observe("row-below-tokens", "DOMAIN", "hist", 4,
            hist=[[6, 0, 0, 0], [0, 3, 0, 2]])
    observe("row-above-tokens", "DOMAIN", "hist", 0,
            hist=[[6, 0, 1, 0], [0, 3, 0, 3]])
    observe("negative-count", "DOMAIN", "hist", 1,
            hist=[[8, -2, 0, 0], [0, 3, 0, 3]])
    observe("counts-without-tokens", "DOMAIN", "hist", 0, ticket=ticket(bias, 7, 0),
            stamp=stamp(bias, 7, 0, 0))
    observe("counts-full", "DOMAIN", "hist", 0, stamp=stamp(bias, 7, 2, LAST - 1),
            hist=[[LAST - 1, 0, 0, 0], [0, 0, 0, LAST - 1]])
    observe("score-above-one", "DOMAIN", "score", 3, score=[[0.75, 0.25], [0.25, 1.5]])
    observe("score-before-ticket", "DOMAIN", "score", 0, score=[[-1.0, 0.0], [0.0, 0.0]],
            ticket=ticket(other, 6, 3, 9))
    observe("ticket-before-mask", "DOMAIN", "ticket", 3, ticket=ticket(bias, 7, 9),
            mask=[3, 3])
    observe("domain-before-nonfinite", "DOMAIN", "ticket", 1,
            ticket=ticket(bias, 6, 2), score=[[NAN, 0.25], [0.25, 0.5]])
    observe("k-is-n", "DOMAIN", "top_k", config=config | {"k": 2})
    observe("evaluation-with-k-zero", "DOMAIN", "top_k", config=config | {"k": 0},
            ticket=ticket(bias, 7, 2, EVALUATION))
    observe("ticket-of-three", "SHAPE", "ticket", ticket=[0, 7, checksum(bias)])
    observe("score-nan", "NONFINITE", "score", 2, score=[[0.75, 0.25], [NAN, 0.625]])
    observe("replay-with-nan", "NONFINITE", "score", 2, ticket=ticket(bias, 7, 0),
            score=[[0.75, 0.25], [NAN, 0.625]])
    endless = [0.25, math.inf]
    observe("bias-infinite", "NONFINITE", "bias", 1, bias=endless,
            ticket=ticket(endless, 7, 2), stamp=stamp(endless, 7, 2, 6))
    _commits(f, bias, other)
    return f


def _commits(f: Family, bias, other) -> None:
    good = {"new_bias": [0.5, -0.5], "bias": bias, "stamp": stamp(bias, 7, 2, 6),
            "hist": [[6, 0], [3, 3]]}

    def refuse(id, status, field, index=None, alone=None, alias=None, **change):
        f.add(f"commit-{id}", "qb_commit", {"n": 2, "B": 2}, good | change,
              status=f"SLM_ERR_{status}", field=field, index=index, alias=alias,
              kills=[alone, *REFUSAL] if alone else REFUSAL)

    refuse("nan", "NONFINITE", "new_bias", 1, new_bias=[0.5, NAN])
    refuse("infinity", "NONFINITE", "new_bias", 0, new_bias=[-math.inf, NAN])
    endless = [0.25, math.inf]
    refuse("onto-infinity", "NONFINITE", "bias", 1, bias=endless,
           stamp=stamp(endless, 7, 2, 6))
    refuse("version-at-its-end", "DOMAIN", "stamp", 0, stamp=stamp(bias, LAST, 2, 6))
    refuse("stamp-of-another-bias", "DOMAIN", "stamp", 1, "restored-bias-unchecked",
           stamp=stamp(other, 7, 2, 6))
    refuse("negative-micro-batches", "DOMAIN", "stamp", 2, stamp=stamp(bias, 7, -2, 6))
    refuse("negative-tokens", "DOMAIN", "stamp", 3, stamp=stamp(bias, 7, 2, -6))
    refuse("in-place", "ALIAS", "bias", alias=("bias", "new_bias"))


def families() -> list[Family]:
    return [micro_batches(), evaluation(), recomputation(), commit(), refusals()]

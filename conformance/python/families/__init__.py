# SPDX-License-Identifier: Apache-2.0
"""Designs of the golden vectors: inputs, and why they are there."""

# The most telling cases, run first and on every change; all others are quick or full.
SMOKE = {
    "select/mixture/chapter-45-55",
    "select/balance-example/seed-21-after",
    "select/ties/six-experts-k3",
    "select/key-rounding/midpoint-down-to-even",
    "select/bias-extremes/band-of-four",
    "select/deep-negative/104-and-120",
    "select/k-one/three-tokens",
    "route/full-width/two-experts",
    "permute/stable/two-slots",
    "situ/values/moderate",
    "situ/saturated/infinite-gate",
    "ffn/values/sum-is-one-wider",
    "rmsnorm/eps/paper-thousandths",
    "rmsnorm/midpoint/to-even",
    "layer/seed-7/layer",
    "layer/by-hand/root-of-49",
    "layer/profiles/paper",
    "layer/tiny-aggregate/paper-20",
    "qb/documents/4310",
    "qb/documents/ones-tie",
    "qb/index/f64-n25-k7-m26",
    "qb/strict/equality-misses-it",
    "qb/sign-step/documents-loads",
    "hist/edges/zero-is-an-edge",
    "hist/solve/fractional-q",
    "hist/merge/past-binary32",
    "metrics/documents/4310-before",
    "reject/precedence/domain-before-nonfinite",
}

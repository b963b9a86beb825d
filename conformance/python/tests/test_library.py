# SPDX-License-Identifier: Apache-2.0
"""The backends in C through ctypes; skipped where libslm.so was not built."""
import unittest

import numpy as np

import slm
from slm.library import Library

THIRDS = {"score": np.array([[0.875, 0.75, 0.25]], np.float32),
          "bias": np.array([-1, 0, 1], np.float32)}


def backend(name="ref", **options):
    try:
        return Library(name, **options)
    except (OSError, ValueError) as error:
        raise unittest.SkipTest(str(error).splitlines()[0])


def prepared(config, name="ref", **options):
    made = backend(name, **options)
    made.prepare(config, {})
    return made


class InC(unittest.TestCase):
    def test_the_bias_chooses_and_the_raw_score_weighs(self):
        for name in ("ref", "cpu-blas"):
            out = prepared(slm.Config(n=3, k=2), name).select(**THIRDS)
            np.testing.assert_array_equal(out["ids"], [[2, 1]])
            np.testing.assert_array_equal(out["weight"], np.array([[0.25, 0.75]], np.float32))
            np.testing.assert_array_equal(out["cutoff"], np.array([-0.125], np.float32))

    def test_ref_gives_the_real_number_rounded_once_to_binary64(self):
        pair = np.array([[1, 1]], np.float32)
        out = prepared(slm.Config(f=1), exact=True).situ_glu(gate_up=pair)
        self.assertEqual(out["h"].dtype, np.float64)
        self.assertEqual(float(out["h"][0, 0]), 0.71581782807484051)

    def test_a_view_of_any_stride_is_taken_as_it_is(self):
        wide = np.arange(24, dtype=np.float32).reshape(4, 6)
        ref = prepared(slm.Config(l=3, eps=1e-6))
        np.testing.assert_array_equal(ref.rmsnorm(u=wide[::-2, ::2])["r"],
                                      ref.rmsnorm(u=wide[::-2, ::2].copy())["r"])

    def test_a_refusal_of_the_library_is_raised(self):
        ref = prepared(slm.Config(n=3, k=2))
        with self.assertRaises(slm.Refusal) as caught:
            ref.select(score=THIRDS["score"][:, :2], bias=THIRDS["bias"])
        refusal = caught.exception
        self.assertEqual((refusal.status, refusal.field), ("SLM_ERR_SHAPE", "score"))
        with self.assertRaises(slm.Refusal) as caught:
            ref.select(score=THIRDS["score"], bias=np.array([0, np.inf, 0], np.float32))
        refusal = caught.exception
        self.assertEqual((refusal.status, refusal.index), ("SLM_ERR_NONFINITE", 1))

    def test_what_a_backend_does_not_offer_is_refused_before_it_runs(self):
        config = slm.Config(d=1, l=1, n=2, k=1, f=1, S=0, norm="none", dtype="bf16")
        names = {"w_router": (2, 1), "w_down": (1, 1), "w_lift": (1, 1), "w_gate": (2, 1, 1),
                 "w_up": (2, 1, 1), "w_out": (2, 1, 1), "w_shared_gate": (0, 1),
                 "w_shared_up": (0, 1), "w_shared_out": (1, 0)}
        weights = {name: np.ones(shape, np.float32) for name, shape in names.items()}
        backend("cpu").prepare(config, weights)
        for run in (lambda: backend("cpu-blas").prepare(config, weights),
                    lambda: prepared(config, "cpu-blas").situ_glu(gate_up=np.ones((1, 2)))):
            with self.assertRaises(slm.Refusal) as caught:
                run()
            self.assertEqual(caught.exception.status, "SLM_ERR_UNSUPPORTED")
            self.assertIn("binary32", caught.exception.expected)
        bias = np.zeros(2, np.float32)
        prepared(config, "cpu-blas").load_metrics(ids=np.zeros((1, 1), np.int32))
        prepared(config, "cpu-blas").select(score=np.array([[0, 1]], np.float32), bias=bias)

    def test_a_binary64_that_is_no_binary32_is_not_rounded_in_silence(self):
        with self.assertRaises(ValueError):
            prepared(slm.Config(n=3, k=2)).select(score=np.array([[0.1, 0.2, 0.3]]),
                                                  bias=np.zeros(3))

    def test_an_argument_that_the_operation_lacks_is_named(self):
        with self.assertRaisesRegex(TypeError, "no argument 'beta'"):
            prepared(slm.Config(n=3, k=2)).select(**THIRDS, beta=np.zeros(3))

    def test_counts_are_added_to_a_copy(self):
        ref, hist = prepared(slm.Config(n=2, k=1, B=4)), np.ones((2, 4), np.int64)
        out = ref.qb_hist_accumulate(score=np.array([[0.25, 0.5]], np.float32),
                                     bias=np.zeros(2, np.float32), hist=hist)
        self.assertEqual((int(out["hist"].sum()), int(hist.sum())), (10, 8))

    def test_an_observation_and_a_commit_change_copies(self):
        ref = prepared(slm.Config(n=2, k=1, B=4))
        bias, hist = np.zeros(2, np.float32), np.zeros((2, 4), np.int64)
        stamp = np.array([0, -5302298732530578752, 0, 0])  # the checksum of (0, 0): Q8
        seen = ref.qb_observe(score=np.array([[0.25, 0.5], [0.5, 0.25]], np.float32), bias=bias,
                              ticket=np.array([0, 0, stamp[1], 0]), stamp=stamp, hist=hist,
                              mask=np.array([1, 0], np.int32))
        self.assertEqual(list(seen["stamp"]), [0, stamp[1], 1, 1])
        self.assertEqual((int(seen["hist"].sum()), int(hist.sum())), (2, 0))
        new = ref.qb_commit(new_bias=np.array([0.5, -0.5], np.float32), bias=bias, **seen)
        self.assertEqual((list(new["bias"]), new["stamp"][0]), ([0.5, -0.5], 1))
        self.assertEqual((int(new["hist"].sum()), float(bias[0])), (0, 0))

    def test_the_gradients_of_the_example(self):
        made = backend(exact=True)
        made.prepare(slm.Config.profile("linear", norm="none", d=1, l=1, n=1, k=1), {
            name: np.full(shape, value, np.float32) for name, shape, value in (
                ("w_router", (1, 1), 1), ("w_down", (1, 1), 3), ("w_expert", (1, 1, 1), 5),
                ("w_lift", (1, 1), 7))})
        out = made.layer_backward(x=np.array([[2.0]]), ids=np.array([[0]]), dy=np.array([[1.0]]))
        made.close()
        found = {name: float(value.sum()) for name, value in out.items() if name[:2] in ("dx", "dw")}
        self.assertEqual(found, {"dx": 105, "dw_router": 0, "dw_down": 70, "dw_expert": 42,
                                 "dw_lift": 30, "dw_shared": 0, "dweight": 210})

    def test_the_layer_is_the_same_in_both(self):
        config = slm.Config.profile("release", d=6, l=4, n=5, k=2, f=3, S=1, fs=3)
        rng = np.random.default_rng(7)
        shapes = {"w_router": (5, 6), "w_down": (4, 6), "w_gate": (5, 3, 4), "w_up": (5, 3, 4),
                  "w_out": (5, 4, 3), "w_lift": (6, 4), "w_shared_gate": (3, 6),
                  "w_shared_up": (3, 6), "w_shared_out": (6, 3)}
        weights = {name: rng.standard_normal(shape).astype(np.float32)
                   for name, shape in shapes.items()}
        x, bias = rng.standard_normal((7, 6)).astype(np.float32), np.zeros(5, np.float32)
        y = []
        for name in ("ref", "cpu-blas"):
            made = backend(name)
            made.prepare(config, weights)
            y.append(made.layer_forward(x=x, bias=bias)["y"])
            made.close()
        np.testing.assert_allclose(y[0], y[1], rtol=1e-4, atol=1e-5)

    def test_calling_before_prepare_says_so(self):
        with self.assertRaisesRegex(RuntimeError, "prepare"):
            backend().select(**THIRDS)


if __name__ == "__main__":
    unittest.main()

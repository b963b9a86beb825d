# SPDX-License-Identifier: Apache-2.0
"""The protocol loop against a pretended slmoe: pipes and a file at descriptors 3, 4 and 5."""
import fcntl
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import unittest

import numpy as np

from slm import serve

PACKAGE = str(pathlib.Path(serve.__file__).resolve().parents[1])
BACKEND = textwrap.dedent('''
    import numpy as np, slm
    class Doubler(slm.Backend):
        name = "doubler"
        def __init__(self, factor="2"):
            self.factor = float(factor)
        def supports(self, config, op, n_tokens):
            return config.l != 99 or "99 is too many"
        def rmsnorm(self, *, u, gamma=None):
            if u.size and u[0, 0] == 13: raise slm.Refusal("SLM_ERR_NONFINITE", "u", 4, "luck")
            if u.size and u[0, 0] == 14: raise KeyError("no such thing")
            if u.size and u[0, 0] == 15: u[0, 0] = 1
            if u.size and u[0, 0] == 16: return {"r": u[:, :1]}
            if u.size and u[0, 0] == 17: return {"r": u, "q": u}
            return {"r": np.float64(self.factor) * u}
''')
CONFIG = {"d": 0, "l": 2, "n": 0, "k": 0, "f": 0, "S": 0, "fs": 0, "B": 1000, "dtype": 0,
          "score": 0, "weighting": 0, "expert": 0, "norm": 0, "balance": 0, "tie_test": 0,
          "eps": 1e-6, "beta_gate": "inf", "beta_up": 25.0, "rate": 2.0**-10}


class Session:
    """slmoe's side of one process."""

    def __init__(self, *arguments):
        self.folder = tempfile.TemporaryDirectory()
        folder = pathlib.Path(self.folder.name)
        (folder / "mine.py").write_text(BACKEND)
        self.arena = open(folder / "arena", "w+b")
        self.arena.truncate(16384)
        asked, self.asks = os.pipe()
        answers, answered = os.pipe()
        given = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in
                 (asked, answered, self.arena.fileno())]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "slm.serve", *arguments], close_fds=False, cwd=folder,
            preexec_fn=lambda: [os.dup2(fd, 3 + i) for i, fd in enumerate(given)],
            stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": PACKAGE})
        for fd in given:
            os.close(fd)
        os.close(asked)
        os.close(answered)
        self.answers = os.fdopen(answers)
        self.hello = json.loads(self.answers.readline())

    def ask(self, kind, **members):
        os.write(self.asks, json.dumps({"type": kind, **members}).encode() + b"\n")
        return json.loads(self.answers.readline())

    def frame(self, rows, dtype="f32"):
        size = {"f32": 4, "bf16": 2}[dtype]
        tensor = {"dtype": dtype, "shape": [rows, 2], "stride": [-3, 2], "bytes": rows * 2 * size}
        first = 3 * (rows - 1) * size
        return {"op": "rmsnorm", "config": {**CONFIG, "dtype": int(dtype == "bf16")},
                "n_tokens": rows, "n_parts": 0, "arena": 16384, "workspace": None,
                "tensors": [{"name": "u", "role": "in", "offset": 4096 + first, **tensor},
                            {"name": "r", "role": "out", "offset": 8192 + first, **tensor}]}

    def put(self, values):
        os.pwrite(self.arena.fileno(), values.tobytes(), 4096)

    def get(self, count, dtype):
        size = count * np.dtype(dtype).itemsize
        return np.frombuffer(os.pread(self.arena.fileno(), size, 8192), dtype)

    def end(self):
        os.close(self.asks)
        self.printed = self.process.stderr.read().decode()
        self.process.stderr.close()
        code = self.process.wait()
        self.answers.close()
        self.arena.close()
        self.folder.cleanup()
        return code


class Serve(unittest.TestCase):
    def setUp(self):
        self.session = Session("mine:Doubler")

    def tearDown(self):
        self.assertEqual(self.session.end(), 0)

    def test_hello_offers_the_methods_that_the_class_has(self):
        hello = self.session.hello
        self.assertEqual((hello["type"], hello["name"], hello["ops"], hello["levels"]),
                         ("hello", "doubler", ["rmsnorm"], 1))
        self.assertEqual(hello["arithmetic"]["accumulator"], 2.0**-24)

    def test_supports_gives_the_reason(self):
        ask = self.session.ask
        call = {"op": "rmsnorm", "n_tokens": 1, "n_parts": 0}
        self.assertTrue(ask("supports", config=CONFIG, **call)["offered"])
        no = ask("supports", config={**CONFIG, "l": 99}, **call)
        self.assertEqual((no["offered"], no["reason"]), (False, "99 is too many"))

    def test_strides_are_followed_backwards_and_with_gaps(self):
        frame = self.session.frame(3)
        self.session.put(np.arange(1, 10, dtype=np.float32))
        self.assertEqual(self.session.ask("open", **frame)["status"], "SLM_OK")
        self.assertEqual(self.session.ask("call", **frame)["status"], "SLM_OK")
        np.testing.assert_array_equal(self.session.get(9, np.float32),
                                      [2, 0, 6, 8, 0, 12, 14, 0, 18])
        self.assertEqual(self.session.ask("close")["status"], "SLM_OK")

    def test_an_output_is_rounded_once_to_bf16(self):
        frame = self.session.frame(1, "bf16")
        frame["tensors"][0]["dtype"], frame["tensors"][0]["stride"] = "f32", [2, 1]
        self.session.put(np.array([1 + 2.0**-8, 3 * 2.0**-9], np.float32))
        self.session.ask("open", **frame)
        self.session.ask("call", **frame)
        np.testing.assert_array_equal(self.session.get(3, np.uint16), [0x4000, 0, 0x3C40])

    def ask_with(self, first):
        frame = self.session.frame(2)
        self.session.put(np.array([5, 0, 5, first, 0, 5], np.float32))
        self.session.ask("open", **frame)
        reply = self.session.ask("call", **frame)
        if reply["status"] != "SLM_OK":
            np.testing.assert_array_equal(self.session.get(6, np.float32), np.zeros(6))
        return reply

    def test_a_refusal_is_a_status_and_touches_nothing(self):
        reply = self.ask_with(13)
        self.assertEqual([reply[m] for m in ("status", "field", "index", "expected")],
                         ["SLM_ERR_NONFINITE", "u", 4, "luck"])

    def test_an_exception_is_an_internal_error_and_its_traceback_is_printed(self):
        reply = self.ask_with(14)
        self.assertEqual((reply["status"], reply["expected"]),
                         ("SLM_ERR_INTERNAL", "KeyError: 'no such thing'"))
        session, self.session = self.session, Session("mine:Doubler")
        self.assertEqual(session.end(), 0)
        self.assertIn('raise KeyError("no such thing")', session.printed)
        self.assertNotIn("slm/serve.py", session.printed)

    def test_inputs_cannot_be_written_to(self):
        self.assertIn("read-only", self.ask_with(15)["expected"])

    def test_a_wrong_shape_is_named(self):
        self.assertIn("output r has shape [2, 1], must have [2, 2]", self.ask_with(16)["expected"])

    def test_an_unknown_output_is_named(self):
        self.assertIn("no output 'q'", self.ask_with(17)["expected"])

    def test_a_request_that_is_none_is_refused(self):
        self.assertEqual(self.session.ask("dance")["type"], "refused")

    def test_options_reach_the_class(self):
        session = Session("mine:Doubler", "factor=3")
        frame = session.frame(1)
        session.put(np.array([1, 0, 2], np.float32))
        session.ask("open", **frame)
        session.ask("call", **frame)
        np.testing.assert_array_equal(session.get(3, np.float32), [3, 0, 6])
        self.assertEqual(session.end(), 0)

    def test_what_cannot_be_imported_says_why(self):
        session = Session("nowhere:Nothing")
        self.assertEqual(session.hello["type"], "refused")
        self.assertIn("No module named 'nowhere'", session.hello["why"])
        self.assertEqual(session.end(), 1)


class Elements(unittest.TestCase):
    def test_integers_must_be_integers_and_fit(self):
        with self.assertRaises(TypeError):
            serve.as_element("ids", np.zeros((1, 2)), [1, 2], "i32")
        with self.assertRaises(OverflowError):
            serve.as_element("ids", np.array([2**31]), [1], "i32")
        self.assertEqual(serve.as_element("ids", np.array([7]), [1], "i32").dtype, np.int32)

    def test_bf16_words_pass_as_they_are(self):
        words = np.array([0x7FC1], np.uint16)
        self.assertIs(serve.as_element("y", words, [1], "bf16"), words)

    def test_a_large_binary64_becomes_an_infinite_binary32(self):
        self.assertEqual(serve.as_element("y", np.array([1e300]), [1], "f32")[0], np.inf)


if __name__ == "__main__":
    unittest.main()

# SPDX-License-Identifier: Apache-2.0
import math
import unittest

import numpy as np

from slm import bf16


class Bf16(unittest.TestCase):
    def test_every_word_survives_the_way_there_and_back(self):
        words = np.arange(1 << 16, dtype=np.uint16)
        back = bf16.from_float32(bf16.to_float32(words))
        number = ~np.isnan(bf16.to_float32(words))
        np.testing.assert_array_equal(back[number], words[number])
        self.assertTrue(np.isnan(bf16.to_float32(back[~number])).all())

    def test_ties_go_to_the_even_word(self):
        for bits, word in ((0x3F808000, 0x3F80), (0x3F818000, 0x3F82), (0x3F808001, 0x3F81),
                           (0x3F807FFF, 0x3F80)):
            value = np.array([bits], np.uint32).view(np.float32)
            self.assertEqual(int(bf16.from_float32(value)[0]), word, hex(bits))

    def test_what_is_too_large_becomes_infinite_and_a_nan_stays_one(self):
        huge = np.array([0x7F7FFFFF, 0x7F800001, 0x7FFFFFFF], np.uint32).view(np.float32)
        values = bf16.to_float32(bf16.from_float32(huge))
        self.assertEqual(values[0], math.inf)
        self.assertTrue(np.isnan(values[1:]).all())

    def test_a_binary64_that_would_be_rounded_twice_is_refused(self):
        with self.assertRaises(ValueError):
            bf16.from_float32(np.array([1 + 2.0**-9 + 2.0**-40]))
        self.assertEqual(int(bf16.from_float32(np.array([1.5]))[0]), 0x3FC0)

    def test_shape_and_strides_do_not_matter(self):
        words = np.arange(24, dtype=np.uint16).reshape(4, 6)[::-2, ::3]
        np.testing.assert_array_equal(bf16.from_float32(bf16.to_float32(words)), words)


if __name__ == "__main__":
    unittest.main()

/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/lawful.h - a lawful call of any operation, for tests to break. */
#ifndef SLM_TEST_LAWFUL_H
#define SLM_TEST_LAWFUL_H

#include <slm/ops.h>

enum { LAWFUL_FIELDS = 64 };

typedef struct lawful {
    slm_config config;
    union {
        slm_call call;
#define LAWFUL_MEMBER(name, level, purpose) slm_##name##_args name;
        SLM_OPS(LAWFUL_MEMBER)
#undef LAWFUL_MEMBER
    } args;
    const slm_op_info *info;
    void *memory[LAWFUL_FIELDS]; /* one a field, packed, 64-byte aligned */
    size_t bytes[LAWFUL_FIELDS];
} lawful;

/* Profile "paper": T 5, d 6, l 3, n 4, k 2, f 8, S 2, fs 4, B 10, R 3. */
slm_config lawful_config(void);

/* Every field of `op` present (of score and logit in `select` only score) with zeros;
 * ids 0..k-1 in each row, histograms with all tokens in the first bin, a mask of ones,
 * ticket and stamp of version 3, one micro-batch of all tokens seen. */
void lawful_open(lawful *call, slm_op op, const slm_config *config, size_t n_tokens);
void lawful_close(lawful *call);

/* The tensor of a field, by name or by its place in info->fields. */
slm_tensor *lawful_tensor(lawful *call, const char *name);
slm_tensor *lawful_at(lawful *call, size_t field);

/* slm_check() into a cleared error. */
slm_status lawful_check(lawful *call, slm_error *error);

/* Fail the running test unless the check gives this status, and with an error this
 * field and index, the operation's name and a text. */
void lawful_expect(lawful *call, slm_status status, const char *field, size_t index);
void lawful_passes(lawful *call);

/* The same of slm_check_finite(). */
void lawful_expect_finite(lawful *call, slm_status status, const char *field,
                          size_t index);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/case.h - cases made in memory, for tests of the judge. */
#ifndef SLM_TEST_CASE_H
#define SLM_TEST_CASE_H

#include "../judge.h"

enum { CASE_TENSORS = 16 };

/* A case with one outcome, its frame and its verdict. Values of tensors stay the
 * caller's. */
typedef struct made_case {
    vec_case test;
    vec_outcome outcome;
    vec_tensor in[CASE_TENSORS];
    vec_tensor out[CASE_TENSORS];
    call_frame frame;
    judge_verdict verdict;
} made_case;

/* Begin: an operation under a profile; sizes are set by the caller in test.config and
 * test.call. */
void case_begin(made_case *made, slm_op op, const char *profile);

/* An input, or an expected value, of the field's own shape; sizes must be set. `values`
 * are of the file's dtype: float, int32_t or int64_t; double for golden real
 * outputs. */
void case_in(made_case *made, const char *field, void *values);
void case_out(made_case *made, const char *field, void *values);

/* Lay out the frame. */
void case_build(made_case *made);
void case_free(made_case *made);

/* Where an output lies, as its element type. */
float *case_f32(made_case *made, const char *field);
int32_t *case_i32(made_case *made, const char *field);
int64_t *case_i64(made_case *made, const char *field);
double *case_f64(made_case *made, const char *field);

/* Judge what lies in the frame as the result of a call. Arithmetic: binary32, functions
 * good to 4 units. */
judge_state case_judge(made_case *made);
judge_state case_judge_status(made_case *made, slm_status status, const char *field);
judge_state case_judge_exactly(made_case *made);
judge_state case_judge_under(made_case *made, const slm_arithmetic *arithmetic);

#endif

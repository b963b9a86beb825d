/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/undeclared.c - a failure that a declaration would make lawful.       A1 */
#include "undeclared.h"

#include <math.h>
#include <string.h>

#include "compare.h"

/* Of a bound that is meant for such an error, such an error uses at least this much. A
 * bug that is a thousand times smaller than bf16 is not explained by bf16. */
static const double TELLING = 1.0 / 32;

static const char *const stages[SLM_STAGE_COUNT] = {
    "logit", "score", "weight", "z", "h", "o", "u", "r", "hs", "y"};

static slm_stage stage_of(const char *name)
{
    for (int i = 0; i < SLM_STAGE_COUNT; i++)
        if (strcmp(stages[i], name) == 0) return (slm_stage)i;
    return SLM_STAGE_COUNT;
}

/* Whether every element of a binary32 output is a bf16 number. One that is out of its bound
 * by chance has so few digits once in 2^16. */
static bool is_narrow(const slm_tensor *tensor)
{
    const size_t count = slm_tensor_count(tensor);
    bool telling = false;

    if (tensor->dtype != SLM_F32) return false;
    for (size_t i = 0; i < count; i++) {
        const double value = slm_ref_get(tensor, i);

        if (isfinite(value) && compare_round(value, SLM_BF16) != value) return false;
        telling |= isfinite(value) && value != 0;
    }
    return telling;
}

/* Whether the stage is within its bound under that arithmetic, and needs it. */
static bool explains(const vec_case *test, const call_frame *frame,
                     const slm_arithmetic *arithmetic, const char *stage)
{
    const slm_error none = {0};
    judge_verdict verdict;

    judge_answer(test, frame, SLM_OK, &none, arithmetic, false, &verdict);
    for (size_t i = 0; i < verdict.n_stages; i++)
        if (strcmp(verdict.stages[i].name, stage) == 0)
            return verdict.stages[i].failed == 0 && verdict.stages[i].used >= TELLING;
    return false;
}

/* Try a declaration; input 0 and v 0 leave what was declared. */
static bool would_help(const vec_case *test, const call_frame *frame,
                       const slm_arithmetic *declared, slm_stage stage, double input,
                       double v)
{
    slm_arithmetic arithmetic = *declared;

    arithmetic.input = fmax(arithmetic.input, input);
    arithmetic.store[stage] = fmax(arithmetic.store[stage], v);
    return explains(test, frame, &arithmetic, stages[stage]);
}

void undeclared_find(const vec_case *test, const call_frame *frame,
                     const slm_arithmetic *arithmetic, judge_verdict *verdict)
{
    static const struct {
        double input, v;
        const char *words;
    } tries[] = {
        {0, 0x1p-8, "store of %s 2^-8 (bf16)"},
        {0x1p-11, 0, "input 2^-11 (tf32 factors)"},
        {0x1p-8, 0, "input 2^-8 (bf16 factors)"},
        {0x1p-8, 0x1p-8, "input 2^-8 (bf16 factors) and store of %s 2^-8 (bf16)"},
    };
    const slm_stage stage = stage_of(verdict->stage);
    const slm_tensor *tensor;
    char what[64];
    bool narrow;

    if (stage == SLM_STAGE_COUNT || !verdict->place[0] || verdict->reason[0] ||
        !(tensor = frame_tensor(frame, verdict->stage)))
        return;
    narrow = is_narrow(tensor);
    if (stage < SLM_STAGE_Z) {
        if (narrow)
            snprintf(verdict->reason, sizeof verdict->reason,
                     "every %s has the digits of bf16: must be binary32 or better (R1)",
                     verdict->stage);
        return;
    }
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++) {
        if (tries[i].v > 0 && !narrow) continue;
        if (!would_help(test, frame, arithmetic, stage, tries[i].input, tries[i].v))
            continue;
        snprintf(what, sizeof what, tries[i].words, verdict->stage);
        snprintf(verdict->reason, sizeof verdict->reason,
                 "would be within its bound with this declared (A1): %s", what);
        return;
    }
}

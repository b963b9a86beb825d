/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/judge.h - the verdict over one executed case. */
#ifndef SLM_JUDGE_H
#define SLM_JUDGE_H

#include <slm/backend.h>

#include "frame.h"
#include "vector.h"

typedef enum judge_state {
    JUDGE_PASS,
    JUDGE_FAIL,
    JUDGE_XFAIL,
    JUDGE_XPASS,
    JUDGE_SKIP,
    JUDGE_VACUOUS,
    JUDGE_CRASH,
    JUDGE_TIMEOUT,
    JUDGE_ERROR,
    JUDGE_STATES
} judge_state;

/* One stage's balance: a stage is an output field judged by its bound. */
typedef struct judge_stage {
    const char *name; /* the field: "weight", "z", ...                      */
    size_t checked;   /* elements                                           */
    size_t failed;
    double used; /* largest |got - want| / bound seen; INFINITY for NaN     */
} judge_stage;

enum { JUDGE_MAX_STAGES = 40 };

/* Null answers that are judged beside a right one; see controls.h.              A4 */
typedef enum judge_control {
    JUDGE_ZEROS,
    JUDGE_CONSTANT,
    JUDGE_ROTATED,
    JUDGE_DROPPED,
    JUDGE_CONTROLS
} judge_control;

/* What came of one. */
typedef enum judge_null {
    JUDGE_NULL_NONE,  /* it has no meaning for the case                     */
    JUDGE_NULL_SAME,  /* it is nearly the right answer                      */
    JUDGE_NULL_FAILS, /* as it must                                         */
    JUDGE_NULL_PASSES /* the case is no evidence                            */
} judge_null;

typedef struct judge_verdict {
    judge_state state;
    char reason[256]; /* of a SKIP, ERROR, ...; or a FAIL in words          */
    size_t n_stages;  /* in order of the data flow                          */
    judge_stage stages[JUDGE_MAX_STAGES];
    /* The first failing element in order of the data flow; clause "" when none. */
    char clause[8];
    char stage[SLM_NAME];
    char place[64];  /* "weight[0,3]"                                        */
    char got[64];    /* "0x1.9p-2 (0.390625)"                                */
    char want[96];   /* "0x1p-2 (0.25) +- 0x1p-26"                           */
    double multiple; /* of the bound; 0 when the value had to match exactly */
    /* Of a FAIL: the mutant that answers most like it, or ""; and how many others do so
     * as well. See nearest.h. */
    char nearest[64];
    size_t n_alike;
    judge_null controls[JUDGE_CONTROLS]; /* of a PASS or VACUOUS            */
    /* Tokens by how their choice was decided.                              R2 */
    size_t forced;
    size_t free;
    size_t tie;
    double seconds;       /* of the call                                    */
    double judge_seconds; /* of the judging                                 */
    char bits[17];        /* of what a call gave: the digest's first 16 digits,
                             or "" where it refused or did not return       */
    char output[1024];    /* what the testee printed, cut                   */
} judge_verdict;

/* Judge what a backend left in the frame. `status` and `error` are what it returned;
 * `exact` asks for golden bits (for `-b ref`): every value must be the file's golden
 * value rounded once to the output's element type. Otherwise the file decides status, ids and
 * what inputs fix, and live ref decides each stage on the backend's own previous values
 * under the declared arithmetic. An answer that passed has null answers judged beside it;
 * they stand in the frame for a while and are gone on return. */
void judge_case(const vec_case *test, const call_frame *frame, slm_status status,
                const slm_error *error, const slm_arithmetic *arithmetic, bool exact,
                judge_verdict *verdict);

/* The same without null answers. */
void judge_answer(const vec_case *test, const call_frame *frame, slm_status status,
                  const slm_error *error, const slm_arithmetic *arithmetic, bool exact,
                  judge_verdict *verdict);

const char *judge_state_name(judge_state state);
const char *judge_control_name(judge_control control);
const char *judge_null_name(judge_null null);

#endif

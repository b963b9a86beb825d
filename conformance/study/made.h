/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/study/made.h - cases made in memory, and what answers them. */
#ifndef SLM_STUDY_MADE_H
#define SLM_STUDY_MADE_H

#include "../arena.h"
#include "../testee.h"

enum { MADE_TENSORS = 16, MADE_ID = 96 };

/* A case whose inputs are recipes or arrays, with one outcome that expects nothing of
 * the file: live ref alone judges it. Must not be moved once it has inputs. */
typedef struct made_case {
    vec_case test;
    vec_outcome outcome;
    vec_tensor in[MADE_TENSORS];
    char id[MADE_ID];
    arena memory;
} made_case;

/* Begin: an operation under a profile; sizes and dtype are then set in test.config and
 * test.call, and after them the inputs. Release with made_free(). */
void made_begin(made_case *made, slm_op op, const char *profile);
void made_free(made_case *made);

/* An input of the field's own shape: by a recipe, or an array of zeros to be filled, of
 * the file's dtype (bf16 inputs are float). */
void made_recipe(made_case *made, const char *field, const vec_recipe *recipe);
void *made_values(made_case *made, const char *field);

/* Whether a field is used under the configuration. */
bool made_uses(const made_case *made, const char *field);

/* Call a testee on the case. Without taps these are absent. Returns 0 and reply->why
 * when there is no frame; else the frame is the caller's to free. */
int made_call(slm_testee *testee, const vec_case *test, bool taps, call_frame *frame,
              testee_reply *reply);

/* Absent from now on: the judge sees an answer without taps. */
void made_drop_taps(call_frame *frame);

/* The reference's answer, real outputs in binary64. Returns 0 when there is no frame;
 * else *status is what it came to and the frame is the caller's to free. */
int made_ref(const vec_case *test, call_frame *frame, slm_status *status,
             slm_error *error);

#endif

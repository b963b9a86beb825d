/* SPDX-License-Identifier: Apache-2.0 */
/* slm/state.h - the balancing state between two steps, kept in a small file.         Q8
 *
 * What is kept is the bias in force and its version. The histogram of a step that is
 * under way is not: whoever restores begins that step again with its first micro-batch,
 * and counts that came back would be counted twice. So a restored stamp says 0
 * micro-batches and 0 tokens, and hist must be zero.
 *
 *   offset    size  little-endian
 *   0         8     "SLMSTATE"
 *   8         4     format number, 1
 *   12        4     zero
 *   16        8     n, the number of experts
 *   24        8     version
 *   32        4 n   bias, binary32
 *   32 + 4 n  8     CRC-64/XZ of everything before it
 *
 * A file of any format begins with the name and the number of its format and ends with
 * such a checksum: so a newer file is told from a damaged one.
 *
 * Compiles as C99 and as C++. POSIX systems only. */
#ifndef SLM_STATE_H
#define SLM_STATE_H

#include <slm/slm.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum slm_state_status {
    SLM_STATE_OK = 0,
    SLM_STATE_MISSING,  /* there is no such file: a first start, or a wrong path     */
    SLM_STATE_SYSTEM,   /* the operating system refused; see error.system            */
    SLM_STATE_DAMAGED,  /* not a state, or not the whole and unchanged one           */
    SLM_STATE_NEWER,    /* whole, of a format that this version does not know        */
    SLM_STATE_OTHER,    /* whole, for another number of experts                      */
    SLM_STATE_UNLAWFUL, /* a bias that is not finite, a stamp that is not the bias's */
    SLM_STATE_STATUS_COUNT
} slm_state_status;

enum { SLM_STATE_TEXT = 1024 };

/* What was wrong, for people: path, what, expected and got, what to do. The caller owns
 * it and may pass NULL. */
typedef struct slm_state_error {
    slm_state_status status;
    int system; /* errno of SLM_STATE_MISSING and SLM_STATE_SYSTEM, else 0 */
    char text[SLM_STATE_TEXT];
} slm_state_error;

/* Write bias [n_experts] and the version of the stamp, whose checksum must be that of
 * the bias. May be called at any time; what the stamp says of the step under way is left
 * out.
 *
 * The file appears whole or not at all, whatever happens meanwhile: a temporary file
 * beside it is written, made durable, and renamed to `path`. On failure the temporary
 * is gone and a file that was there before is what it was; only when the folder cannot
 * be made durable at the very end does SLM_STATE_SYSTEM come with the new file in place.
 *
 * The temporary is PATH.PID-NUMBER.tmp. One that a killed process left behind is
 * harmless, and the next successful save to the same path removes it; one that another
 * process is still writing is locked (flock) and left alone. When two save to one path
 * at the same time, the later rename stays. */
slm_state_status slm_state_save(const char *path, size_t n_experts, const float *bias,
                                const int64_t stamp[4], slm_state_error *error);

/* Read a file that slm_state_save() wrote: bias [n_experts] and the stamp {version,
 * checksum, 0, 0} that a step begins with. On failure nothing is written to them. */
slm_state_status slm_state_load(const char *path, size_t n_experts, float *bias,
                                int64_t stamp[4], slm_state_error *error);

/* "SLM_STATE_DAMAGED" and the like. Static storage, never NULL. */
const char *slm_state_status_name(slm_state_status status);

#ifdef __cplusplus
}
#endif
#endif

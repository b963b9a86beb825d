/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/cpu_call.h - calls of a CPU backend, tensors laid out at will. */
#ifndef SLM_TEST_CPU_CALL_H
#define SLM_TEST_CPU_CALL_H

#include "cpu.h"

enum { CPU_FIELDS = 40, CPU_MEMORIES = 64, CPU_UNTOUCHED = 0xa5 };

/* How tensors lie in memory: packed; one element further; with gaps between rows; with
 * gaps between elements; backwards. */
typedef enum cpu_layout {
    CPU_PACKED,
    CPU_SHIFTED,
    CPU_PADDED,
    CPU_SPREAD,
    CPU_REVERSED,
    CPU_LAYOUTS
} cpu_layout;

/* A packed array for a field; a list ends with a NULL field. What no list gives is
 * invented, by name and index. */
typedef struct cpu_given {
    const char *field;
    const void *values;
} cpu_given;

/* One call and what it left: outputs packed, in order of the fields. Outputs are
 * CPU_UNTOUCHED bytes before the call. */
typedef struct cpu_outcome {
    slm_status status;
    slm_error error;
    size_t n;
    const char *name[CPU_FIELDS];
    unsigned char *bytes[CPU_FIELDS];
    size_t size[CPU_FIELDS];
} cpu_outcome;

/* Arguments and weights in memory of their own. */
typedef struct cpu_frame {
    const slm_op_info *info;
    union {
        slm_call call;
        char bytes[4096];
    } args;
    slm_weights weights;
    void *memory[CPU_MEMORIES];
    size_t n_memory;
} cpu_frame;

/* The backend that is tested: `cpu-blas`; `cpu` where the environment variable
 * SLM_TEST_BACKEND says so, or where there is no OpenBLAS. */
const slm_backend *cpu_table(void);

/* Let `cpu` take that level; 0 when this CPU cannot run it. */
int cpu_force(const char *level);

/* Odd sizes: d 37, l 19, n 11, k 3, f 23, S 2, fs 13, B 50; relaxed. */
slm_config cpu_tiny(void);

/* Uniform in [-1, 1): what an invented x or weight holds. */
float cpu_noise(const char *name, size_t index);

/* Fill hist [11, 50], zero before, with rows that sum to `tokens`. */
void cpu_histogram(int64_t *hist, size_t tokens);

void cpu_frame_make(cpu_frame *made, slm_op op, const slm_config *config, size_t tokens,
                    const cpu_given *list, cpu_layout how);
slm_tensor *cpu_field(cpu_frame *made, const slm_field *field);
slm_status cpu_invoke(slm_handle *handle, slm_op op, const void *args,
                      slm_error *error);

/* A handle with the frame's weights, and a workspace for its call. Close frees them and
 * the frame's memory. */
slm_handle *cpu_frame_open(cpu_frame *made, slm_op op, const slm_config *config);
void cpu_frame_close(cpu_frame *made, slm_handle *handle);

/* Check at the door, then call on a fresh handle in exactly the workspace that it asks
 * for, between guards, filled with `old_byte`. */
cpu_outcome cpu_run(slm_op op, const slm_config *config, size_t tokens,
                    const cpu_given *list, cpu_layout how, int threads, int old_byte);

/* Packed, two threads, workspace full of NaN. */
cpu_outcome cpu_run_plain(slm_op op, const slm_config *config, size_t tokens,
                          const cpu_given *list);
void *cpu_output(const cpu_outcome *out, const char *name);
void cpu_release(cpu_outcome *out);
void cpu_same_bits(const cpu_outcome *a, const cpu_outcome *b);

/* Outputs of a packed frame, without the taps, have those bits. */
void cpu_same_outputs(cpu_frame *made, const cpu_outcome *want);

/* Same bits for any threads, layout and old workspace. */
void cpu_one_result(slm_op op, const slm_config *config, size_t tokens);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/state_folder.h - a balancing state in a folder of its own, for tests. */
#ifndef SLM_TEST_STATE_FOLDER_H
#define SLM_TEST_STATE_FOLDER_H

#include <slm/ops.h>
#include <slm/state.h>

/* A state of STATE_N experts and its file's bytes. */
enum { STATE_N = 3, STATE_SIZE = 40 + 4 * STATE_N };

extern const float state_bias[STATE_N];

/* The folder of the test that runs, and the file in it that all functions below are
 * about; a test may set another path, and sets it back. */
extern char state_folder[64];
extern char state_path[128];

/* A test in a new folder, which goes with it. */
#define STATE_TEST(name) cmocka_unit_test_setup_teardown(name, state_open, state_close)
int state_open(void **state);
int state_close(void **state);

/* Files in the folder. */
size_t state_files(void);

/* The stamp [4] of a bias [n] whose version it is. */
void state_stamp(int64_t *stamp, const float *bias, size_t n, int64_t version);

slm_state_status state_save(const float *bias, size_t n, int64_t version,
                            slm_state_error *error);

/* The file is there, whole, with these. */
void state_expect_loaded(const float *bias, size_t n, int64_t version);

/* Refused with this status, a text that begins with the path and says `words`, and
 * nothing in the caller's memory. */
void state_expect_refused(size_t n, slm_state_status status, const char *words);

/* The file's bytes; get gives how many there are, `size` at most. */
void state_put(const unsigned char *bytes, size_t size);
size_t state_get(unsigned char *bytes, size_t size);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/state_folder.c - a balancing state in a folder of its own, for tests. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "state_folder.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

char state_folder[64];
char state_path[128];
const float state_bias[STATE_N] = {0.5f, -0.25f, -0.25f};

int state_open(void **state)
{
    (void)state;
    strcpy(state_folder, "/tmp/slm-state-XXXXXX");
    if (!mkdtemp(state_folder)) return -1;
    snprintf(state_path, sizeof state_path, "%s/bias.state", state_folder);
    return 0;
}

int state_close(void **state)
{
    char command[128];

    (void)state;
    snprintf(command, sizeof command, "rm -rf '%s'", state_folder);
    return system(command);
}

size_t state_files(void)
{
    DIR *list = opendir(state_folder);
    size_t n = 0;

    assert_non_null(list);
    for (const struct dirent *entry; (entry = readdir(list)) != NULL;)
        n += entry->d_name[0] != '.';
    closedir(list);
    return n;
}

void state_stamp(int64_t *stamp, const float *bias, size_t n, int64_t version)
{
    stamp[SLM_STAMP_VERSION] = version;
    stamp[SLM_STAMP_CHECKSUM] = slm_checksum(bias, n);
    stamp[SLM_STAMP_MICRO_BATCHES] = 2;
    stamp[SLM_STAMP_TOKENS] = 1000;
}

slm_state_status state_save(const float *bias, size_t n, int64_t version,
                            slm_state_error *error)
{
    int64_t stamp[4];

    state_stamp(stamp, bias, n, version);
    return slm_state_save(state_path, n, bias, stamp, error);
}

void state_expect_loaded(const float *bias, size_t n, int64_t version)
{
    float *loaded = calloc(n, sizeof *loaded);
    int64_t stamp[4] = {-1, -1, -1, -1};
    slm_state_error error = {.text = ""};

    assert_non_null(loaded);
    if (slm_state_load(state_path, n, loaded, stamp, &error))
        fail_msg("%s", error.text);
    assert_memory_equal(loaded, bias, n * sizeof *bias);
    assert_int_equal(stamp[SLM_STAMP_VERSION], version);
    assert_int_equal(stamp[SLM_STAMP_CHECKSUM], slm_checksum(bias, n));
    assert_int_equal(stamp[SLM_STAMP_MICRO_BATCHES], 0);
    assert_int_equal(stamp[SLM_STAMP_TOKENS], 0);
    free(loaded);
}

void state_expect_refused(size_t n, slm_state_status status, const char *words)
{
    unsigned char before[4 * 64], bias[4 * 64], stamp[32];
    slm_state_error error = {.text = ""};

    memset(before, 0xa5, sizeof before);
    memcpy(bias, before, sizeof bias);
    memcpy(stamp, before, sizeof stamp);
    assert_int_equal(slm_state_load(state_path, n, (float *)(void *)bias,
                                    (int64_t *)(void *)stamp, &error),
                     status);
    assert_int_equal(error.status, status);
    assert_memory_equal(bias, before, sizeof bias);
    assert_memory_equal(stamp, before, sizeof stamp);
    assert_int_equal(strncmp(error.text, state_path, strlen(state_path)), 0);
    if (!strstr(error.text, words)) fail_msg("'%s' is not in: %s", words, error.text);
    assert_non_null(strstr(error.text, "\n  ")); /* what to do */
    assert_int_equal(slm_state_load(state_path, n, (float *)(void *)bias,
                                    (int64_t *)(void *)stamp, NULL),
                     status);
}

void state_put(const unsigned char *bytes, size_t size)
{
    FILE *file = fopen(state_path, "wb");

    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

size_t state_get(unsigned char *bytes, size_t size)
{
    FILE *file = fopen(state_path, "rb");

    assert_non_null(file);
    size = fread(bytes, 1, size, file);
    fclose(file);
    return size;
}

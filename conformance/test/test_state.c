/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/test_state.c - the balancing state in a file: whole or not at all. Q8 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <slm/ops.h>
#include <slm/state.h>

enum { N = 3, SIZE = 40 + 4 * N, NOBODY = 65534 };

static char folder[64];
static char path[128];

static int open_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/slm-state-XXXXXX");
    if (!mkdtemp(folder)) return -1;
    snprintf(path, sizeof path, "%s/bias.state", folder);
    return 0;
}

static int close_folder(void **state)
{
    char command[128];

    (void)state;
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

static size_t n_files(void)
{
    DIR *list = opendir(folder);
    size_t n = 0;

    assert_non_null(list);
    for (const struct dirent *entry; (entry = readdir(list)) != NULL;)
        n += entry->d_name[0] != '.';
    closedir(list);
    return n;
}

static const float first_bias[N] = {0.5f, -0.25f, -0.25f};

static void stamp_of(int64_t *stamp, const float *bias, size_t n, int64_t version)
{
    stamp[SLM_STAMP_VERSION] = version;
    stamp[SLM_STAMP_CHECKSUM] = slm_checksum(bias, n);
    stamp[SLM_STAMP_MICRO_BATCHES] = 2;
    stamp[SLM_STAMP_TOKENS] = 1000;
}

static slm_state_status save(const float *bias, size_t n, int64_t version,
                             slm_state_error *error)
{
    int64_t stamp[4];

    stamp_of(stamp, bias, n, version);
    return slm_state_save(path, n, bias, stamp, error);
}

/* The file is there, whole, with these. */
static void expect_loaded(const float *bias, size_t n, int64_t version)
{
    float *loaded = calloc(n, sizeof *loaded);
    int64_t stamp[4] = {-1, -1, -1, -1};
    slm_state_error error = {.text = ""};

    assert_non_null(loaded);
    if (slm_state_load(path, n, loaded, stamp, &error)) fail_msg("%s", error.text);
    assert_memory_equal(loaded, bias, n * sizeof *bias);
    assert_int_equal(stamp[SLM_STAMP_VERSION], version);
    assert_int_equal(stamp[SLM_STAMP_CHECKSUM], slm_checksum(bias, n));
    assert_int_equal(stamp[SLM_STAMP_MICRO_BATCHES], 0);
    assert_int_equal(stamp[SLM_STAMP_TOKENS], 0);
    free(loaded);
}

/* Refused with this status, a text that begins with the path and says `words`, and
 * nothing in the caller's memory. */
static void expect_refused(size_t n, slm_state_status status, const char *words)
{
    unsigned char before[4 * 64], bias[4 * 64], stamp[32];
    slm_state_error error = {.text = ""};

    memset(before, 0xa5, sizeof before);
    memcpy(bias, before, sizeof bias);
    memcpy(stamp, before, sizeof stamp);
    assert_int_equal(slm_state_load(path, n, (float *)(void *)bias,
                                    (int64_t *)(void *)stamp, &error),
                     status);
    assert_int_equal(error.status, status);
    assert_memory_equal(bias, before, sizeof bias);
    assert_memory_equal(stamp, before, sizeof stamp);
    assert_int_equal(strncmp(error.text, path, strlen(path)), 0);
    if (!strstr(error.text, words)) fail_msg("'%s' is not in: %s", words, error.text);
    assert_non_null(strstr(error.text, "\n  ")); /* what to do */
    assert_int_equal(
        slm_state_load(path, n, (float *)(void *)bias, (int64_t *)(void *)stamp, NULL),
        status);
}

static void put_file(const unsigned char *bytes, size_t size)
{
    FILE *file = fopen(path, "wb");

    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

static size_t get_file(unsigned char *bytes, size_t size)
{
    FILE *file = fopen(path, "rb");

    assert_non_null(file);
    size = fread(bytes, 1, size, file);
    fclose(file);
    return size;
}

/* The bytes of a saved state, changed and with a checksum that is right again. */
static void put_changed(size_t at, const void *value, size_t size)
{
    unsigned char bytes[SIZE];
    uint64_t rest = UINT64_MAX;

    assert_int_equal(save(first_bias, N, 7, NULL), SLM_STATE_OK);
    assert_int_equal(get_file(bytes, SIZE), SIZE);
    memcpy(bytes + at, value, size);
    for (size_t i = 0; i < SIZE - 8; i++) {
        rest ^= bytes[i];
        for (int bit = 0; bit < 8; bit++)
            rest = rest >> 1 ^ (rest & 1 ? 0xc96c5795d7870f42u : 0);
    }
    rest = ~rest;
    memcpy(bytes + SIZE - 8, &rest, 8);
    put_file(bytes, SIZE);
}

static void what_was_saved_comes_back_to_the_bit(void **state)
{
    static const float odd[] = {-0.0f,   0.0f,     0x1p-149f, -0x1p-149f,
                                FLT_MAX, -FLT_MAX, FLT_MIN,   1.0f / 3};
    float many[896];

    (void)state;
    assert_int_equal(save(odd, 8, 0, NULL), SLM_STATE_OK);
    expect_loaded(odd, 8, 0);
    for (size_t j = 0; j < 896; j++) many[j] = (float)j / 1024 - 0.4f;
    assert_int_equal(save(many, 896, INT64_MAX, NULL), SLM_STATE_OK);
    expect_loaded(many, 896, INT64_MAX);
    assert_int_equal(save(odd, 1, 1, NULL), SLM_STATE_OK);
    expect_loaded(odd, 1, 1);
    assert_int_equal(n_files(), 1);
}

/* Whoever writes the file in another language finds it so. */
static void the_format_is_the_one_in_the_header(void **state)
{
    static const unsigned char want[SIZE] = {
        'S', 'L', 'M', 'S', 'T', 'A',  'T', 'E', 1,    0,    0, 0, 0,    0,   0,
        0,   N,   0,   0,   0,   0,    0,   0,   0,    7,    1, 0, 0,    0,   0,
        0,   0,   0,   0,   0,   0x3f, 0,   0,   0x80, 0xbe, 0, 0, 0x80, 0xbe};
    unsigned char got[SIZE + 1];

    (void)state;
    assert_int_equal(save(first_bias, N, 263, NULL), SLM_STATE_OK);
    assert_int_equal(get_file(got, sizeof got), SIZE);
    assert_memory_equal(got, want, SIZE - 8);
}

static void a_first_start_is_told_from_a_broken_file(void **state)
{
    (void)state;
    expect_refused(N, SLM_STATE_MISSING, "there is no such file");
    put_file((const unsigned char *)"", 0);
    expect_refused(N, SLM_STATE_DAMAGED, "too short");
    put_file((const unsigned char *)"schema: slm-vector/1\n", 21);
    expect_refused(N, SLM_STATE_DAMAGED, "no balancing state");
}

static void every_flipped_bit_is_refused(void **state)
{
    unsigned char bytes[SIZE];

    (void)state;
    assert_int_equal(save(first_bias, N, 7, NULL), SLM_STATE_OK);
    assert_int_equal(get_file(bytes, SIZE), SIZE);
    for (size_t bit = 0; bit < 8 * SIZE; bit++) {
        bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
        put_file(bytes, SIZE);
        expect_refused(N, SLM_STATE_DAMAGED, "");
        bytes[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
    put_file(bytes, SIZE);
    expect_loaded(first_bias, N, 7);
}

static void every_other_length_is_refused(void **state)
{
    unsigned char bytes[2 * SIZE] = {0};

    (void)state;
    assert_int_equal(save(first_bias, N, 7, NULL), SLM_STATE_OK);
    assert_int_equal(get_file(bytes, SIZE), SIZE);
    for (size_t size = 0; size <= 2 * SIZE; size++) {
        put_file(bytes, size);
        if (size == SIZE)
            expect_loaded(first_bias, N, 7);
        else
            expect_refused(N, SLM_STATE_DAMAGED, "");
    }
}

static void a_newer_format_is_told_as_such(void **state)
{
    static const uint32_t newer = 2, none = 0;

    (void)state;
    put_changed(8, &newer, 4);
    expect_refused(N, SLM_STATE_NEWER,
                   "written by a newer version: format 2, expected 1");
    put_changed(8, &none, 4);
    expect_refused(N, SLM_STATE_DAMAGED, "no format");
}

/* Whole by its checksum, and still not to be used. */
static void a_whole_file_must_fit(void **state)
{
    static const uint32_t reserved = 1;
    static const int64_t before_zero = -1, four = 4, far = INT64_MAX;
    const float bad[] = {NAN, INFINITY, -INFINITY};

    (void)state;
    assert_int_equal(save(first_bias, N, 7, NULL), SLM_STATE_OK);
    expect_refused(4, SLM_STATE_OTHER, "expected 4 experts, got 3");
    expect_refused(2, SLM_STATE_OTHER, "expected 2 experts, got 3");
    expect_refused(0, SLM_STATE_UNLAWFUL, "a state of 0 experts");
    put_changed(16, &four, 8);
    expect_refused(N, SLM_STATE_DAMAGED, "another size");
    put_changed(16, &far, 8);
    expect_refused(N, SLM_STATE_DAMAGED, "another size");
    put_changed(12, &reserved, 4);
    expect_refused(N, SLM_STATE_DAMAGED, "");
    put_changed(24, &before_zero, 8);
    expect_refused(N, SLM_STATE_UNLAWFUL, "version -1");
    for (size_t i = 0; i < 3; i++) {
        put_changed(32 + 4 * i, &bad[i], 4);
        expect_refused(N, SLM_STATE_UNLAWFUL, "expected a finite number");
    }
}

static void what_is_no_regular_file_is_refused_and_does_not_block(void **state)
{
    (void)state;
    assert_int_equal(mkdir(path, 0700), 0);
    expect_refused(N, SLM_STATE_SYSTEM, "is no regular file");
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    expect_refused(N, SLM_STATE_SYSTEM, "is no regular file");
}

/* ---- save ---- */

static void expect_not_saved(slm_state_status got, slm_state_status want,
                             const slm_state_error *error, const char *words)
{
    assert_int_equal(got, want);
    assert_int_equal(error->status, want);
    assert_int_equal(strncmp(error->text, path, strlen(path)), 0);
    if (!strstr(error->text, words)) fail_msg("'%s' is not in: %s", words, error->text);
    expect_loaded(first_bias, N, 7);
    assert_int_equal(n_files(), 1);
}

static void what_no_commit_leaves_is_not_saved(void **state)
{
    const float bad[N] = {0.5f, NAN, 0.0f}, other[N] = {0.5f, -0.25f, -0.5f};
    int64_t stamp[4];
    slm_state_error error;

    (void)state;
    assert_int_equal(save(first_bias, N, 7, NULL), SLM_STATE_OK);
    expect_not_saved(save(bad, N, 8, &error), SLM_STATE_UNLAWFUL, &error,
                     "bias[1]: expected a finite number, got nan");
    expect_not_saved(save(first_bias, N, -1, &error), SLM_STATE_UNLAWFUL, &error,
                     "version -1");
    expect_not_saved(save(first_bias, 0, 8, &error), SLM_STATE_UNLAWFUL, &error,
                     "0 experts");
    stamp_of(stamp, first_bias, N, 8);
    expect_not_saved(slm_state_save(path, N, other, stamp, &error), SLM_STATE_UNLAWFUL,
                     &error, "the checksum of bias");
    assert_int_equal(slm_state_save(path, N, other, stamp, NULL), SLM_STATE_UNLAWFUL);
}

/* No room: a limit on the size of files stops the write half-way. */
static void without_room_the_old_file_stays(void **state)
{
    static float many[4096];
    struct rlimit old, small;
    slm_state_error error;
    slm_state_status got;

    (void)state;
    assert_int_equal(save(first_bias, N, 7, NULL), SLM_STATE_OK);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = 4096;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    got = save(many, 4096, 8, &error);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    expect_not_saved(got, SLM_STATE_SYSTEM, &error, "cannot be written");
    assert_int_equal(error.system, EFBIG);
    assert_non_null(strstr(error.text, "unharmed"));
    assert_int_equal(save(many, 4096, 8, &error), SLM_STATE_OK);
    expect_loaded(many, 4096, 8);
}

/* For root every folder is writable. */
static void in_a_folder_that_is_not_writable_the_old_file_stays(void **state)
{
    const int root = geteuid() == 0;
    slm_state_error error;
    slm_state_status got;

    (void)state;
    assert_int_equal(save(first_bias, N, 7, NULL), SLM_STATE_OK);
    assert_int_equal(chmod(path, 0644), 0);
    assert_int_equal(chmod(folder, 0555), 0);
    if (root) assert_int_equal(seteuid(NOBODY), 0);
    got = save(first_bias, N, 8, &error);
    if (root) assert_int_equal(seteuid(0), 0);
    assert_int_equal(chmod(folder, 0755), 0);
    expect_not_saved(got, SLM_STATE_SYSTEM, &error, "make its folder writable");
    assert_int_equal(error.system, EACCES);
}

static void a_path_that_leads_nowhere_is_said(void **state)
{
    char kept[sizeof path];
    slm_state_error error;

    (void)state;
    strcpy(kept, path);
    snprintf(path, sizeof path, "%s/none/bias.state", folder);
    assert_int_equal(save(first_bias, N, 7, &error), SLM_STATE_SYSTEM);
    assert_int_equal(error.system, ENOENT);
    assert_non_null(strstr(error.text, "make the folder first"));
    strcpy(path, kept);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(save(first_bias, N, 7, &error), SLM_STATE_SYSTEM);
    assert_int_equal(error.system, EISDIR);
    assert_int_equal(n_files(), 1); /* no temporary beside it */
}

static void a_name_without_a_folder_is_in_the_working_one(void **state)
{
    char working[512], kept[sizeof path];

    (void)state;
    strcpy(kept, path);
    assert_non_null(getcwd(working, sizeof working));
    assert_int_equal(chdir(folder), 0);
    strcpy(path, "bias.state");
    assert_int_equal(save(first_bias, N, 9, NULL), SLM_STATE_OK);
    expect_loaded(first_bias, N, 9);
    assert_int_equal(chdir(working), 0);
    strcpy(path, kept);
    expect_loaded(first_bias, N, 9);
}

static void put_beside(const char *ending, char *name, size_t size)
{
    FILE *file;

    snprintf(name, size, "%s%s", path, ending);
    file = fopen(name, "wb");
    assert_non_null(file);
    assert_int_equal(fclose(file), 0);
}

/* What a killed process left goes with the next save; what is held, or only looks like
 * it, stays. */
static void stale_temporaries_go_and_no_others(void **state)
{
    static const char *const others[] = {".tmp",       ".12.tmp",    ".12-.tmp",
                                         ".-3.tmp",    ".12-3.tmp~", ".12-3.tm",
                                         ".12-3x.tmp", ".bak",       "2.12-3.tmp"};
    enum { OTHERS = sizeof others / sizeof *others };
    char name[192], held[192];
    struct stat about;
    int lock;

    (void)state;
    for (size_t i = 0; i < OTHERS; i++) put_beside(others[i], name, sizeof name);
    put_beside(".4711-0.tmp", name, sizeof name);
    put_beside(".4712-12.tmp", held, sizeof held);
    lock = open(held, O_WRONLY);
    assert_int_equal(flock(lock, LOCK_EX), 0);
    assert_int_equal(save(first_bias, N, 7, NULL), SLM_STATE_OK);
    assert_int_equal(stat(name, &about), -1);
    assert_int_equal(stat(held, &about), 0);
    assert_int_equal(n_files(), OTHERS + 2);
    close(lock);
    assert_int_equal(save(first_bias, N, 8, NULL), SLM_STATE_OK);
    assert_int_equal(stat(held, &about), -1);
    assert_int_equal(n_files(), OTHERS + 1);
    expect_loaded(first_bias, N, 8);
}

/* A name that is taken is not written to, even one of this very process. */
static void the_temporary_is_a_new_file(void **state)
{
    char ending[64], name[192];
    struct stat about;

    (void)state;
    snprintf(ending, sizeof ending, ".%ld-0.tmp", (long)getpid());
    put_beside(ending, name, sizeof name);
    assert_int_equal(unlink(name), 0);
    assert_int_equal(symlink(path, name), 0);
    assert_int_equal(save(first_bias, N, 7, NULL), SLM_STATE_OK);
    expect_loaded(first_bias, N, 7);
    assert_int_equal(lstat(path, &about), 0);
    assert_true(S_ISREG(about.st_mode));
    assert_int_equal(lstat(name, &about), 0); /* no file of ours: left alone */
}

static void the_mode_of_the_file_is_that_of_any_new_one(void **state)
{
    const mode_t mask = umask(027);
    struct stat about;

    (void)state;
    assert_int_equal(save(first_bias, N, 7, NULL), SLM_STATE_OK);
    umask(mask);
    assert_int_equal(stat(path, &about), 0);
    assert_int_equal(about.st_mode & 0777, 0640);
}

static void every_status_has_a_name(void **state)
{
    (void)state;
    assert_string_equal(slm_state_status_name(SLM_STATE_OK), "SLM_STATE_OK");
    assert_string_equal(slm_state_status_name(SLM_STATE_UNLAWFUL),
                        "SLM_STATE_UNLAWFUL");
    assert_string_equal(slm_state_status_name((slm_state_status)-1), "unknown status");
    assert_string_equal(slm_state_status_name(SLM_STATE_STATUS_COUNT),
                        "unknown status");
}

static void a_path_that_cannot_be_a_state_is_refused(void **state)
{
    char kept[sizeof path];

    (void)state;
    assert_int_equal(save(first_bias, N, 7, NULL), SLM_STATE_OK);
    strcpy(kept, path);
    snprintf(path, sizeof path, "%s/bias.state/none", folder);
    expect_refused(N, SLM_STATE_SYSTEM, "cannot be opened");
    strcpy(path, kept);
    assert_int_equal(truncate(path, (1 << 30) + 1), 0); /* a hole: takes no room */
    expect_refused(N, SLM_STATE_DAMAGED, "is longer than any balancing state");
}

static void a_name_that_leaves_no_room_for_a_temporary_is_said(void **state)
{
    char *end = path + strlen(folder) + 1, name[NAME_MAX + 1], whole[512];
    int64_t stamp[4];
    slm_state_error error;

    (void)state;
    memset(name, 'n', NAME_MAX);
    name[NAME_MAX] = '\0';
    *end = '\0';
    snprintf(whole, sizeof whole, "%s%s", path, name);
    stamp_of(stamp, first_bias, N, 7);
    assert_int_equal(slm_state_save(whole, N, first_bias, stamp, &error),
                     SLM_STATE_SYSTEM);
    assert_int_equal(error.system, ENAMETOOLONG);
    assert_int_equal(n_files(), 0);
}

static void when_every_name_for_a_temporary_is_taken_nothing_is_saved(void **state)
{
    slm_state_error error;
    char ending[64], name[192];

    (void)state;
    for (int i = 0; i < 1000; i++) {
        snprintf(ending, sizeof ending, ".%ld-%d.tmp", (long)getpid(), i);
        put_beside(ending, name, sizeof name);
    }
    assert_int_equal(save(first_bias, N, 7, &error), SLM_STATE_SYSTEM);
    assert_int_equal(error.system, EEXIST);
    assert_int_equal(n_files(), 1000);
    assert_int_equal(unlink(name), 0);
    assert_int_equal(save(first_bias, N, 7, NULL), SLM_STATE_OK);
    expect_loaded(first_bias, N, 7);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_folder, close_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(what_was_saved_comes_back_to_the_bit),
        TEST(the_format_is_the_one_in_the_header),
        TEST(a_first_start_is_told_from_a_broken_file),
        TEST(every_flipped_bit_is_refused),
        TEST(every_other_length_is_refused),
        TEST(a_newer_format_is_told_as_such),
        TEST(a_whole_file_must_fit),
        TEST(what_is_no_regular_file_is_refused_and_does_not_block),
        TEST(what_no_commit_leaves_is_not_saved),
        TEST(without_room_the_old_file_stays),
        TEST(in_a_folder_that_is_not_writable_the_old_file_stays),
        TEST(a_path_that_leads_nowhere_is_said),
        TEST(a_name_without_a_folder_is_in_the_working_one),
        TEST(stale_temporaries_go_and_no_others),
        TEST(the_temporary_is_a_new_file),
        TEST(the_mode_of_the_file_is_that_of_any_new_one),
        TEST(a_path_that_cannot_be_a_state_is_refused),
        TEST(a_name_that_leaves_no_room_for_a_temporary_is_said),
        TEST(when_every_name_for_a_temporary_is_taken_nothing_is_saved),
        cmocka_unit_test(every_status_has_a_name),
    };

    return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}

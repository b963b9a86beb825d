/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/test_state_save.c - a state is saved whole, or the old one stays.   Q8 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "state_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NOBODY = 65534 };

static void expect_not_saved(slm_state_status got, slm_state_status want,
                             const slm_state_error *error, const char *words)
{
    assert_int_equal(got, want);
    assert_int_equal(error->status, want);
    assert_int_equal(strncmp(error->text, state_path, strlen(state_path)), 0);
    if (!strstr(error->text, words)) fail_msg("'%s' is not in: %s", words, error->text);
    state_expect_loaded(state_bias, STATE_N, 7);
    assert_int_equal(state_files(), 1);
}

static void what_no_commit_leaves_is_not_saved(void **state)
{
    const float bad[STATE_N] = {0.5f, NAN, 0.0f};
    const float other[STATE_N] = {0.5f, -0.25f, -0.5f};
    int64_t stamp[4];
    slm_state_error error;

    (void)state;
    assert_int_equal(state_save(state_bias, STATE_N, 7, NULL), SLM_STATE_OK);
    expect_not_saved(state_save(bad, STATE_N, 8, &error), SLM_STATE_UNLAWFUL, &error,
                     "bias[1]: expected a finite number, got nan");
    expect_not_saved(state_save(state_bias, STATE_N, -1, &error), SLM_STATE_UNLAWFUL,
                     &error, "version -1");
    expect_not_saved(state_save(state_bias, 0, 8, &error), SLM_STATE_UNLAWFUL, &error,
                     "0 experts");
    state_stamp(stamp, state_bias, STATE_N, 8);
    expect_not_saved(slm_state_save(state_path, STATE_N, other, stamp, &error),
                     SLM_STATE_UNLAWFUL, &error, "the checksum of bias");
    assert_int_equal(slm_state_save(state_path, STATE_N, other, stamp, NULL),
                     SLM_STATE_UNLAWFUL);
}

/* No room: a limit on the size of files stops the write half-way. */
static void without_room_the_old_file_stays(void **state)
{
    static float many[4096];
    struct rlimit old, small;
    slm_state_error error;
    slm_state_status got;

    (void)state;
    assert_int_equal(state_save(state_bias, STATE_N, 7, NULL), SLM_STATE_OK);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = 4096;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    got = state_save(many, 4096, 8, &error);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    expect_not_saved(got, SLM_STATE_SYSTEM, &error, "cannot be written");
    assert_int_equal(error.system, EFBIG);
    assert_non_null(strstr(error.text, "unharmed"));
    assert_int_equal(state_save(many, 4096, 8, &error), SLM_STATE_OK);
    state_expect_loaded(many, 4096, 8);
}

/* For root every folder is writable. */
static void in_a_folder_that_is_not_writable_the_old_file_stays(void **state)
{
    const int root = geteuid() == 0;
    slm_state_error error;
    slm_state_status got;

    (void)state;
    assert_int_equal(state_save(state_bias, STATE_N, 7, NULL), SLM_STATE_OK);
    assert_int_equal(chmod(state_path, 0644), 0);
    assert_int_equal(chmod(state_folder, 0555), 0);
    if (root) assert_int_equal(seteuid(NOBODY), 0);
    got = state_save(state_bias, STATE_N, 8, &error);
    if (root) assert_int_equal(seteuid(0), 0);
    assert_int_equal(chmod(state_folder, 0755), 0);
    expect_not_saved(got, SLM_STATE_SYSTEM, &error, "make its folder writable");
    assert_int_equal(error.system, EACCES);
}

static void a_path_that_leads_nowhere_is_said(void **state)
{
    char kept[sizeof state_path];
    slm_state_error error;

    (void)state;
    strcpy(kept, state_path);
    snprintf(state_path, sizeof state_path, "%s/none/bias.state", state_folder);
    assert_int_equal(state_save(state_bias, STATE_N, 7, &error), SLM_STATE_SYSTEM);
    assert_int_equal(error.system, ENOENT);
    assert_non_null(strstr(error.text, "make the folder first"));
    strcpy(state_path, kept);
    assert_int_equal(mkdir(state_path, 0700), 0);
    assert_int_equal(state_save(state_bias, STATE_N, 7, &error), SLM_STATE_SYSTEM);
    assert_int_equal(error.system, EISDIR);
    assert_int_equal(state_files(), 1); /* no temporary beside it */
}

static void a_name_without_a_folder_is_in_the_working_one(void **state)
{
    char working[512], kept[sizeof state_path];

    (void)state;
    strcpy(kept, state_path);
    assert_non_null(getcwd(working, sizeof working));
    assert_int_equal(chdir(state_folder), 0);
    strcpy(state_path, "bias.state");
    assert_int_equal(state_save(state_bias, STATE_N, 9, NULL), SLM_STATE_OK);
    state_expect_loaded(state_bias, STATE_N, 9);
    assert_int_equal(chdir(working), 0);
    strcpy(state_path, kept);
    state_expect_loaded(state_bias, STATE_N, 9);
}

static void put_beside(const char *ending, char *name, size_t size)
{
    FILE *file;

    snprintf(name, size, "%s%s", state_path, ending);
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
    assert_int_equal(state_save(state_bias, STATE_N, 7, NULL), SLM_STATE_OK);
    assert_int_equal(stat(name, &about), -1);
    assert_int_equal(stat(held, &about), 0);
    assert_int_equal(state_files(), OTHERS + 2);
    close(lock);
    assert_int_equal(state_save(state_bias, STATE_N, 8, NULL), SLM_STATE_OK);
    assert_int_equal(stat(held, &about), -1);
    assert_int_equal(state_files(), OTHERS + 1);
    state_expect_loaded(state_bias, STATE_N, 8);
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
    assert_int_equal(symlink(state_path, name), 0);
    assert_int_equal(state_save(state_bias, STATE_N, 7, NULL), SLM_STATE_OK);
    state_expect_loaded(state_bias, STATE_N, 7);
    assert_int_equal(lstat(state_path, &about), 0);
    assert_true(S_ISREG(about.st_mode));
    assert_int_equal(lstat(name, &about), 0); /* no file of ours: left alone */
}

static void the_mode_of_the_file_is_that_of_any_new_one(void **state)
{
    const mode_t mask = umask(027);
    struct stat about;

    (void)state;
    assert_int_equal(state_save(state_bias, STATE_N, 7, NULL), SLM_STATE_OK);
    umask(mask);
    assert_int_equal(stat(state_path, &about), 0);
    assert_int_equal(about.st_mode & 0777, 0640);
}

static void a_name_that_leaves_no_room_for_a_temporary_is_said(void **state)
{
    char *end = state_path + strlen(state_folder) + 1, name[NAME_MAX + 1], whole[512];
    int64_t stamp[4];
    slm_state_error error;

    (void)state;
    memset(name, 'n', NAME_MAX);
    name[NAME_MAX] = '\0';
    *end = '\0';
    snprintf(whole, sizeof whole, "%s%s", state_path, name);
    state_stamp(stamp, state_bias, STATE_N, 7);
    assert_int_equal(slm_state_save(whole, STATE_N, state_bias, stamp, &error),
                     SLM_STATE_SYSTEM);
    assert_int_equal(error.system, ENAMETOOLONG);
    assert_int_equal(state_files(), 0);
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
    assert_int_equal(state_save(state_bias, STATE_N, 7, &error), SLM_STATE_SYSTEM);
    assert_int_equal(error.system, EEXIST);
    assert_int_equal(state_files(), 1000);
    assert_int_equal(unlink(name), 0);
    assert_int_equal(state_save(state_bias, STATE_N, 7, NULL), SLM_STATE_OK);
    state_expect_loaded(state_bias, STATE_N, 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        STATE_TEST(what_no_commit_leaves_is_not_saved),
        STATE_TEST(without_room_the_old_file_stays),
        STATE_TEST(in_a_folder_that_is_not_writable_the_old_file_stays),
        STATE_TEST(a_path_that_leads_nowhere_is_said),
        STATE_TEST(a_name_without_a_folder_is_in_the_working_one),
        STATE_TEST(stale_temporaries_go_and_no_others),
        STATE_TEST(the_temporary_is_a_new_file),
        STATE_TEST(the_mode_of_the_file_is_that_of_any_new_one),
        STATE_TEST(a_name_that_leaves_no_room_for_a_temporary_is_said),
        STATE_TEST(when_every_name_for_a_temporary_is_taken_nothing_is_saved),
    };

    return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/made_run.c - run files made for a test. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "made_run.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void made_file(char path[MADE_PATH], const char *text, size_t size)
{
    int descriptor;

    snprintf(path, MADE_PATH, "/tmp/slm-run-XXXXXX");
    descriptor = mkstemp(path);
    assert_true(descriptor >= 0);
    assert_true(write(descriptor, text, size) == (ssize_t)size);
    close(descriptor);
}

run_file *made_load(const char *text, char why[RUN_WHY])
{
    char path[MADE_PATH];
    run_file *run;

    made_file(path, text, strlen(text));
    run = run_file_load(path, why);
    unlink(path);
    if (!run) {
        assert_memory_equal(why, path, strlen(path));
        memmove(why, why + strlen(path), strlen(why + strlen(path)) + 1);
    }
    return run;
}

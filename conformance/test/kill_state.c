/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/kill_state.c - a program that saves its state, killed at any moment.
 *
 *   kill_state FOLDER KILLS [SEED]
 *
 * A child saves generation after generation; SIGKILL ends it; then the file must hold a
 * whole generation: the last that was saved, or the one that was being saved. Exit 0
 * when it always did. */
#include <slm/ops.h>
#include <slm/state.h>

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Large enough that a kill often falls into the write. */
enum { N = 20000, LONGEST_MS = 40 };

/* What the child tells: the generation that it began to save, and the last saved. */
typedef struct progress {
    volatile int64_t begun;
    volatile int64_t saved;
} progress;

static void fill(float *bias, int64_t generation)
{
    for (size_t j = 0; j < N; j++)
        bias[j] = (float)((generation * 31 + (int64_t)j) % 4096) / 4096;
}

static void save_for_ever(const char *path, progress *shared)
{
    static float bias[N];
    int64_t stamp[4] = {0};
    slm_state_error error;

    for (int64_t generation = shared->saved + 1;; generation++) {
        fill(bias, generation);
        stamp[SLM_STAMP_VERSION] = generation;
        stamp[SLM_STAMP_CHECKSUM] = slm_checksum(bias, N);
        shared->begun = generation;
        if (slm_state_save(path, N, bias, stamp, &error)) {
            fprintf(stderr, "%s\n", error.text);
            _exit(1);
        }
        shared->saved = generation;
    }
}

/* The generation in the file, or -1 and a line on what is wrong. */
static int64_t load(const char *path, const progress *shared)
{
    static float bias[N], want[N];
    int64_t stamp[4];
    slm_state_error error;

    if (slm_state_load(path, N, bias, stamp, &error)) {
        fprintf(stderr, "%s\n", error.text);
        return -1;
    }
    fill(want, stamp[SLM_STAMP_VERSION]);
    if (memcmp(bias, want, sizeof bias) == 0 &&
        (stamp[SLM_STAMP_VERSION] == shared->saved ||
         stamp[SLM_STAMP_VERSION] == shared->begun))
        return stamp[SLM_STAMP_VERSION];
    fprintf(stderr, "%s: generation %lld; saved %lld, begun %lld\n", path,
            (long long)stamp[SLM_STAMP_VERSION], (long long)shared->saved,
            (long long)shared->begun);
    return -1;
}

static size_t n_temporaries(const char *folder)
{
    DIR *list = opendir(folder);
    size_t n = 0;

    if (!list) return SIZE_MAX;
    for (const struct dirent *entry; (entry = readdir(list)) != NULL;)
        n += strstr(entry->d_name, ".tmp") != NULL;
    closedir(list);
    return n;
}

/* One child, killed after some time that is random; 0 when the file is not whole. */
static int kill_once(const char *path, progress *shared)
{
    const struct timespec wait = {0, rand() % (LONGEST_MS * 1000) * 1000L};
    const int64_t before = shared->saved;
    int64_t found;
    pid_t child;

    shared->begun = before;
    child = fork();
    if (child < 0) return 0;
    if (child == 0) save_for_ever(path, shared);
    nanosleep(&wait, NULL);
    kill(child, SIGKILL);
    if (waitpid(child, &(int){0}, 0) != child) return 0;
    found = load(path, shared);
    shared->saved = found;
    return found >= before;
}

int main(int n, char **arguments)
{
    const int kills = n > 2 ? atoi(arguments[2]) : 0;
    const unsigned seed = n > 3 ? (unsigned)atoi(arguments[3]) : (unsigned)time(NULL);
    progress *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    static float bias[N];
    int64_t stamp[4] = {0};
    size_t most = 0;
    char path[512];

    if (kills < 1 || shared == MAP_FAILED) return 2;
    snprintf(path, sizeof path, "%s/bias.state", arguments[1]);
    srand(seed);
    fill(bias, 0);
    stamp[SLM_STAMP_CHECKSUM] = slm_checksum(bias, N);
    if (slm_state_save(path, N, bias, stamp, NULL)) return 1;
    for (int i = 0; i < kills; i++) {
        if (!kill_once(path, shared)) {
            fprintf(stderr, "kill %d of seed %u: not a whole generation\n", i + 1,
                    seed);
            return 1;
        }
        if (n_temporaries(arguments[1]) > most) most = n_temporaries(arguments[1]);
    }
    fill(bias, shared->saved + 1);
    stamp[SLM_STAMP_VERSION] = shared->saved + 1;
    stamp[SLM_STAMP_CHECKSUM] = slm_checksum(bias, N);
    if (slm_state_save(path, N, bias, stamp, NULL) || n_temporaries(arguments[1])) {
        fprintf(stderr, "temporaries are left after a save\n");
        return 1;
    }
    printf(
        "kill_state: %d kills, %lld generations saved, at most %zu temporaries left\n",
        kills, (long long)shared->saved, most);
    return 0;
}

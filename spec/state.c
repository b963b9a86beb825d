/* SPDX-License-Identifier: Apache-2.0 */
/* spec/state.c - the balancing state in a file: saved whole or not at all.          Q8
 *
 * The header says what lies where. Files are small: one write, one read. */
#include <slm/state.h>

#include "contract.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    FORMAT = 1,
    FORMAT_AT = 8,
    EXPERTS_AT = 16,
    VERSION_AT = 24,
    BIAS_AT = 32,
    CHECKSUM = 8,          /* bytes                                       */
    LEAST = 12 + CHECKSUM, /* name, format, checksum: a file of any format */
    LARGEST = 1 << 30,     /* bytes: nobody has so many experts           */
    ATTEMPTS = 1000        /* at a name for the temporary                 */
};

static const char MAGIC[FORMAT_AT + 1] = "SLMSTATE";

#if defined(__GNUC__)
__attribute__((format(printf, 4, 5)))
#endif
static slm_state_status
fail(slm_state_error *error, slm_state_status status, int system, const char *format,
     ...)
{
    va_list list;

    if (!error) return status;
    error->status = status;
    error->system = system;
    va_start(list, format);
    vsnprintf(error->text, sizeof error->text, format, list);
    va_end(list);
    return status;
}

/* The operating system's own words, for the errno at hand. */
static slm_state_status fail_system(slm_state_error *error, const char *path,
                                    const char *what, const char *remedy)
{
    const int system = errno;
    char words[128];

    return fail(error, SLM_STATE_SYSTEM, system, "%.600s: %s: %s\n  %s", path, what,
                strerror_r(system, words, sizeof words), remedy);
}

static slm_state_status damaged(slm_state_error *error, const char *path,
                                const char *what)
{
    return fail(error, SLM_STATE_DAMAGED, 0,
                "%.600s: %s\n  restore another copy of it, or begin anew without one",
                path, what);
}

const char *slm_state_status_name(slm_state_status status)
{
    static const char *const names[SLM_STATE_STATUS_COUNT] = {
        "SLM_STATE_OK",      "SLM_STATE_MISSING", "SLM_STATE_SYSTEM",
        "SLM_STATE_DAMAGED", "SLM_STATE_NEWER",   "SLM_STATE_OTHER",
        "SLM_STATE_UNLAWFUL"};

    return (unsigned)status < SLM_STATE_STATUS_COUNT ? names[status] : "unknown status";
}

/* ---- the bytes ---- */

static int64_t checksum_of(const unsigned char *bytes, size_t size)
{
    return slm_checksum_end(slm_checksum_more(SLM_CHECKSUM_BEGIN, bytes, size));
}

static size_t size_for(size_t n_experts)
{
    return BIAS_AT + n_experts * sizeof(float) + CHECKSUM;
}

static int64_t read_i64(const unsigned char *at)
{
    int64_t value;

    memcpy(&value, at, sizeof value);
    return value;
}

/* The file's bytes, size_for(n_experts) of them. */
static void encode(unsigned char *bytes, size_t n_experts, const float *bias,
                   int64_t version)
{
    const size_t end = size_for(n_experts) - CHECKSUM;
    const uint32_t format = FORMAT;
    const uint64_t n = n_experts;
    int64_t checksum;

    memset(bytes, 0, BIAS_AT);
    memcpy(bytes, MAGIC, FORMAT_AT);
    memcpy(bytes + FORMAT_AT, &format, sizeof format);
    memcpy(bytes + EXPERTS_AT, &n, sizeof n);
    memcpy(bytes + VERSION_AT, &version, sizeof version);
    memcpy(bytes + BIAS_AT, bias, n_experts * sizeof *bias);
    checksum = checksum_of(bytes, end);
    memcpy(bytes + end, &checksum, sizeof checksum);
}

/* What holds of a state in memory and in a file. */
static slm_state_status check_state(const char *path, size_t n_experts,
                                    const float *bias, int64_t version,
                                    slm_state_error *error)
{
    if (version < 0)
        return fail(error, SLM_STATE_UNLAWFUL, 0,
                    "%.600s: version %lld: expected 0 or more\n"
                    "  begin anew with version 0",
                    path, (long long)version);
    for (size_t j = 0; j < n_experts; j++)
        if (!isfinite(bias[j]))
            return fail(error, SLM_STATE_UNLAWFUL, 0,
                        "%.600s: bias[%zu]: expected a finite number, got %g\n"
                        "  it was no bias that a commit accepts",
                        path, j, (double)bias[j]);
    return SLM_STATE_OK;
}

static slm_state_status check_experts(const char *path, size_t n_experts,
                                      slm_state_error *error)
{
    if (n_experts >= 1 && n_experts <= (LARGEST - size_for(0)) / sizeof(float))
        return SLM_STATE_OK;
    return fail(error, SLM_STATE_UNLAWFUL, 0,
                "%.600s: a state of %zu experts: expected 1 to %zu\n"
                "  pass the n_experts of the configuration",
                path, n_experts, (LARGEST - size_for(0)) / sizeof(float));
}

/* ---- save ---- */

typedef struct saver {
    const char *path;
    const char *base; /* of path, without its folder */
    int folder;
    int file;
    char name[NAME_MAX + 1]; /* of the temporary */
    slm_state_error *error;
} saver;

static const char KEPT[] = "what was saved there before is unharmed";

static int open_folder(const char *path, const char *base)
{
    const size_t length = (size_t)(base - path);
    char *folder = length ? strndup(path, length) : strdup(".");
    const int fd = folder ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;

    free(folder);
    return fd;
}

/* A new file beside the other, locked while it is written. One that somebody takes for
 * left behind meanwhile is left to him. */
static int open_temporary(saver *s)
{
    for (int number = 0; number < ATTEMPTS; number++) {
        const int length = snprintf(s->name, sizeof s->name, "%s.%ld-%d.tmp", s->base,
                                    (long)getpid(), number);
        struct stat about;

        if (length < 0 || (size_t)length >= sizeof s->name) {
            errno = ENAMETOOLONG;
            return 0;
        }
        s->file = openat(s->folder, s->name,
                         O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
        if (s->file < 0 && errno != EEXIST) return 0;
        if (s->file < 0) continue;
        /* A file system without locks has none for a sweeper, either. */
        if ((flock(s->file, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) &&
            fstat(s->file, &about) == 0 && about.st_nlink > 0)
            return 1;
        close(s->file);
    }
    errno = EEXIST;
    return 0;
}

static int write_all(int file, const unsigned char *bytes, size_t size)
{
    while (size) {
        const ssize_t n = write(file, bytes, size);

        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return 0;
        bytes += n;
        size -= (size_t)n;
    }
    return fsync(file) == 0;
}

/* The temporary is written and takes the place of the file, or is gone. */
static slm_state_status replace(saver *s, const unsigned char *bytes, size_t size)
{
    slm_state_status status = SLM_STATE_OK;

    if (!open_temporary(s))
        return fail_system(s->error, s->path, "no file can be made beside it",
                           "make its folder writable, or save elsewhere");
    if (!write_all(s->file, bytes, size))
        status = fail_system(s->error, s->path, "cannot be written", KEPT);
    else if (renameat(s->folder, s->name, s->folder, s->base))
        status = fail_system(s->error, s->path, "cannot be replaced", KEPT);
    if (status) unlinkat(s->folder, s->name, 0);
    close(s->file);
    return status;
}

/* BASE.DIGITS-DIGITS.tmp */
static int is_temporary(const char *name, const char *base)
{
    const size_t length = strlen(base);
    size_t part;

    if (strncmp(name, base, length) != 0 || name[length] != '.') return 0;
    name += length + 1;
    part = strspn(name, "0123456789");
    if (part == 0 || name[part] != '-') return 0;
    name += part + 1;
    part = strspn(name, "0123456789");
    return part > 0 && strcmp(name + part, ".tmp") == 0;
}

/* Remove a temporary that nobody holds. The lock is on the file, not on its name: what
 * was renamed meanwhile has another. */
static void sweep(int folder, const char *name)
{
    const int file =
        openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    struct stat mine, named;

    if (file < 0) return;
    if (flock(file, LOCK_EX | LOCK_NB) == 0 && fstat(file, &mine) == 0 &&
        fstatat(folder, name, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
        mine.st_ino == named.st_ino && mine.st_dev == named.st_dev)
        unlinkat(folder, name, 0);
    close(file);
}

/* What killed processes left of saves to this path. */
static void sweep_folder(const saver *s)
{
    const int list = openat(s->folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *folder = list < 0 ? NULL : fdopendir(list);

    if (!folder) {
        if (list >= 0) close(list);
        return;
    }
    for (const struct dirent *entry; (entry = readdir(folder)) != NULL;)
        if (is_temporary(entry->d_name, s->base)) sweep(s->folder, entry->d_name);
    closedir(folder);
}

static slm_state_status save_bytes(const char *path, const unsigned char *bytes,
                                   size_t size, slm_state_error *error)
{
    const char *slash = strrchr(path, '/');
    saver s = {.path = path, .base = slash ? slash + 1 : path, .error = error};
    slm_state_status status;

    s.folder = open_folder(path, s.base);
    if (s.folder < 0)
        return fail_system(error, path, "its folder cannot be opened",
                           "make the folder first, or save elsewhere");
    status = replace(&s, bytes, size);
    /* Some file systems have nothing to make durable, and say so. */
    if (!status && fsync(s.folder) && errno != EINVAL)
        status = fail_system(error, path, "is in place, but its folder is not durable",
                             "a power failure may still undo this save: save again");
    if (!status) sweep_folder(&s);
    close(s.folder);
    return status;
}

slm_state_status slm_state_save(const char *path, size_t n_experts, const float *bias,
                                const int64_t stamp[4], slm_state_error *error)
{
    slm_state_status status = check_experts(path, n_experts, error);
    unsigned char *bytes;

    if (!status)
        status = check_state(path, n_experts, bias, stamp[SLM_STAMP_VERSION], error);
    if (status) return status;
    if (stamp[SLM_STAMP_CHECKSUM] != slm_checksum(bias, n_experts))
        return fail(error, SLM_STATE_UNLAWFUL, 0,
                    "%.600s: stamp[1]: expected %lld, the checksum of bias, got %lld\n"
                    "  save the bias and the stamp of one and the same step",
                    path, (long long)slm_checksum(bias, n_experts),
                    (long long)stamp[SLM_STAMP_CHECKSUM]);
    bytes = malloc(size_for(n_experts));
    if (!bytes) return fail_system(error, path, "cannot be prepared", KEPT);
    encode(bytes, n_experts, bias, stamp[SLM_STAMP_VERSION]);
    status = save_bytes(path, bytes, size_for(n_experts), error);
    free(bytes);
    return status;
}

/* ---- load ---- */

/* A whole file of any format, or what is wrong with it. */
static slm_state_status check_bytes(const char *path, const unsigned char *bytes,
                                    size_t size, slm_state_error *error)
{
    uint32_t format;

    if (size < LEAST || memcmp(bytes, MAGIC, FORMAT_AT) != 0)
        return damaged(error, path,
                       size < LEAST ? "is too short to be a balancing state"
                                    : "is no balancing state: it begins otherwise");
    if (checksum_of(bytes, size - CHECKSUM) != read_i64(bytes + size - CHECKSUM))
        return damaged(error, path,
                       "is damaged, cut or too long: its checksum is another");
    memcpy(&format, bytes + FORMAT_AT, sizeof format);
    if (format > FORMAT)
        return fail(error, SLM_STATE_NEWER, 0,
                    "%.600s: was written by a newer version: format %u, expected %d\n"
                    "  load it with that version or a later one",
                    path, (unsigned)format, FORMAT);
    return format == FORMAT ? SLM_STATE_OK : damaged(error, path, "has no format");
}

/* The content of a whole file of this format. */
static slm_state_status decode(const char *path, const unsigned char *bytes,
                               size_t size, size_t n_experts, float *bias,
                               int64_t *version, slm_state_error *error)
{
    uint32_t reserved;
    uint64_t n;

    memcpy(&n, bytes + EXPERTS_AT, sizeof n);
    memcpy(&reserved, bytes + FORMAT_AT + sizeof reserved, sizeof reserved);
    if (size < size_for(0) || reserved || n != (size - size_for(0)) / sizeof(float) ||
        size != size_for((size_t)n))
        return damaged(error, path,
                       "is not of one piece: its header says another size");
    if (n != n_experts)
        return fail(error, SLM_STATE_OTHER, 0,
                    "%.600s: is the state of another layer: expected %zu experts, got "
                    "%llu\n  load the file that belongs to this configuration",
                    path, n_experts, (unsigned long long)n);
    memcpy(bias, bytes + BIAS_AT, n_experts * sizeof *bias);
    *version = read_i64(bytes + VERSION_AT);
    return check_state(path, n_experts, bias, *version, error);
}

static int read_all(int file, unsigned char *bytes, size_t size)
{
    while (size) {
        const ssize_t n = read(file, bytes, size);

        if (n < 0 && errno == EINTR) continue;
        if (n == 0) errno = EIO; /* it was longer a moment ago */
        if (n <= 0) return 0;
        bytes += n;
        size -= (size_t)n;
    }
    return 1;
}

/* All bytes of a regular file; the caller frees them. */
static slm_state_status read_file(const char *path, unsigned char **bytes, size_t *size,
                                  slm_state_error *error)
{
    static const char READABLE[] = "make it readable, or load another";
    const int file = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    slm_state_status status = SLM_STATE_OK;
    struct stat about;

    *bytes = NULL;
    if (file < 0 && errno == ENOENT)
        return fail(error, SLM_STATE_MISSING, ENOENT,
                    "%.600s: there is no such file\n"
                    "  a first run begins without one; else look at the path",
                    path);
    if (file < 0 || fstat(file, &about)) {
        status = fail_system(error, path, "cannot be opened", READABLE);
    } else if (!S_ISREG(about.st_mode)) {
        errno = S_ISDIR(about.st_mode) ? EISDIR : EINVAL;
        status = fail_system(error, path, "is no regular file", READABLE);
    } else if (about.st_size > LARGEST) {
        status = damaged(error, path, "is longer than any balancing state");
    } else {
        *size = (size_t)about.st_size;
        *bytes = malloc(*size + 1);
        if (!*bytes || !read_all(file, *bytes, *size))
            status = fail_system(error, path, "cannot be read", READABLE);
    }
    if (file >= 0) close(file);
    return status;
}

slm_state_status slm_state_load(const char *path, size_t n_experts, float *bias,
                                int64_t stamp[4], slm_state_error *error)
{
    slm_state_status status = check_experts(path, n_experts, error);
    unsigned char *bytes = NULL;
    float *loaded = NULL;
    int64_t version = 0;
    size_t size = 0;

    if (!status) status = read_file(path, &bytes, &size, error);
    if (!status) status = check_bytes(path, bytes, size, error);
    if (!status) {
        loaded = malloc(n_experts * sizeof *loaded);
        if (!loaded)
            status = fail_system(error, path, "cannot be read", "free some memory");
    }
    if (!status) status = decode(path, bytes, size, n_experts, loaded, &version, error);
    if (!status) {
        memcpy(bias, loaded, n_experts * sizeof *bias);
        stamp[SLM_STAMP_VERSION] = version;
        stamp[SLM_STAMP_CHECKSUM] = slm_checksum(bias, n_experts);
        stamp[SLM_STAMP_MICRO_BATCHES] = stamp[SLM_STAMP_TOKENS] = 0;
    }
    free(loaded);
    free(bytes);
    return status;
}

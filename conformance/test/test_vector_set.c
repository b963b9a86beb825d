/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/test_vector_set.c - folders of golden vectors, their digests, and
 * texts that nobody would write. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "../manifest.h"
#include "../seeded.h"
#include "../vector_files.h"
#include "vector_text.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* fuzz_vector.c: loads, reads all values, checks all marks. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A new empty folder, and the paths made in it. */
typedef struct folder {
    char root[32];
    char *path[16];
    size_t n;
} folder;

static int make_folder(void **state)
{
    folder *made = calloc(1, sizeof *made);

    strcpy(made->root, "/tmp/vectorsXXXXXX");
    *state = made;
    return mkdtemp(made->root) ? 0 : -1;
}

static int remove_folder(void **state)
{
    folder *made = *state;

    while (made->n) {
        remove(made->path[--made->n]);
        free(made->path[made->n]);
    }
    rmdir(made->root);
    free(made);
    return 0;
}

/* A file of that text, or a folder when text is NULL. */
static const char *put(folder *in, const char *name, const char *text)
{
    char **path = &in->path[in->n++];
    FILE *file;

    assert_true(asprintf(path, "%s/%s", in->root, name) > 0);
    if (!text) {
        assert_int_equal(mkdir(*path, 0700), 0);
        return *path;
    }
    file = fopen(*path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
    return *path;
}

static void expect_error(const char *load, const char *path, const char *what)
{
    vec_error error;

    assert_null(vec_load(load, &error));
    assert_string_equal(error.path, path);
    assert_string_equal(error.what, what);
}

static void a_folder_is_read_in_the_order_of_names(void **state)
{
    folder *in = *state;
    char *other = text_replace(text_select, "select/good", "select-b/x");
    char both[2 * 64 + 64], digest[65];
    vec_error error;

    put(in, "select", NULL);
    put(in, "select/good.yaml", text_select);
    put(in, "select-b", NULL);
    put(in, "select-b/x.yaml", other);
    put(in, "select/notes.txt", "no: [vector");
    put(in, "select/.hidden.yaml", "no: [vector");
    put(in, "MANIFEST", "no: [vector");
    put(in, "perf", NULL);
    put(in, "perf/shapes.yaml", "no: [vector");
    vec_set *set = vec_load(in->root, &error);

    assert_non_null(set);
    assert_int_equal(set->n_families, 2);
    assert_int_equal(set->n_cases, 10);
    assert_string_equal(set->families[0].name, "select-b/x"); /* '-' before '/' */
    assert_string_equal(set->families[1].name, "select/good");
    assert_string_equal(set->families[0].cases[0].id, "select-b/x/one");
    assert_string_equal(set->families[0].path, in->path[3]);
    snprintf(both, sizeof both, "%s  select-b/x\n%s  select/good\n",
             set->families[0].sha256, set->families[1].sha256);
    vec_sha256(both, strlen(both), digest);
    assert_string_equal(set->sha256, digest);
    vec_free(set);
    free(other);
}

static void a_family_is_called_as_its_file(void **state)
{
    folder *in = *state;
    char *other = text_replace(text_select, "select/good", "select/bad");
    const char *path;
    vec_error error;

    put(in, "select", NULL);
    path = put(in, "select/good.yaml", text_select);
    vec_set *set = vec_load(path, &error);

    assert_non_null(set);
    vec_free(set);
    path = put(in, "select/other.yaml", other);
    expect_error(in->root, path, "family: expected select/other, got 'select/bad'");
    expect_error(path, path,
                 "family: expected a name that ends in other, as the file, got "
                 "'select/bad'");
    free(other);
}

static void what_cannot_be_read_is_said(void **state)
{
    folder *in = *state;
    const char *path = put(in, "empty.yaml", "");
    char missing[48];

    snprintf(missing, sizeof missing, "%s/none", in->root);
    expect_error(missing, missing, "cannot be opened: No such file or directory");
    expect_error(path, path, "the file is empty");
    expect_error("/dev/null", "/dev/null", "expected a file or a folder");
    assert_int_equal(truncate(path, 16777217), 0);
    expect_error(path, path, "16777217 bytes, at most 16777216 are read");
}

static void folders_in_folders_end_somewhere(void **state)
{
    folder *in = *state;
    char *link;
    vec_error error;

    assert_true(asprintf(&link, "%s/again", in->root) > 0);
    assert_int_equal(symlink(".", link), 0);
    in->path[in->n++] = link;
    assert_null(vec_load(in->root, &error));
    assert_string_equal(error.what, "folders nested deeper than 8");
}

static void a_set_without_files_is_empty(void **state)
{
    folder *in = *state;
    vec_error error;
    vec_set *set = vec_load(in->root, &error);

    assert_non_null(set);
    assert_int_equal(set->n_cases, 0);
    assert_string_equal(
        set->sha256,
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    vec_free(set);
}

static void a_recipe_that_makes_other_values_is_found(void **state)
{
    char *text = text_replace(text_select, "seed: 1", "seed: 2");
    vec_set *good = text_load(text_select), *bad = text_load(text);
    vec_error error;

    (void)state;
    assert_true(vec_verify(good, &error));
    assert_false(vec_verify(bad, &error));
    assert_int_equal(error.mark.line, 43);
    assert_int_equal(error.mark.column, 9);
    assert_memory_equal(error.what, "in.score: the recipe's sha256 is ", 33);
    vec_free(good);
    vec_free(bad);
    free(text);
}

static void a_recipe_that_several_cases_share_is_checked(void **state)
{
    static const char *const whose[] = {
        "bias: {shape: [3], gen: {seed: 5, bits: 2, scale: 0x1p+0}, sha256: ",
        "bias: {shape: [3], gen: {seed: 6, bits: 2, scale: 0x1p+0}, sha256: "};
    float values[3];
    char digest[65], bias[256];
    vec_error error;

    (void)state;
    seeded_values(5, "bias", 0, 3, 2, 1, 0, values);
    vec_sha256(values, sizeof values, digest);
    for (int i = 0; i < 2; i++) {
        char *text;
        vec_set *set;

        snprintf(bias, sizeof bias, "%s\"%s\"}", whose[i], digest);
        text = text_replace(
            text_select, "bias: {shape: [3], data: [-0x1p+0, 0x0p+0, 0x1p+0]}", bias);
        set = text_load(text);
        assert_int_equal(vec_verify(set, &error), i == 0);
        if (i) assert_int_equal(error.mark.line, 8);
        vec_free(set);
        free(text);
    }
}

static void a_recipe_makes_ids_too(void **state)
{
    vec_set *set = text_load(
        "schema: slm-vector/1\nfamily: permute/made\nabout: Ids of a recipe.\n"
        "clause: [L5]\nconfig: {n: 9, k: 1}\ncases:\n"
        "  - id: one\n    op: permute\n    provenance: hand\n    in:\n"
        "      ids: {shape: [5, 1], gen: {seed: 3, bits: 2, scale: 0x1p+0, add: 4}}\n"
        "    status: SLM_ERR_DOMAIN\n    field: ids\n");
    int32_t ids[5];

    (void)state;
    vec_values(&set->families[0].cases[0].in[0], ids);
    for (size_t i = 0; i < 5; i++)
        assert_int_equal(ids[i], 4 + (int32_t)seeded_integer(3, "ids", i, 2));
    vec_free(set);
}

/* Recipes longer than what vec_verify() makes at a time. */
static void long_recipes_have_the_digest_of_all_their_values(void **state)
{
    char *text = text_replace(
        text_layer,
        "x:\n        shape: [3, 2]\n        words: |-\n"
        "          3f800000 40000000 bf800000\n"
        "          00000000  80000000 7fc00000\n",
        "x: {shape: [9999, 2], gen: {seed: 7, bits: 8, scale: 0x1p-8}, sha256: "
        "0000000000000000000000000000000000000000000000000000000000000000}\n");
    char *refused = text_replace(
        text,
        "    out:\n      y: {shape: [3, 2], data: "
        "[0x1.123456789abcdp-3, 0x0.8p-1022,\n        inf, -inf, nan, -0x0p+0]}\n",
        "    status: SLM_ERR_DOMAIN\n");
    static float values[2 * 9999];
    char digest[65];
    vec_error error;

    (void)state;
    vec_set *set = text_load(refused);

    vec_values(&set->families[0].cases[0].in[0], values);
    vec_sha256(values, sizeof values, digest);
    assert_false(vec_verify(set, &error));
    vec_free(set);
    free(text);
    text = text_replace(
        refused, "0000000000000000000000000000000000000000000000000000000000000000",
        digest);
    set = text_load(text);
    assert_true(vec_verify(set, &error));
    vec_free(set);
    free(text);
    free(refused);
}

static uint64_t next_random(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return *seed >> 33;
}

/* Change, drop, double or replace a few bytes; the words are those of the format. */
static size_t mutate(char *text, size_t size, size_t room, uint64_t *seed)
{
    static const char *const words[] = {
        "{",       "}",    "[",   "]",       ": ",    "\n",    "\n  ", "- ",
        "|",       ">",    "\"",  "'",       "#",     "&a ",   "*a",   "!x ",
        "? ",      ", ",   "any", "pending", "nan",   "-",     "0x",   "p+",
        "9999999", "\xff", "ü",   "☃",       "---\n", "...\n", "<<: ", "out",
        "gen",     "0",    "%",   "\t",      "\\"};
    const size_t n = sizeof words / sizeof *words;

    for (uint64_t edits = 1 + next_random(seed) % 4; edits > 0; edits--) {
        const size_t at = next_random(seed) % size;
        size_t length = next_random(seed) % 24;
        const char *word = words[next_random(seed) % n];

        if (length > size - at) length = size - at;
        switch (next_random(seed) % 4) {
        case 0:
            text[at] = (char)next_random(seed);
            break;
        case 1:
            memmove(text + at, text + at + length, size - at - length);
            size -= length;
            break;
        case 2:
            if (size + length > room) break;
            memmove(text + at + length, text + at, size - at);
            size += length;
            break;
        default:
            length = strlen(word);
            if (size + length > room) break;
            memmove(text + at + length, text + at, size - at);
            memcpy(text + at, word, length);
            size += length;
            break;
        }
        if (size == 0) return 0;
    }
    return size;
}

static void two_thousand_mutations_load_or_are_refused(void **state)
{
    const char *const texts[] = {text_select, text_layer, text_counts};
    uint64_t seed = 7;

    (void)state;
    for (size_t i = 0; i < 2000; i++) {
        const char *from = texts[i % 3];
        const size_t room = strlen(from) + 256;
        char *text = malloc(room), *exact;
        size_t size = strlen(from);

        memcpy(text, from, size);
        size = mutate(text, size, room, &seed);
        exact = malloc(size + !size); /* a byte beyond the text is a fault */
        memcpy(exact, text, size);
        LLVMFuzzerTestOneInput((const uint8_t *)exact, size);
        free(exact);
        free(text);
    }
}

static void every_beginning_of_a_text_loads_or_is_refused(void **state)
{
    (void)state;
    for (size_t size = 0; size < strlen(text_select); size++) {
        char *text = malloc(size + 1);

        memcpy(text, text_select, size);
        LLVMFuzzerTestOneInput((const uint8_t *)text, size);
        free(text);
    }
}

static void what_is_gone_or_is_a_folder_has_no_bytes(void **state)
{
    folder *in = *state;
    vec_files files;
    vec_error error;
    char missing[48];
    size_t size;

    put(in, "x.yaml", text_select);
    snprintf(missing, sizeof missing, "%s/none", in->root);
    assert_false(vec_files_list(missing, &files, &error));
    assert_string_equal(error.path, missing);
    assert_string_equal(error.what, "cannot be opened: No such file or directory");
    assert_null(vec_file_read(missing, 99, &size, &error));
    assert_string_equal(error.what, "cannot be opened: No such file or directory");
    assert_null(vec_file_read(in->root, (size_t)1 << 20, &size, &error));
    assert_string_equal(error.what, "cannot be read to its end");
}

/* What the check of the folder's manifest says, and its number. */
static size_t check_manifest(const folder *in, char *said, size_t size, char why[512])
{
    FILE *out = fmemopen(said, size, "w");
    size_t stale;

    assert_non_null(out);
    why[0] = '\0';
    stale = manifest_check(in->root, out, why);
    assert_int_equal(fclose(out), 0);
    return stale;
}

static void a_manifest_says_what_is_not_as_it_was_released(void **state)
{
    folder *in = *state;
    char said[1024] = "", why[512];
    const char *manifest = put(in, "MANIFEST", "slm-manifest/1\nversion 3.5\n"), *path;
    FILE *file;

    put(in, "select", NULL);
    path = put(in, "select/good.yaml", text_select);
    assert_int_equal(manifest_write(in->root, why), 1);
    assert_int_equal(check_manifest(in, said, sizeof said, why), 0);
    file = fopen(manifest, "r+");
    assert_non_null(fgets(said, sizeof said, file));
    assert_non_null(fgets(said, sizeof said, file));
    assert_string_equal(said, "version 3.5\n");
    assert_int_equal(fclose(file), 0);

    assert_int_equal(truncate(path, 9), 0);
    assert_int_equal(check_manifest(in, said, sizeof said, why), 1);
    assert_non_null(strstr(said, "MANIFEST:3:1: select/good.yaml is not the released"));
    assert_int_equal(unlink(path), 0);
    assert_int_equal(check_manifest(in, said, sizeof said, why), 1);
    assert_non_null(strstr(said, "MANIFEST:3:1: select/good.yaml is listed and gone"));
    file = fopen(manifest, "a");
    assert_true(fputs("no digest\n", file) >= 0);
    assert_int_equal(fclose(file), 0);
    assert_true(check_manifest(in, said, sizeof said, why) == SIZE_MAX);
    assert_non_null(strstr(why, "MANIFEST:4:1: expected a digest and a file"));
}

static void vectors_that_do_not_load_leave_the_manifest_alone(void **state)
{
    folder *in = *state;
    char why[512] = "";
    const char *manifest = put(in, "MANIFEST", "slm-manifest/1\nversion 3.5\n");
    struct stat about;

    put(in, "x.yaml", "no: [vector");
    assert_int_equal(manifest_write(in->root, why), 0);
    assert_non_null(strstr(why, "/x.yaml:2: not YAML"));
    assert_int_equal(stat(manifest, &about), 0);
    assert_int_equal(about.st_size, 27);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_folder_is_read_in_the_order_of_names,
                                        make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(a_family_is_called_as_its_file, make_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(what_cannot_be_read_is_said, make_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(folders_in_folders_end_somewhere, make_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(a_set_without_files_is_empty, make_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(what_is_gone_or_is_a_folder_has_no_bytes,
                                        make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(a_manifest_says_what_is_not_as_it_was_released,
                                        make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(
            vectors_that_do_not_load_leave_the_manifest_alone, make_folder,
            remove_folder),
        cmocka_unit_test(a_recipe_that_makes_other_values_is_found),
        cmocka_unit_test(a_recipe_that_several_cases_share_is_checked),
        cmocka_unit_test(a_recipe_makes_ids_too),
        cmocka_unit_test(long_recipes_have_the_digest_of_all_their_values),
        cmocka_unit_test(two_thousand_mutations_load_or_are_refused),
        cmocka_unit_test(every_beginning_of_a_text_loads_or_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/test_bench_shape.c - the file of shapes, and what it refuses. */
#include "bench_shape.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include <string.h>

#define HEAD "schema: slm-shapes/1\nshapes:\n"
#define SHAPE(id, config, tokens, layers)                                              \
    "  - id: " id "\n    about: A shape.\n    config: " config "\n    tokens: " tokens \
    "\n    layers: " layers "\n    judged: 2\n"

static bench_shapes *parse(const char *text, vec_error *error)
{
    return bench_shapes_parse("shapes.yaml", text, strlen(text), error);
}

/* The fault is at that place and says that. */
static void refused(const char *text, size_t line, size_t column, const char *what)
{
    vec_error error;
    bench_shapes *shapes = parse(text, &error);

    assert_null(shapes);
    assert_string_equal(error.path, "shapes.yaml");
    if (!strstr(error.what, what)) fail_msg("says '%s', not '%s'", error.what, what);
    assert_int_equal(error.mark.line, line);
    assert_int_equal(error.mark.column, column);
}

static void a_shape_is_read_whole(void **state)
{
    (void)state;
    vec_error error;
    bench_shapes *shapes = parse(
        HEAD SHAPE("one", "{d: 8, n: 4, k: 2, dtype: bf16}", "[1, 16]", "3"), &error);
    const bench_shape *shape;

    assert_non_null(shapes);
    assert_int_equal(shapes->n, 1);
    assert_null(bench_shape_find(shapes, "two"));
    shape = bench_shape_find(shapes, "one");
    assert_non_null(shape);
    assert_int_equal(shape->config.d_model, 8);
    assert_int_equal(shape->config.dtype, SLM_BF16);
    assert_int_equal(shape->n_tokens, 2);
    assert_int_equal(shape->tokens[1], 16);
    assert_int_equal(shape->layers, 3);
    assert_int_equal(shape->judged, 2);
    bench_shapes_free(shapes);
}

static void the_shapes_that_come_with_it_are_read(void **state)
{
    (void)state;
    vec_error error;
    bench_shapes *shapes =
        bench_shapes_load(SLM_VECTORS_DIR "/perf/shapes.yaml", &error);

    assert_non_null(shapes);
    assert_non_null(bench_shape_find(shapes, "mini"));
    assert_non_null(bench_shape_find(shapes, "tiny"));
    for (size_t i = 0; i < shapes->n; i++)
        assert_true(shapes->shape[i].config.top_k <= shapes->shape[i].config.n_experts);
    bench_shapes_free(shapes);
}

static void what_is_wrong_is_named_with_its_place(void **state)
{
    (void)state;
    refused("schema: slm-shapes/2\nshapes: []\n", 1, 9, "expected slm-shapes/1");
    refused("schema: slm-shapes/1\nshapes: []\n", 2, 9, "expected a list of shapes");
    refused("schema: slm-shapes/1\nforms: []\n", 2, 1, "forms");
    refused(HEAD SHAPE("one", "{d: 8}", "[1, 0]", "1"), 6, 17, "expected 1 to");
    refused(HEAD SHAPE("one", "{d: 8}", "[]", "1"), 6, 13, "a list of batch sizes");
    refused(HEAD SHAPE("one", "{d: 8}", "[1]", "65"), 7, 13, "expected 1 to 64");
    refused(HEAD SHAPE("one", "{d: eight}", "[1]", "1"), 5, 17, "config.d");
    refused(HEAD SHAPE("one", "{T: 8}", "[1]", "1"), 5, 13, "no part of a shape");
    refused(HEAD SHAPE("One", "{d: 8}", "[1]", "1"), 3, 9, "id");
    refused(HEAD "  - id: one\n", 3, 5, "needs `about`");
    refused(HEAD SHAPE("one", "{d: 8}", "[1]", "1") SHAPE("one", "{d: 8}", "[1]", "1"),
            9, 5, "shape one is there already");
}

static void a_file_that_is_not_there_is_said(void **state)
{
    (void)state;
    vec_error error;

    assert_null(bench_shapes_load("no/such/file.yaml", &error));
    assert_int_equal(error.mark.line, 0);
    assert_non_null(strstr(error.what, "cannot be opened"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_shape_is_read_whole),
        cmocka_unit_test(the_shapes_that_come_with_it_are_read),
        cmocka_unit_test(what_is_wrong_is_named_with_its_place),
        cmocka_unit_test(a_file_that_is_not_there_is_said),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

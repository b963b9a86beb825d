/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/test_mutants.c - the wrong backends and the right ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <judge.h>
#include <mutants/mutants.h>
#include <plugin_neighbour.h>
#include <testee.h>

enum { MAX_CASES = 4096, SPEC_SIZE = 1 << 20 };

/* ---- the lists ---- */

static int is_name(const char *name)
{
    return name[0] &&
           strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-") == strlen(name);
}

static void names_are_words_with_dashes_and_unique(void **state)
{
    (void)state;
    assert_true(slm_mutant_count() >= 60);
    assert_true(slm_variant_count() >= 10);
    for (size_t i = 0; i < slm_mutant_count(); i++) {
        const slm_mutant_info *info = slm_mutant_info_at(i);

        if (!is_name(info->name) || !info->sentence[0]) fail_msg("%s", info->name);
        if (slm_mutant_find(info->name) != info->table) fail_msg("%s", info->name);
    }
    for (size_t i = 0; i < slm_variant_count(); i++) {
        const slm_variant_info *info = slm_variant_info_at(i);

        if (!is_name(info->name) || !info->sentence[0]) fail_msg("%s", info->name);
        if (slm_variant_find(info->name) != info->table) fail_msg("%s", info->name);
    }
    assert_null(slm_mutant_find("sequential"));
    assert_null(slm_variant_find("bias-ignored"));
    assert_null(slm_mutant_info_at(slm_mutant_count()));
    assert_null(slm_variant_info_at(slm_variant_count()));
}

static void whole_table(const slm_backend *table, const char *prefix, const char *name)
{
    char want[128];

    snprintf(want, sizeof want, "%s%s", prefix, name);
    assert_string_equal(table->name, want);
    assert_int_equal(table->struct_size, sizeof *table);
    assert_int_equal(table->abi_major, SLM_ABI_MAJOR);
    assert_int_equal(table->ops->struct_size, sizeof *table->ops);
    assert_int_equal(table->arithmetic->struct_size, sizeof *table->arithmetic);
    assert_true(table->open && table->close && table->prepare && table->workspace);
#define PRESENT(op, level, purpose) assert_true(table->ops->op != NULL);
    SLM_OPS(PRESENT)
#undef PRESENT
}

static void tables_are_whole_and_carry_their_names(void **state)
{
    (void)state;
    for (size_t i = 0; i < slm_mutant_count(); i++)
        whole_table(slm_mutant_info_at(i)->table,
                    "mutant:", slm_mutant_info_at(i)->name);
    for (size_t i = 0; i < slm_variant_count(); i++)
        whole_table(slm_variant_info_at(i)->table,
                    "variant:", slm_variant_info_at(i)->name);
}

static void every_mutant_breaks_a_clause_of_the_specification(void **state)
{
    char *spec = calloc(1, SPEC_SIZE);
    FILE *file = fopen(SLM_SPEC_FILE, "r");

    (void)state;
    assert_non_null(spec);
    assert_non_null(file);
    assert_true(fread(spec, 1, SPEC_SIZE - 1, file) > 0);
    fclose(file);
    for (size_t i = 0; i < slm_mutant_count(); i++) {
        const slm_mutant_info *info = slm_mutant_info_at(i);
        char heading[32];

        snprintf(heading, sizeof heading, "\n### %s ", info->clause);
        if (!strstr(spec, heading)) fail_msg("%s: %s", info->name, info->clause);
    }
    free(spec);
}

/* ---- on the golden vectors ---- */

/* What two calls on one handle came to; the bias of the second is half the first's. */
typedef struct answer {
    int given;
    slm_status status;
    slm_error error;
    char digest[2][65];
} answer;

static int load_vectors(void **state)
{
    vec_error error;
    vec_set *set = vec_load(SLM_VECTORS_DIR, &error);

    *state = set;
    return set && set->n_cases < MAX_CASES ? 0 : -1;
}

static int free_vectors(void **state)
{
    vec_free(*state);
    return 0;
}

static int is_given(const slm_backend *table, const vec_case *test)
{
    if (test->tier > VEC_QUICK || test->superseded_by) return 0;
    return (table->flags & SLM_CHECKS_ARGUMENTS) || !testee_is_for_the_door(test);
}

static size_t workspace_of(const slm_backend *table, const vec_case *test)
{
    slm_handle *handle = NULL;
    size_t bytes;

    if (testee_is_for_the_door(test)) return 0;
    assert_int_equal(table->open(&test->config, &handle, NULL), SLM_OK);
    bytes = table->workspace(handle, test->op, &test->call);
    table->close(handle);
    return bytes;
}

static slm_status call_op(const slm_backend *table, slm_handle *handle,
                          const call_frame *frame, slm_error *error)
{
    switch (frame->info->op) {
#define CALL(name, level, purpose)                                                     \
    case SLM_OP_##name:                                                                \
        return table->ops->name(handle, frame->args, error);
        SLM_OPS(CALL)
#undef CALL
    default:
        return SLM_ERR_INTERNAL;
    }
}

static slm_handle *open_for(const slm_backend *table, const call_frame *frame,
                            slm_status *status, slm_error *error)
{
    slm_handle *handle = NULL;

    *status = SLM_OK;
    if (!(table->flags & SLM_CHECKS_ARGUMENTS))
        *status = slm_check(frame->info->op, &frame->config, frame->args, error);
    if (!*status) *status = table->open(&frame->config, &handle, error);
    if (!*status && frame->info->prepared)
        *status = table->prepare(handle, &frame->weights, error);
    return handle;
}

static void build(const slm_backend *table, const vec_case *test, call_frame *frame)
{
    char why[256];

    if (!frame_build(frame, test, false, workspace_of(table, test), -1, why))
        fail_msg("%s: %s", test->id, why);
}

/* Other inputs for the next call: half the bias, the mask of the last token first. */
static void vary(const call_frame *frame)
{
    const slm_tensor *bias = frame_tensor(frame, "bias");
    const slm_tensor *mask = frame_tensor(frame, "mask");

    if (bias && bias->rank == 1 && bias->stride[0] == 1)
        for (size_t i = 0; i < bias->shape[0]; i++) ((float *)bias->data)[i] *= 0.5f;
    if (!mask || mask->rank == 0) return;

    int32_t *const counts = mask->data;

    for (size_t a = 0, b = mask->shape[0]; a + 1 < b; a++) {
        const int32_t count = counts[a];

        counts[a] = counts[--b];
        counts[b] = count;
    }
}

/* Let the call have that many of its tokens. */
static void show_tokens(const call_frame *frame, size_t tokens)
{
    frame->call->n_tokens = tokens;
    for (size_t i = 0; i < frame->info->n_fields; i++) {
        const slm_field *field = &frame->info->fields[i];
        slm_tensor *tensor = frame_tensor(frame, field->name);

        if (field->dims[0] == 'T' && tensor->rank) tensor->shape[0] = tokens;
    }
}

/* A first call of one token: a handle must grow. */
static void call_small(const slm_backend *table, slm_handle *handle, call_frame *frame)
{
    const size_t tokens = frame->call->n_tokens;

    show_tokens(frame, 1);
    call_op(table, handle, frame, NULL);
    show_tokens(frame, tokens);
    frame_poison(frame, false);
}

/* One call, while another handle is used in a thread of its own. */
static slm_status call_beside(const slm_backend *table, slm_handle *handle,
                              call_frame *frame, slm_error *error)
{
    plugin_neighbour *other;
    slm_plugin plugin;
    char why[PLUGIN_WHY];
    slm_status status;

    assert_true(plugin_adopt(&plugin, table, table->name, why));
    if (plugin_neighbour_open(&plugin, &frame->config, frame->info->op,
                              frame->call->n_tokens, &frame->weights, &other, error))
        return call_op(table, handle, frame, error);
    assert_true(plugin_neighbour_work(other, frame->info->op, frame->args));
    status = call_op(table, handle, frame, error);
    plugin_neighbour_close(other);
    return status;
}

/* `beside`: with another handle. */
static answer ask(const slm_backend *table, const vec_case *test, int beside)
{
    answer got = {.given = is_given(table, test)};
    slm_handle *handle;
    call_frame frame;

    if (!got.given) return got;
    build(table, test, &frame);
    handle = open_for(table, &frame, &got.status, &got.error);
    if (!got.status && test->op == SLM_OP_layer_forward && test->call.n_tokens > 1 &&
        !testee_is_for_the_door(test))
        call_small(table, handle, &frame);
    if (!got.status)
        got.status = beside && !testee_is_for_the_door(test)
                         ? call_beside(table, handle, &frame, &got.error)
                         : call_op(table, handle, &frame, &got.error);
    frame_digest(&frame, got.digest[0]);
    if (!got.status && !testee_is_for_the_door(test)) {
        frame_poison(&frame, true);
        vary(&frame);
        call_op(table, handle, &frame, NULL);
        frame_digest(&frame, got.digest[1]);
    }
    table->close(handle);
    frame_free(&frame);
    return got;
}

static int same(const answer *a, const answer *b)
{
    return a->status == b->status && a->error.index == b->error.index &&
           strcmp(a->error.field, b->error.field) == 0 &&
           memcmp(a->digest, b->digest, sizeof a->digest) == 0;
}

/* The answers of a right backend to every case, in order. */
static void ask_all(const vec_set *set, const slm_backend *table, answer *all)
{
    size_t at = 0;

    for (size_t i = 0; i < set->n_families; i++)
        for (size_t j = 0; j < set->families[i].n_cases; j++)
            all[at++] = ask(table, &set->families[i].cases[j], 0);
}

static int names(const vec_case *test, const char *mutant)
{
    for (size_t i = 0; i < test->n_kills; i++)
        if (strcmp(test->kills[i], mutant) == 0) return 1;
    return 0;
}

/* Whether an answer differs from the right one, among the cases that say that they kill
 * this mutant, or among the others. */
static int differs(const vec_set *set, const slm_backend *table, const answer *right,
                   const char *mutant, int named, int beside)
{
    size_t at = 0;

    for (size_t i = 0; i < set->n_families; i++)
        for (size_t j = 0; j < set->families[i].n_cases; j++, at++) {
            const vec_case *test = &set->families[i].cases[j];
            answer got;

            if (!right[at].given || names(test, mutant) != named) continue;
            got = ask(table, test, beside);
            if (!same(&got, &right[at])) return 1;
        }
    return 0;
}

static void every_mutant_differs_from_the_right_one_on_a_golden_vector(void **state)
{
    const slm_backend *plain = slm_variant_find("sequential");
    const slm_backend *door = slm_variant_find("own-door");
    answer *right = calloc(MAX_CASES, sizeof *right);
    answer *own = calloc(MAX_CASES, sizeof *own);
    const vec_set *set = *state;

    assert_true(right && own);
    ask_all(set, plain, right);
    ask_all(set, door, own);
    assert_false(differs(set, plain, right, "", 0, 1));
    assert_false(differs(set, door, own, "", 0, 0));
    for (size_t i = 0; i < slm_mutant_count(); i++) {
        const slm_mutant_info *info = slm_mutant_info_at(i);
        const int checks = (info->table->flags & SLM_CHECKS_ARGUMENTS) != 0;
        const int reuses = strcmp(info->clause, "A3") == 0;
        const answer *want = checks ? own : right;

        /* Right on packed tensors with all taps: only repetitions of a run show it. */
        if (strcmp(info->clause, "X2") == 0) continue;
        if (!differs(set, info->table, want, info->name, 1, reuses) &&
            !differs(set, info->table, want, info->name, 0, reuses))
            fail_msg("%s (%s) is as good as right", info->name, info->clause);
    }
    free(own);
    free(right);
}

/* An answer that passed. */
typedef struct judged {
    const slm_backend *table;
    slm_status status;
    char digest[65];
} judged;

/* The same bits under the same declared arithmetic. */
static int is_judged(const judged *passed, const judged *got)
{
    return passed->table && passed->status == got->status &&
           strcmp(passed->digest, got->digest) == 0 &&
           memcmp(passed->table->arithmetic, got->table->arithmetic,
                  sizeof(slm_arithmetic)) == 0;
}

static void judge_one(const slm_backend *table, const vec_case *test, judged *passed)
{
    judged got = {.table = table};
    judge_verdict verdict = {0};
    slm_error error = {0};
    slm_handle *handle;
    call_frame frame;

    build(table, test, &frame);
    handle = open_for(table, &frame, &got.status, &error);
    if (!got.status) got.status = call_op(table, handle, &frame, &error);
    frame_digest(&frame, got.digest);
    if (!is_judged(passed, &got)) {
        judge_case(test, &frame, got.status, &error, table->arithmetic, false,
                   &verdict);
        if (verdict.state != JUDGE_PASS)
            fail_msg("%s on %s: %s %s %s got %s want %s", table->name, test->id,
                     judge_state_name(verdict.state), verdict.reason, verdict.place,
                     verdict.got, verdict.want);
    }
    if (!passed->table) *passed = got;
    table->close(handle);
    frame_free(&frame);
}

static void every_variant_passes(const vec_case *test)
{
    judged first = {0};

    for (size_t i = 0; i < slm_variant_count(); i++)
        if (is_given(slm_variant_info_at(i)->table, test))
            judge_one(slm_variant_info_at(i)->table, test, &first);
}

static void every_variant_passes_every_golden_vector(void **state)
{
    const vec_set *set = *state;

    for (size_t i = 0; i < set->n_families; i++)
        for (size_t j = 0; j < set->families[i].n_cases; j++)
            every_variant_passes(&set->families[i].cases[j]);
}

/* ---- against each other ---- */

/* y of a layer case, [T d] elements; the caller frees it. */
static float *layer_y(const slm_backend *table, const vec_case *test, size_t *count)
{
    slm_error error = {0};
    slm_status status;
    slm_handle *handle;
    call_frame frame;
    float *y;

    build(table, test, &frame);
    handle = open_for(table, &frame, &status, &error);
    assert_int_equal(status, SLM_OK);
    assert_int_equal(call_op(table, handle, &frame, &error), SLM_OK);
    *count = slm_tensor_count(frame_tensor(&frame, "y"));
    y = malloc(*count * sizeof *y);
    assert_non_null(y);
    memcpy(y, frame_tensor(&frame, "y")->data, *count * sizeof *y);
    table->close(handle);
    frame_free(&frame);
    return y;
}

/* A layer with SiTU experts and all of its stages, but nothing special. */
static const vec_case *seeded_layer(const vec_set *set)
{
    for (size_t i = 0; i < set->n_families; i++)
        for (size_t j = 0; j < set->families[i].n_cases; j++)
            if (strcmp(set->families[i].cases[j].id, "layer/profiles/paper") == 0)
                return &set->families[i].cases[j];
    fail_msg("no case layer/profiles/paper");
    return NULL;
}

static void variants_agree_as_far_as_their_arithmetic_allows(void **state)
{
    const vec_case *test = seeded_layer(*state);
    size_t count;
    float *want = layer_y(slm_variant_find("sequential"), test, &count);
    double peak = 0;

    for (size_t i = 0; i < count; i++) peak = fmax(peak, fabs((double)want[i]));
    assert_true(peak > 0.01);
    for (size_t v = 0; v < slm_variant_count(); v++) {
        const slm_variant_info *info = slm_variant_info_at(v);
        const slm_arithmetic *own = info->table->arithmetic;
        const int coarse = own->input > 0 || own->store[SLM_STAGE_Y] > 0;
        const double limit = (coarse ? 0.05 : 1e-5) * peak;
        float *got = layer_y(info->table, test, &count);

        for (size_t i = 0; i < count; i++)
            if (!(fabs((double)got[i] - (double)want[i]) <= limit))
                fail_msg("%s: y[%zu] %a, sequential %a", info->name, i, (double)got[i],
                         (double)want[i]);
        free(got);
    }
    free(want);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_words_with_dashes_and_unique),
        cmocka_unit_test(tables_are_whole_and_carry_their_names),
        cmocka_unit_test(every_mutant_breaks_a_clause_of_the_specification),
        cmocka_unit_test(variants_agree_as_far_as_their_arithmetic_allows),
        cmocka_unit_test(every_variant_passes_every_golden_vector),
        cmocka_unit_test(every_mutant_differs_from_the_right_one_on_a_golden_vector),
    };

    return cmocka_run_group_tests(tests, load_vectors, free_vectors) != 0;
}

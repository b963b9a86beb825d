/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/cli_show.c - slmoe show: a case, its values and what they mean. */
#include "cli.h"
#include "golden.h"
#include "show_balance.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Longer rows and taller tensors are cut. */
enum { SHOW_COLUMNS = 8, SHOW_ROWS = 16 };

static void print_value(slm_dtype dtype, const void *values, size_t i)
{
    double real;

    switch (dtype) {
    case SLM_I32:
        printf(" %" PRId32, ((const int32_t *)values)[i]);
        return;
    case SLM_I64:
        printf(" %" PRId64, ((const int64_t *)values)[i]);
        return;
    case SLM_F32:
        real = (double)((const float *)values)[i];
        break;
    default:
        real = ((const double *)values)[i];
    }
    if (isfinite(real) && real != 0)
        printf(" %a (%.*g)", real, dtype == SLM_F32 ? 7 : 10, real);
    else
        printf(" %g", real);
}

static void print_rows(slm_dtype dtype, uint32_t rank, const size_t *shape,
                       const void *values, const unsigned char *any)
{
    size_t count = 1;

    for (uint32_t i = 0; i < rank; i++) count *= shape[i];

    const size_t columns = rank > 1 ? shape[rank - 1] : count;
    const size_t rows = columns ? count / columns : 0;
    const size_t shown = columns < SHOW_COLUMNS ? columns : SHOW_COLUMNS;

    for (size_t r = 0; r < rows && r < SHOW_ROWS; r++) {
        fputs("     ", stdout);
        for (size_t c = 0; c < shown; c++) {
            if (any && any[r * columns + c])
                fputs(" any", stdout);
            else
                print_value(dtype, values, r * columns + c);
        }
        if (shown < columns) printf(" ... %zu more", columns - shown);
        putchar('\n');
    }
    if (rows > SHOW_ROWS) printf("      ... %zu more rows\n", rows - SHOW_ROWS);
}

static void print_shape(uint32_t rank, const size_t *shape)
{
    putchar('[');
    for (uint32_t i = 0; i < rank; i++) printf("%s%zu", i ? ", " : "", shape[i]);
    putchar(']');
}

static void print_tensor(const vec_tensor *tensor)
{
    enum { LIMIT = 1 << 16 };

    printf("    %s ", tensor->field->name);
    print_shape(tensor->rank, tensor->shape);
    if (tensor->form == VEC_PENDING) {
        puts(" pending");
        return;
    }
    if (tensor->form == VEC_DIGEST) {
        printf(" sha256 %s\n", tensor->sha256);
        return;
    }
    if (tensor->form == VEC_GEN)
        printf(" seed %" PRIu64 ", %u bits, scale %a, add %a", tensor->recipe.seed,
               tensor->recipe.bits, tensor->recipe.scale, tensor->recipe.add);
    putchar('\n');
    if (tensor->count > LIMIT) return;

    void *values = malloc(tensor->count * slm_dtype_size(tensor->dtype) + 1);

    if (!values) return;
    vec_values(tensor, values);
    print_rows(tensor->dtype, tensor->rank, tensor->shape, values, tensor->any);
    free(values);
}

static void print_config(const vec_case *test)
{
    const slm_config *config = &test->config;
    const struct {
        const char *name;
        size_t size;
    } sizes[] = {{"T", test->call.n_tokens}, {"d", config->d_model},
                 {"l", config->d_latent},    {"n", config->n_experts},
                 {"k", config->top_k},       {"f", config->d_expert},
                 {"S", config->n_shared},    {"fs", config->d_shared},
                 {"R", test->call.n_parts}};

    printf("  profile %s", test->profile);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].size) printf("  %s %zu", sizes[i].name, sizes[i].size);
    if (strncmp(slm_op_describe(test->op)->name, "qb_hist", 7) == 0)
        printf("  B %zu", config->n_bins);
    if (test->op == SLM_OP_qb_exact)
        printf("  %s, ties %s",
               config->balance == SLM_BALANCE_STRICT ? "strict" : "relaxed",
               config->tie_test == SLM_TIE_NOTE ? "as in the note" : "by equality");
    putchar('\n');
}

static void print_outcome(const vec_outcome *outcome)
{
    if (outcome->status != SLM_OK) {
        printf("    %s", slm_status_name(outcome->status));
        if (outcome->field[0]) printf(" naming %s", outcome->field);
        if (outcome->has_index) printf("[%zu]", outcome->index);
        puts(", outputs untouched");
    }
    for (size_t i = 0; i < outcome->n_out; i++) print_tensor(&outcome->out[i]);
}

static void print_words(const char *label, char *const *words, size_t n)
{
    if (!n) return;
    printf("  %s", label);
    for (size_t i = 0; i < n; i++) printf("%s %s", i ? "," : "", words[i]);
    putchar('\n');
}

static void print_case(const vec_case *test)
{
    printf("%s\n  %s\n", test->id, test->family->about);
    if (test->note) printf("  %s\n", test->note);
    printf("  op %s, provenance %s%s%s, tier %s, %s:%zu\n",
           slm_op_describe(test->op)->name, vec_provenance_name(test->provenance),
           test->source ? ": " : "", test->source ? test->source : "",
           vec_tier_name(test->tier), test->family->path, test->mark.line);
    print_words("clauses", test->clauses, test->n_clauses);
    print_words("kills", test->kills, test->n_kills);
    print_config(test);
    puts("  in");
    for (size_t i = 0; i < test->n_in; i++) print_tensor(&test->in[i]);
    puts(test->n_outcomes > 1 ? "  out: one of" : "  out");
    for (size_t i = 0; i < test->n_outcomes; i++) {
        if (test->n_outcomes > 1) printf("   %zu.\n", i + 1);
        print_outcome(&test->outcomes[i]);
    }
}

static void print_outputs(const call_frame *frame)
{
    const slm_op_info *info = frame->info;

    puts("  by ref, to the last bit");
    for (size_t i = 0; i < info->n_fields; i++) {
        const slm_field *field = &info->fields[i];
        const slm_tensor *tensor = frame_tensor(frame, field->name);

        if (field->role == SLM_ROLE_IN || field->role == SLM_ROLE_OPTIONAL) continue;
        if (!tensor->rank || frame_untouched(frame, field->name)) continue;
        printf("    %s ", field->name);
        print_shape(tensor->rank, tensor->shape);
        putchar('\n');
        print_rows(tensor->dtype, tensor->rank, tensor->shape, tensor->data, NULL);
    }
}

/* What ref says about the case now, with every tap. */
static int print_live(const vec_case *test)
{
    slm_status status;
    slm_error error;
    call_frame frame;
    cli_progress progress;
    char why[256];

    progress_begin(&progress, 1);
    progress_step(&progress, test->id);
    if (!golden_run(test, &frame, progress_within, &progress, &status, &error, why)) {
        progress_clear(&progress);
        fprintf(stderr, "slmoe: %s\n", why);
        return EXIT_HARNESS;
    }
    progress_clear(&progress);
    if (status == SLM_OK)
        print_outputs(&frame);
    else
        printf("  by ref: %s, %s[%zu], expected %s\n", slm_status_name(status),
               error.field, error.index, error.expected);
    if (status == SLM_OK && test->op == SLM_OP_qb_exact) show_balance(&frame);
    frame_free(&frame);
    return EXIT_CONFORMS;
}

int cli_show(int argc, char **argv)
{
    cli_options options;
    int code = EXIT_USAGE;

    if (!cli_parse(argc, argv, "V", &options)) return EXIT_USAGE;
    if (options.words.n != 1) {
        fputs("slmoe show: takes one case\n  `slmoe list` names them\n", stderr);
        return EXIT_USAGE;
    }

    vec_set *set = cli_load(&options);

    if (!set) return EXIT_VECTORS;

    const vec_case *test = cli_find_case(set, options.words.item[0]);

    if (test) {
        print_case(test);
        code = print_live(test);
    }
    vec_free(set);
    return code;
}

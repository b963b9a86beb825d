/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/cli_probe.c - slmoe probe: what a backend declares, and follows. */
#include "audit.h"
#include "cli.h"
#include "testee.h"

#include <math.h>
#include <string.h>

static void print_flags(const testee_about *table)
{
    printf("  levels:%s%s%s\n", table->levels & SLM_LEVEL_INFER ? " infer" : "",
           table->levels & SLM_LEVEL_TRAIN ? " train" : "",
           table->levels & SLM_LEVEL_DIST ? " dist" : "");
    printf("  promises:%s%s%s%s%s\n",
           table->flags & SLM_DETERMINISTIC ? " deterministic" : "",
           table->flags & SLM_BATCH_INVARIANT ? " batch-invariant" : "",
           table->flags & SLM_STRIDED ? " strided" : "",
           table->flags & SLM_CHECKS_ARGUMENTS ? " checks-arguments" : "",
           table->flags ? "" : " none");
}

static void print_arithmetic(const slm_arithmetic *arithmetic)
{
    static const char *const stages[SLM_STAGE_COUNT] = {
        "logit", "score", "weight", "z", "h", "o", "u", "r", "hs", "y"};

    printf("  arithmetic: accumulator %a, input %a, balance %a%s\n",
           arithmetic->accumulator, arithmetic->input,
           arithmetic->balance > 0 ? arithmetic->balance : 0x1p-53,
           arithmetic->flushes_subnormals ? ", flushes subnormals" : "");
    printf("    sigmoid %g u, tanh %g u relative and %g u absolute, 1/sqrt %g u "
           "(u = 2^-24)\n",
           arithmetic->sigmoid_ulp, arithmetic->tanh_ulp, arithmetic->tanh_abs,
           arithmetic->rsqrt_ulp);
    for (int i = 0; i < SLM_STAGE_COUNT; i++)
        if (arithmetic->store[i] > 0)
            printf("    %s stored with roundoff %a\n", stages[i], arithmetic->store[i]);
    if (arithmetic->store_gradient > 0)
        printf("    gradients of activations stored with roundoff %a\n",
               arithmetic->store_gradient);
    if (arithmetic->store_weight_gradient > 0)
        printf("    gradients of weights stored with roundoff %a\n",
               arithmetic->store_weight_gradient);
}

/* Asked about the named configuration `tiny` in profile paper. */
static void print_operations(slm_testee *testee)
{
    vec_outcome anything = {.status = SLM_OK};
    vec_case tiny = {.id = "probe", .n_outcomes = 1, .outcomes = &anything};
    char reason[256];

    slm_config_profile("paper", &tiny.config);
    tiny.config.d_model = 6;
    tiny.config.d_latent = 3;
    tiny.config.n_experts = 4;
    tiny.config.top_k = 2;
    tiny.config.d_expert = 3;
    tiny.config.n_shared = 2;
    tiny.config.d_shared = 3;
    tiny.call.n_tokens = 5;
    puts("  operations");
    for (int op = 0; op < SLM_OP_COUNT; op++) {
        const slm_op_info *info = slm_op_describe((slm_op)op);

        tiny.op = (slm_op)op;
        if (testee_offers(testee, &tiny, reason))
            printf("    %-20s %s\n", info->name, info->purpose);
        else
            printf("    %-20s -- %s\n", info->name, reason);
    }
}

static const char *follow(slm_testee *testee, const vec_case *test)
{
    const testee_about *about = testee_describe(testee);
    judge_verdict verdict = {0};
    testee_reply reply;
    call_frame frame;
    char reason[256];

    if (!testee_offers(testee, test, reason)) return "not offered";
    if (!testee_frame(testee, test, NULL, &frame, reply.why)) return "not run";
    testee_run(testee, &frame, &reply);
    verdict.state = JUDGE_FAIL;
    if (reply.outcome == TESTEE_RETURNED)
        judge_case(test, &frame, reply.status, &reply.error, &about->arithmetic,
                   strcmp(about->name, "ref") == 0, &verdict);
    frame_free(&frame);
    return verdict.state == JUDGE_PASS ? "yes" : "NO";
}

/* Cases tagged `probe` tell conventions apart; their note is the convention. */
static void print_conventions(slm_testee *testee, const vec_set *set)
{
    puts("  conventions (cases tagged probe)");
    for (size_t i = 0; i < set->n_families; i++)
        for (size_t j = 0; j < set->families[i].n_cases; j++) {
            const vec_case *test = &set->families[i].cases[j];

            for (size_t t = 0; t < test->n_tags; t++)
                if (strcmp(test->tags[t], "probe") == 0)
                    printf("    %-11s %s  (%s)\n", follow(testee, test),
                           test->note ? test->note : test->family->about, test->id);
        }
}

/* Returns the number of declarations that are not what is used. */
static size_t print_audit(slm_testee *testee)
{
    static const char *const words[] = {"true", "COARSER than declared: it will fail",
                                        "FINER than declared: bounds are too wide"};
    audit_line lines[AUDIT_LINES];
    char why[TESTEE_WHY] = "";
    const size_t n = audit_run(testee, lines, why);
    size_t untrue = 0;

    puts("  audit of the declared arithmetic (roundoff declared, seen)");
    if (!n) printf("    not possible: %s\n", why);
    for (size_t i = 0; i < n; i++) {
        printf("    %-12s 2^%-4.0f 2^%-4.0f %s%s\n", lines[i].stage,
               log2(lines[i].declared), log2(lines[i].seen), words[lines[i].finding],
               lines[i].truncates ? " (truncates)" : "");
        untrue += lines[i].finding != AUDIT_TRUE;
    }
    return untrue;
}

int cli_probe(int argc, char **argv)
{
    cli_options options;
    char why[TESTEE_WHY];

    if (!cli_parse(argc, argv, "bVSW", &options)) return EXIT_USAGE;
    if (options.backends.n != 1 || options.words.n) {
        fputs("slmoe probe: takes one -b BACKEND\n", stderr);
        return EXIT_USAGE;
    }

    const char *name = options.backends.item[0];
    slm_testee *testee = testee_open(name, &options.testee, why);

    if (!testee) {
        fprintf(stderr, "slmoe: %s\n", why);
        return EXIT_BACKEND;
    }

    vec_set *set = cli_load(&options);
    const testee_about *about = testee_describe(testee);
    int code = EXIT_VECTORS;

    if (set) {
        printf("%s: \"%s %s\", ABI %u.%u%s%s\n", name, about->name, about->version,
               about->abi_major, about->abi_minor, about->url[0] ? ", " : "",
               about->url);
        print_flags(about);
        print_arithmetic(&about->arithmetic);
        print_operations(testee);
        code = print_audit(testee) ? EXIT_FAILS : EXIT_CONFORMS;
        print_conventions(testee, set);
    }
    vec_free(set);
    testee_close(testee);
    return code;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/study/draw.c - a random lawful case of any operation, by its seed. */
#include "draw.h"

#include "../compare.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint64_t draw_word(draw *source)
{
    uint64_t w = source->state += 0x9e3779b97f4a7c15u;

    w = (w ^ w >> 30) * 0xbf58476d1ce4e5b9u;
    w = (w ^ w >> 27) * 0x94d049bb133111ebu;
    return w ^ w >> 31;
}

size_t draw_below(draw *source, size_t n)
{
    return (size_t)((draw_word(source) >> 32) * n >> 32);
}

static double unit(draw *source)
{
    return (double)(draw_word(source) >> 11) * 0x1p-53;
}

static int between(draw *source, int least, int most)
{
    return least + (int)draw_below(source, (size_t)(most - least) + 1);
}

/* A size from 1 to `most`, small ones as often as large ones. */
static size_t size(draw *source, size_t most)
{
    return (size_t)exp2(unit(source) * log2((double)most + 0.99));
}

/* How the values of a tensor look. */
typedef enum style {
    BELL,  /* all digits, bell-shaped                */
    GRID,  /* small integers: sums exact, many ties  */
    WIDE,  /* exponents over sixteen binades         */
    SPARSE /* two thirds zeros                       */
} style;

static double value(draw *source, style how)
{
    const double bell = unit(source) + unit(source) + unit(source) + unit(source) - 2;

    switch (how) {
    case BELL:
        return bell;
    case GRID:
        return 0.25 * between(source, -4, 4);
    case WIDE:
        return ldexp(bell, -between(source, 0, 15));
    case SPARSE:
        return between(source, 0, 2) ? 0 : bell;
    }
    return 0;
}

static style draw_style(draw *source)
{
    static const style often[] = {BELL, BELL, BELL, BELL, GRID, GRID, WIDE, SPARSE};

    return often[draw_below(source, sizeof often / sizeof *often)];
}

/* A real input: add + 2^exponent times a value, rounded to the element type. */
static void fill(made_case *made, draw *source, const char *field, style how,
                 int exponent, double add)
{
    const size_t index = made->test.n_in;
    float *values = made_values(made, field);
    const slm_dtype dtype = slm_field_dtype(made->in[index].field, &made->test.config);

    for (size_t i = 0; i < made->in[index].count; i++)
        values[i] =
            (float)compare_round(add + ldexp(value(source, how), exponent), dtype);
}

/* A weight of a stage `width` wide: outputs are of the order of the inputs, times
 * 2^exponent. */
static void fill_weight(made_case *made, draw *source, const char *field, size_t width,
                        int exponent)
{
    if (!made_uses(made, field)) return;
    fill(made, source, field, draw_style(source), exponent - ilogb(sqrt((double)width)),
         0);
}

static void fill_bias(made_case *made, draw *source)
{
    static const double adds[] = {0, 0, 0, -2, 0x1p10, 0x1p17};

    fill(made, source, "bias", draw_style(source), between(source, -20, 0),
         adds[draw_below(source, sizeof adds / sizeof *adds)]);
}

/* Scores in [0, 1], down to 2^-140. */
static void fill_scores(made_case *made, draw *source, int least)
{
    const size_t index = made->test.n_in;
    float *values = made_values(made, "score");
    const style how = draw_style(source);
    const int exponent = between(source, least, 0);

    for (size_t i = 0; i < made->in[index].count; i++)
        values[i] = (float)fmin(1, fabs(ldexp(value(source, how), exponent)));
}

/* ---- configurations ---- */

static void draw_config(made_case *made, draw *source, slm_op op)
{
    static const char *const profiles[] = {"paper",   "paper",   "paper",  "release",
                                           "release", "vanilla", "linear", "linear"};
    slm_config *config;

    made_begin(made, op, profiles[draw_below(source, 8)]);
    config = &made->test.config;
    made->test.call.n_tokens = size(source, 8);
    config->d_model = size(source, 96);
    config->d_latent = size(source, 64);
    config->n_experts = size(source, 40);
    config->top_k = 1 + draw_below(source, size(source, config->n_experts));
    config->d_expert = size(source, 32);
    config->n_shared = draw_below(source, 4);
    config->d_shared = size(source, 16);
    config->n_bins = size(source, 1000);
    config->dtype = between(source, 0, 1) ? SLM_BF16 : SLM_F32;
    if (strcmp(made->test.profile, "vanilla") == 0) {
        if (between(source, 0, 1)) config->score = SLM_SCORE_SOFTMAX;
        if (between(source, 0, 1)) config->expert = SLM_EXPERT_RELU;
    }
    if (between(source, 0, 3) == 0) {
        static const double eps[] = {1e-3, 1e-8, 1e-12};

        config->eps = eps[draw_below(source, 3)];
        config->beta_gate = (double)(float)(0.5 + 8 * unit(source));
        config->beta_up = (double)(float)(0.5 + 40 * unit(source));
    }
}

static void fill_router_weights(made_case *made, draw *source)
{
    /* Logits of the order of 2^-6 to 2^7, wherever x lies. */
    const int x = between(source, -20, 10), logit = between(source, -6, 7);
    const int w = logit - x - ilogb(sqrt((double)made->test.config.d_model));

    fill(made, source, "x", draw_style(source), x, 0);
    fill(made, source, "w_router", draw_style(source), w, 0);
}

static void fill_router(made_case *made, draw *source)
{
    fill_router_weights(made, source);
    fill_bias(made, source);
}

static void fill_layer_weights(made_case *made, draw *source)
{
    const slm_config *config = &made->test.config;
    const size_t d = config->d_model, l = config->d_latent, f = config->d_expert;
    const size_t fs = config->n_shared * config->d_shared;

    fill_weight(made, source, "w_down", d, between(source, -4, 4));
    fill_weight(made, source, "w_gate", l, between(source, -4, 8));
    fill_weight(made, source, "w_up", l, between(source, -4, 8));
    fill_weight(made, source, "w_out", f, between(source, -12, 4));
    fill_weight(made, source, "w_expert", l, between(source, -12, 4));
    if (made_uses(made, "gamma") && between(source, 0, 2))
        fill(made, source, "gamma", draw_style(source), between(source, -4, 1), 1);
    fill_weight(made, source, "w_lift", l, between(source, -4, 4));
    if (config->n_shared == 0) return;
    fill_weight(made, source, "w_shared_gate", d, between(source, -4, 8));
    fill_weight(made, source, "w_shared_up", d, between(source, -4, 8));
    fill_weight(made, source, "w_shared_out", fs, between(source, -4, 4));
    fill_weight(made, source, "w_shared", d, between(source, -4, 4));
}

static void fill_ffn(made_case *made, draw *source)
{
    const slm_config *config = &made->test.config;

    fill(made, source, "x", draw_style(source), between(source, -20, 10), 0);
    fill_weight(made, source, "w_gate", config->d_model, between(source, -4, 8));
    fill_weight(made, source, "w_up", config->d_model, between(source, -4, 8));
    fill_weight(made, source, "w_out", config->d_expert, between(source, -12, 4));
}

static void fill_norm(made_case *made, draw *source)
{
    fill(made, source, "u", draw_style(source), between(source, -20, 10), 0);
    if (made_uses(made, "gamma") && between(source, 0, 1))
        fill(made, source, "gamma", draw_style(source), between(source, -4, 1), 1);
}

/* ---- integers ---- */

static void fill_ids(made_case *made, draw *source)
{
    const size_t n = made->test.config.n_experts, k = made->test.config.top_k;
    int32_t *ids = made_values(made, "ids");
    int32_t *deck = malloc(n * sizeof *deck);

    if (!deck) abort();
    for (size_t j = 0; j < n; j++) deck[j] = (int32_t)j;
    for (size_t t = 0; t < made->test.call.n_tokens; t++)
        for (size_t q = 0; q < k; q++) {
            const size_t other = q + draw_below(source, n - q);
            const int32_t drawn = deck[other];

            deck[other] = deck[q];
            deck[q] = drawn;
            ids[t * k + q] = drawn;
        }
    free(deck);
}

static void fill_counts(made_case *made, draw *source, const char *field)
{
    const size_t index = made->test.n_in;
    int64_t *counts = made_values(made, field);
    const size_t most = size(source, 1 << 20);

    for (size_t i = 0; i < made->in[index].count; i++)
        counts[i] = (int64_t)draw_below(source, most);
}

/* Rows of counts that sum to T. */
static void fill_rows(made_case *made, draw *source)
{
    const size_t n = made->test.config.n_experts, bins = made->test.config.n_bins;
    int64_t *hist = made_values(made, "hist");
    const size_t few = size(source, bins);

    for (size_t j = 0; j < n; j++) {
        const size_t first = draw_below(source, bins);

        for (size_t t = 0; t < made->test.call.n_tokens; t++)
            hist[j * bins + (first + draw_below(source, few)) % bins]++;
    }
}

static void fill_mask(made_case *made, draw *source)
{
    const size_t n_tokens = made->test.call.n_tokens;
    int32_t *mask = made_values(made, "mask");

    for (size_t t = 0; t < n_tokens; t++) mask[t] = between(source, 0, 3) != 0;
}

/* A state of a step under way. */
static int64_t *fill_stamp(made_case *made, draw *source)
{
    const vec_tensor *bias = vec_find(made->test.in, made->test.n_in, "bias");
    int64_t *stamp = made_values(made, "stamp");

    stamp[SLM_STAMP_VERSION] = (int64_t)draw_below(source, 1000);
    stamp[SLM_STAMP_CHECKSUM] = slm_checksum(bias->values, bias->count);
    stamp[SLM_STAMP_MICRO_BATCHES] = between(source, 0, 2);
    stamp[SLM_STAMP_TOKENS] = (int64_t)made->test.call.n_tokens;
    return stamp;
}

/* The next micro-batch, one seen before, or a pass that is not counted. */
static void fill_ticket(made_case *made, draw *source, const int64_t *stamp)
{
    int64_t *ticket = made_values(made, "ticket");

    ticket[SLM_TICKET_MODE] =
        between(source, 0, 2) ? SLM_MODE_TRAINING : between(source, 1, 2);
    ticket[SLM_TICKET_VERSION] = stamp[SLM_STAMP_VERSION];
    ticket[SLM_TICKET_CHECKSUM] = stamp[SLM_STAMP_CHECKSUM];
    ticket[SLM_TICKET_MICRO_BATCH] = stamp[SLM_STAMP_MICRO_BATCHES];
    if (stamp[SLM_STAMP_MICRO_BATCHES] > 0 && between(source, 0, 3) == 0)
        ticket[SLM_TICKET_MICRO_BATCH]--;
}

/* ---- operations ---- */

/* Balancing needs a next expert, and more tokens to say something. */
static void draw_balance(made_case *made, draw *source)
{
    slm_config *config = &made->test.config;

    config->n_experts = 1 + size(source, 24);
    config->top_k = 1 + draw_below(source, config->n_experts - 1);
    config->balance = between(source, 0, 2) ? SLM_BALANCE_RELAXED : SLM_BALANCE_STRICT;
    config->tie_test = between(source, 0, 1) ? SLM_TIE_NOTE : SLM_TIE_EQUAL;
    made->test.call.n_tokens = size(source, 60);
}

/* What ref says of a case that may be refused. */
static void expect(made_case *made)
{
    slm_status status;
    slm_error error = {0};
    call_frame frame;

    if (!made_ref(&made->test, &frame, &status, &error)) abort();
    made->outcome.status = status;
    if (status)
        snprintf(made->outcome.field, sizeof made->outcome.field, "%s", error.field);
    frame_free(&frame);
}

static void fill_balance(made_case *made, draw *source, slm_op op)
{
    draw_balance(made, source);
    if (op == SLM_OP_qb_hist_solve) {
        fill_rows(made, source);
    } else if (op == SLM_OP_qb_hist_merge) {
        made->test.call.n_parts = size(source, 4);
        fill_counts(made, source, "parts");
        return;
    } else {
        fill_scores(made, source, -20);
    }
    fill_bias(made, source);
    if (op == SLM_OP_qb_hist_accumulate) fill_counts(made, source, "hist");
    if (op != SLM_OP_qb_hist_solve && between(source, 0, 1)) fill_mask(made, source);
    if (made->test.config.balance == SLM_BALANCE_STRICT) expect(made);
}

static void fill_step(made_case *made, draw *source)
{
    const int64_t *stamp;

    draw_balance(made, source);
    fill_bias(made, source);
    stamp = fill_stamp(made, source);
    fill_rows(made, source);
    if (made->test.op == SLM_OP_qb_commit) {
        fill(made, source, "new_bias", draw_style(source), between(source, -20, 0), 0);
        return;
    }
    fill_ticket(made, source, stamp);
    fill_scores(made, source, -20);
    if (between(source, 0, 1)) fill_mask(made, source);
}

/* softmax and relu have no backward.                                          G3, G4 */
static void draw_gradients(made_case *made)
{
    slm_config *config = &made->test.config;

    config->score = SLM_SCORE_SIGMOID;
    if (config->expert == SLM_EXPERT_RELU) config->expert = SLM_EXPERT_SWIGLU;
    if (made->test.op == SLM_OP_dense_ffn_backward &&
        config->expert == SLM_EXPERT_LINEAR)
        config->expert = SLM_EXPERT_SITU;
}

static void fill_gradients(made_case *made, draw *source)
{
    const int size_of_dy = between(source, -20, 10);

    draw_gradients(made);
    switch (made->test.op) {
    case SLM_OP_situ_glu_backward:
        fill(made, source, "gate_up", draw_style(source), between(source, -20, 10), 0);
        fill(made, source, "dh", draw_style(source), size_of_dy, 0);
        break;
    case SLM_OP_rmsnorm_backward:
        fill_norm(made, source);
        fill(made, source, "dr", draw_style(source), size_of_dy, 0);
        break;
    case SLM_OP_select_backward:
        fill(made, source, "logit", draw_style(source), between(source, -6, 5), 0);
        fill_ids(made, source);
        fill(made, source, "dweight", draw_style(source), size_of_dy, 0);
        break;
    case SLM_OP_dense_ffn_backward:
        fill_ffn(made, source);
        fill(made, source, "dy", draw_style(source), size_of_dy, 0);
        break;
    default:
        fill_router_weights(made, source);
        fill_ids(made, source);
        fill_layer_weights(made, source);
        fill(made, source, "dy", draw_style(source), size_of_dy, 0);
        break;
    }
}

void draw_case(made_case *made, draw *source)
{
    static const slm_op often[] = {SLM_OP_layer_forward,  SLM_OP_layer_forward,
                                   SLM_OP_layer_forward,  SLM_OP_route,
                                   SLM_OP_select,         SLM_OP_qb_exact,
                                   SLM_OP_layer_backward, SLM_OP_layer_backward};
    const size_t n = sizeof often / sizeof *often;
    const size_t drawn = draw_below(source, n + SLM_OP_COUNT);
    const slm_op op = drawn < n ? often[drawn] : (slm_op)(drawn - n);

    draw_config(made, source, op);
    switch (op) {
    case SLM_OP_route:
        fill_router(made, source);
        break;
    case SLM_OP_select:
        if (between(source, 0, 1))
            fill_scores(made, source, -140);
        else
            fill(made, source, "logit", draw_style(source), between(source, -6, 7), 0);
        fill_bias(made, source);
        break;
    case SLM_OP_permute:
        fill_ids(made, source);
        break;
    case SLM_OP_load_metrics:
        fill_ids(made, source);
        if (between(source, 0, 1)) fill_mask(made, source);
        break;
    case SLM_OP_situ_glu:
        fill(made, source, "gate_up", draw_style(source), between(source, -20, 10), 0);
        break;
    case SLM_OP_dense_ffn:
        if (made->test.config.expert == SLM_EXPERT_LINEAR)
            made->test.config.expert = SLM_EXPERT_SITU;
        fill_ffn(made, source);
        break;
    case SLM_OP_rmsnorm:
        fill_norm(made, source);
        break;
    case SLM_OP_layer_forward:
        fill_router(made, source);
        fill_layer_weights(made, source);
        break;
    case SLM_OP_situ_glu_backward:
    case SLM_OP_rmsnorm_backward:
    case SLM_OP_select_backward:
    case SLM_OP_dense_ffn_backward:
    case SLM_OP_layer_backward:
        fill_gradients(made, source);
        break;
    case SLM_OP_qb_observe:
    case SLM_OP_qb_commit:
        fill_step(made, source);
        break;
    case SLM_OP_sign_step:
        fill_bias(made, source);
        fill_counts(made, source, "load");
        break;
    case SLM_OP_qb_exact:
    case SLM_OP_qb_hist_accumulate:
    case SLM_OP_qb_hist_merge:
    case SLM_OP_qb_hist_solve:
        fill_balance(made, source, op);
        break;
    default:
        break;
    }
}

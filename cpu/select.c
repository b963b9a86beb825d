/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/select.c - scores, choice and weights of a row; `select` and `route`.
 *
 * Clause   R1-R5, L4.  Preconditions are the contract's; none is checked here.
 * Method   a few rows at a time, as many as a vector has lanes, are scored, chosen from
 *          (topk_tile.h) and weighed while they lie in the cache. Where that finds no
 *          choice, key and id are packed into one word whose unsigned order is the
 *          order of R2, and a heap keeps the best k + 1: n log k whatever k is. Weights
 *          are computed in binary64 from the binary32 scores; where those have lost the
 *          ratio, from the logits.
 * Order    rows are independent; the chosen scores are summed best first.
 * NaN      a row with a NaN logit is poisoned, and only that row. */
#include <float.h>

#include "cut.h"
#include "threads.h"
#include "topk.h"

/* One row. */
typedef struct choice {
    const float *score; /* [n]                                     */
    const float *logit; /* [n], or NULL when the scores were given */
    int32_t *ids;       /* [k]                                     */
    float *weight;      /* out [k]                                 */
} choice;

const slm_cpu_topk *slm_cpu_topk_of(slm_cpu_isa isa)
{
    const slm_cpu_topk *best = slm_cpu_topk_plain();

    if (isa >= SLM_ISA_AVX2 && slm_cpu_topk_avx2()) best = slm_cpu_topk_avx2();
    if (isa >= SLM_ISA_AVX512 && slm_cpu_topk_avx512()) best = slm_cpu_topk_avx512();
    return best;
}

/* RN32 of e^logit over its sum: binary64 inside. The largest infinity takes all. */
static void softmax(size_t n, const float *logit, float *score)
{
    float top = logit[0];
    double sum = 0.0;

    for (size_t e = 1; e < n; e++)
        if (logit[e] > top) top = logit[e];
    for (size_t e = 0; e < n; e++)
        sum += logit[e] == top ? 1.0 : exp((double)logit[e] - (double)top);
    for (size_t e = 0; e < n; e++) {
        const int best = logit[e] == top;
        const double part = best ? 1.0 : exp((double)logit[e] - (double)top);

        score[e] = (float)(part / sum);
    }
}

static void scores(const slm_handle *handle, const float *logit, float *score)
{
    const size_t n = handle->config.n_experts;

    if (handle->config.score == SLM_SCORE_SOFTMAX)
        softmax(n, logit, score);
    else
        handle->kernels->sigmoid(n, logit, score);
}

/* Bits whose unsigned order is that of the keys; -0 becomes +0. */
static uint32_t ordered(float key)
{
    const float positive_zero = key + 0.0f;
    uint32_t bits;

    memcpy(&bits, &positive_zero, sizeof bits);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

int32_t slm_cpu_chosen_id(uint64_t word)
{
    return (int32_t) ~(uint32_t)word;
}

float slm_cpu_chosen_key(uint64_t word)
{
    const uint32_t high = (uint32_t)(word >> 32);
    const uint32_t bits = high & 0x80000000u ? high & 0x7fffffffu : ~high;
    float key;

    memcpy(&key, &bits, sizeof key);
    return key;
}

/* Let heap[at] sink in a heap of `size` words whose root is the least. */
static void sink(uint64_t *heap, size_t size, size_t at)
{
    const uint64_t word = heap[at];

    for (size_t child = 2 * at + 1; child < size; child = 2 * at + 1) {
        if (child + 1 < size && heap[child + 1] < heap[child]) child++;
        if (word <= heap[child]) break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = word;
}

void slm_cpu_choose(const float *score, const float *bias, size_t n, size_t k,
                    uint64_t *best)
{
    const size_t keep = k < n ? k + 1 : n;

    for (size_t e = 0; e < n; e++) {
        const float key = score[e] + bias[e];
        const uint64_t word = (uint64_t)ordered(key) << 32 | (uint32_t) ~(uint32_t)e;

        if (e < keep) {
            best[e] = word;
            if (e + 1 == keep)
                for (size_t at = keep / 2; at-- > 0;) sink(best, keep, at);
        } else if (word > best[0]) {
            best[0] = word;
            sink(best, keep, 0);
        }
    }
    for (size_t size = keep; size-- > 1;) {
        const uint64_t least = best[0];

        best[0] = best[size];
        best[size] = least;
        sink(best, size, 0);
    }
}

/* log of the real score: sigmoid, or softmax with `shift` the log of the row's sum. */
static double log_score(const slm_config *config, double logit, double shift)
{
    if (config->score == SLM_SCORE_SOFTMAX) return logit - shift;
    return logit < 0.0 ? logit - log1p(exp(logit)) : -log1p(exp(-logit));
}

static double softmax_shift(const slm_config *config, const float *logit)
{
    double top = (double)logit[0], sum = 0.0;

    if (config->score != SLM_SCORE_SOFTMAX) return 0.0;
    for (size_t e = 1; e < config->n_experts; e++) top = fmax(top, (double)logit[e]);
    for (size_t e = 0; e < config->n_experts; e++) sum += exp((double)logit[e] - top);
    return top + log(sum);
}

/* Ratio of the real scores: the largest of the chosen is divided out first. */
static void mixture_of_logits(const slm_config *config, const float *logit,
                              double shift, const int32_t *ids, float *weight)
{
    const size_t k = config->top_k;
    double top = -INFINITY, sum = 0.0;

    for (size_t q = 0; q < k; q++)
        top = fmax(top, log_score(config, (double)logit[ids[q]], shift));
    if (config->weighting == SLM_WEIGHT_RELEASE) top = 0.0;
    for (int write = 0; write < 2; write++) {
        const double total =
            config->weighting == SLM_WEIGHT_RELEASE ? sum + 1e-20 : sum;

        for (size_t q = 0; q < k; q++) {
            const double log_of = log_score(config, (double)logit[ids[q]], shift);
            const double part = log_of == top ? 1.0 : exp(log_of - top);

            if (write)
                weight[q] = (float)(part / total);
            else
                sum += part;
        }
    }
}

/* Weights of the chosen from their scores; from the logits, if there are any, where a
 * score is subnormal or the sum below 2^-100.                                     R3 */
static void mixture(const slm_config *config, const choice *row)
{
    const size_t k = config->top_k;
    const int release = config->weighting == SLM_WEIGHT_RELEASE;
    double sum = 0.0;
    int normal = 1;

    for (size_t q = 0; q < k; q++) {
        row->weight[q] = row->score[row->ids[q]];
        sum += (double)row->weight[q];
        normal &= row->weight[q] >= FLT_MIN;
    }
    if (release && k == 1) return;
    if (row->logit && (!normal || sum < 0x1p-100)) {
        const double shift = softmax_shift(config, row->logit);

        if (isfinite(shift)) {
            mixture_of_logits(config, row->logit, shift, row->ids, row->weight);
            return;
        }
    }
    if (release) sum += 1e-20;
    if (sum > 0.0) {
#pragma omp simd
        for (size_t q = 0; q < k; q++)
            row->weight[q] = (float)((double)row->weight[q] / sum);
    } else {
        for (size_t q = 0; q < k; q++) row->weight[q] = (float)(1.0 / (double)k);
    }
}

void slm_cpu_take_choices(slm_cpu_arena *arena, size_t rows, size_t k,
                          slm_cpu_choices *at)
{
    at->ids = slm_cpu_take(arena, rows, k, sizeof *at->ids);
    at->weight = slm_cpu_take_f32(arena, rows, k);
    at->cutoff = slm_cpu_take_f32(arena, rows, 1);
    at->best = slm_cpu_take(arena, slm_cpu_ceil_div(rows, SLM_CPU_ROWS), k + 1,
                            sizeof *at->best);
}

/* Choice of row t from what was found of it as number i of a chooser; then weigh it. A
 * NaN poisons it: ids 0..k-1, NaN weights and cutoff. Returns whether it did. */
static int finish_row(const slm_handle *handle, const slm_cpu_router *from, size_t t,
                      const slm_cpu_chooser *at, size_t i, const slm_cpu_choices *to)
{
    const size_t n = handle->config.n_experts, k = handle->config.top_k;
    const int poisoned = at->found[i] == SLM_FOUND_WRONG;
    const choice row = {at->score[i],
                        from->logit.data ? slm_cpu_row(from->logit, t) : NULL,
                        to->ids + t * k, to->weight + t * k};
    uint64_t *best = to->best + t / SLM_CPU_ROWS * (k + 1);
    float cutoff = at->last[i];

    if (poisoned) {
        for (size_t q = 0; q < k; q++) {
            row.ids[q] = (int32_t)q;
            row.weight[q] = NAN;
        }
        cutoff = NAN;
    } else if (at->found[i] == SLM_FOUND) {
        memcpy(row.ids, at->ids[i], k * sizeof *row.ids);
    } else {
        slm_cpu_choose(row.score, from->bias, n, k, best);
        for (size_t q = 0; q < k; q++) row.ids[q] = slm_cpu_chosen_id(best[q]);
        if (k < n) cutoff = slm_cpu_chosen_key(best[k]);
    }
    if (k < n) to->cutoff[t] = cutoff;
    if (!poisoned) mixture(&handle->config, &row);
    return poisoned;
}

void slm_cpu_select_rows(const slm_handle *handle, const slm_cpu_router *from,
                         size_t first, size_t end, const slm_cpu_choices *to,
                         unsigned char *poisoned)
{
    const size_t n = handle->config.n_experts, k = handle->config.top_k;
    slm_cpu_chooser at;

    at.bias = from->bias;
    at.n = n;
    at.keep = k < n ? k + 1 : n;
    for (size_t t = first; t < end; t += at.rows) {
        at.rows = end - t < handle->topk->lanes ? end - t : handle->topk->lanes;
        for (size_t i = 0; i < at.rows; i++) {
            const slm_cpu_matrix read = from->logit.data ? from->logit : from->score;
            const size_t later = t + at.rows + i;
            float *score = slm_cpu_row(from->score, t + i);

            if (from->logit.data)
                scores(handle, slm_cpu_row(from->logit, t + i), score);
            at.score[i] = score;
            at.ahead[i] = later < from->ahead ? slm_cpu_row(read, later) : NULL;
        }
        handle->topk->choose(&at);
        for (size_t i = 0; i < at.rows; i++) {
            const int was = finish_row(handle, from, t + i, &at, i, to);

            if (poisoned) poisoned[t + i] = (unsigned char)was;
        }
    }
}

static int is_finite_at(const slm_tensor *tensor, size_t i, size_t j)
{
    const ptrdiff_t at = slm_cpu_at(tensor, i, j);
    const uint16_t *half = tensor->data;
    const float *real = tensor->data;

    return tensor->dtype == SLM_BF16 ? (half[at] & 0x7f80) != 0x7f80
                                     : isfinite(real[at]) != 0;
}

int slm_cpu_is_finite(const slm_tensor *tensor, size_t first, size_t end)
{
    for (size_t i = first; i < end; i++)
        for (size_t j = 0; j < tensor->shape[1]; j++)
            if (!is_finite_at(tensor, i, j)) return 0;
    return 1;
}

void slm_cpu_poison_infinite(const slm_handle *handle, const slm_tensor *x,
                             slm_cpu_matrix logit, size_t first, size_t end,
                             unsigned char *poisoned)
{
    /* an infinity in a row of x is in all its logits */
    for (size_t t = first; t < end; t++)
        if (handle->router_is_wrong ||
            (!isfinite(*slm_cpu_row(logit, t)) && !slm_cpu_is_finite(x, t, t + 1)))
            poisoned[t] = 1;
}

void slm_cpu_weigh_row(const slm_handle *handle, const slm_cpu_router *from, size_t t,
                       const int32_t *ids, float *weight)
{
    const choice row = {slm_cpu_row(from->score, t), slm_cpu_row(from->logit, t),
                        (int32_t *)ids, /* read only */
                        weight};

    scores(handle, row.logit, slm_cpu_row(from->score, t));
    mixture(&handle->config, &row);
}

/* What a block sees of both, whose first row is `first` of [T]. */
static slm_cpu_router router_from(slm_cpu_router from, size_t first)
{
    if (from.logit.data) from.logit.data = slm_cpu_row(from.logit, first);
    from.score.data = slm_cpu_row(from.score, first);
    from.ahead -= first;
    return from;
}

static slm_cpu_choices choices_from(slm_cpu_choices to, size_t first, size_t k)
{
    to.ids += first * k;
    to.weight += first * k;
    to.cutoff += first;
    to.best += first / SLM_CPU_ROWS * (k + 1);
    return to;
}

/* The rows [first, end), in blocks. Where scores are made of logits and nobody `keeps`
 * them, those of the first block are written again and again: they stay in the cache. */
static void select_range(const slm_handle *handle, const slm_cpu_router *from, range of,
                         int keeps, const slm_cpu_choices *to)
{
    for (size_t first = of.first; first < of.end; first += SLM_CPU_ROWS) {
        const size_t left = of.end - first;
        const slm_cpu_choices chosen = choices_from(*to, first, handle->config.top_k);
        slm_cpu_router block = router_from(*from, first);

        if (from->logit.data && !keeps)
            block.score.data = slm_cpu_row(from->score, of.first);
        slm_cpu_select_rows(handle, &block, 0,
                            left < SLM_CPU_ROWS ? left : SLM_CPU_ROWS, &chosen, NULL);
    }
}

static void select_rows(const slm_handle *handle, const slm_cpu_router *from,
                        size_t rows, int keeps, const slm_cpu_choices *to)
{
#pragma omp parallel
    select_range(
        handle, from,
        part_of(rows, SLM_CPU_ROWS, slm_cpu_n_threads(), slm_cpu_this_thread()), keeps,
        to);
}

/* Workspace of `select` and `route`: packed inputs, then a row's results. */
typedef struct space {
    float *bias;   /* [n]                                                       */
    float *x;      /* [T, d]  route                                             */
    float *router; /* [n, d]  route                                             */
    float *logit;  /* [T, n]                                                    */
    float *score;  /* [T, n]                                                    */
    slm_cpu_choices chosen;
} space;

static size_t lay_out(space *at, void *base, const slm_config *config, size_t rows,
                      size_t width)
{
    slm_cpu_arena arena = {base, 0};
    const size_t n = config->n_experts;

    at->bias = slm_cpu_take_f32(&arena, 1, n);
    at->x = slm_cpu_take_f32(&arena, rows, width);
    at->router = slm_cpu_take_f32(&arena, width ? n : 0, width);
    at->logit = slm_cpu_take_f32(&arena, rows, n);
    at->score = slm_cpu_take_f32(&arena, rows, n);
    slm_cpu_take_choices(&arena, rows, config->top_k, &at->chosen);
    return arena.used;
}

size_t slm_cpu_select_space(const slm_config *config, const slm_call *call)
{
    space at;

    return lay_out(&at, NULL, config, call->n_tokens, 0);
}

size_t slm_cpu_route_space(const slm_config *config, const slm_call *call)
{
    space at;

    return lay_out(&at, NULL, config, call->n_tokens, config->d_model);
}

/* `cols` elements of four bytes to where they lie `step` apart. */
static void write_row(void *to, ptrdiff_t step, const void *from, size_t cols)
{
    enum { SIZE = 4 };

    if (step == 1) {
        memcpy(to, from, cols * SIZE);
        return;
    }
    for (size_t q = 0; q < cols; q++)
        memcpy((char *)to + (ptrdiff_t)q * step * SIZE, (const char *)from + q * SIZE,
               SIZE);
}

void slm_cpu_write_choice(const slm_config *config, size_t rows,
                          const slm_cpu_choices *from, const slm_tensor *ids,
                          const slm_tensor *weight, const slm_tensor *cutoff)
{
    const size_t k = config->top_k;

    for (size_t t = 0; t < rows; t++) {
        write_row(slm_cpu_i32(ids, t, 0), ids->stride[1], from->ids + t * k, k);
        write_row(slm_cpu_f32(weight, t, 0), weight->stride[1], from->weight + t * k,
                  k);
    }
    if (k == config->n_experts || cutoff->rank == 0) return;
    for (size_t t = 0; t < rows; t++) *slm_cpu_f32(cutoff, t, 0) = from->cutoff[t];
}

slm_status slm_cpu_select(slm_handle *handle, const slm_select_args *args,
                          slm_error *error)
{
    const slm_config *config = &handle->config;
    const size_t rows = args->call.n_tokens;
    const slm_status status = slm_check_finite(SLM_OP_select, config, args, error);
    slm_cpu_router from = {.ahead = rows};
    space at;

    if (status || rows == 0) return status;
    lay_out(&at, args->call.workspace, config, rows, 0);
    slm_cpu_pack(at.bias, &args->bias);
    from.bias = at.bias;
    if (args->logit.rank) {
        from.logit = slm_cpu_read(&args->logit, at.logit);
        from.score = (slm_cpu_matrix){at.score, config->n_experts};
    } else {
        from.score = slm_cpu_read(&args->score, at.score);
    }
    select_rows(handle, &from, rows, 0, &at.chosen);
    slm_cpu_write_choice(config, rows, &at.chosen, &args->ids, &args->weight,
                         &args->cutoff);
    return SLM_OK;
}

slm_status slm_cpu_route(slm_handle *handle, const slm_route_args *args,
                         slm_error *error)
{
    const slm_config *config = &handle->config;
    const size_t rows = args->call.n_tokens, n = config->n_experts, d = config->d_model;
    const slm_status status = slm_check_finite(SLM_OP_route, config, args, error);
    space at;

    if (status || rows == 0) return status;
    lay_out(&at, args->call.workspace, config, rows, d);
    slm_cpu_pack(at.bias, &args->bias);

    slm_cpu_router from = {{at.logit, n}, {at.score, n}, at.bias, rows};
    const int logit_in_place =
        args->logit.rank && slm_cpu_is_matrix(&args->logit, &from.logit);
    const int score_in_place =
        args->score.rank && slm_cpu_is_matrix(&args->score, &from.score);
    const slm_cpu_linear product = {rows,
                                    n,
                                    d,
                                    slm_cpu_read(&args->x, at.x),
                                    slm_cpu_read(&args->w_router, at.router),
                                    from.logit,
                                    0};

    slm_cpu_products(handle, &product, 1);
    select_rows(handle, &from, rows, args->score.rank > 0, &at.chosen);
    slm_cpu_write_choice(config, rows, &at.chosen, &args->ids, &args->weight,
                         &args->cutoff);
    if (!logit_in_place) slm_cpu_write(&args->logit, from.logit);
    if (!score_in_place) slm_cpu_write(&args->score, from.score);
    return SLM_OK;
}

/* backend.c - @NAME@: a Stable LatentMoE backend, judged by `slmoe run`.
 *
 * Three operations are here in plain binary32, so that the project has a verdict before
 * your first change. Put your kernels in their place, then fill the NULLs of the table
 * at the end: an operation that is NULL is skipped, never failed.
 *
 * The contract stands in <slm/slm.h>, <slm/ops.h> and <slm/backend.h>; a clause (R2)
 * prints with `slmoe explain R2`. Arguments arrive checked: sizes agree, outputs overlap
 * nothing, 1 <= k <= n. Strides are anything if the table says SLM_STRIDED, else
 * packed. An optional tensor that is absent has rank 0, and T = 0 is lawful. */
#include <slm/backend.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* State of one configuration. What your kernels prepare belongs here, not in globals:
 * two handles may be used from two threads. */
struct slm_handle {
    slm_config config;
};

static slm_status open_handle(const slm_config *config, slm_handle **handle,
                              slm_error *error)
{
    slm_handle *opened = calloc(1, sizeof *opened);

    if (!opened)
        return slm_fail(error, SLM_ERR_MEMORY, "open", "handle", 0, "%zu bytes",
                        sizeof *opened);
    opened->config = *config;
    *handle = opened;
    return SLM_OK;
}

static void close_handle(slm_handle *handle)
{
    free(handle);
}

/* What this backend does not do, with a reason for people; such cases are skipped. */
static int supports(const slm_config *config, slm_op op, size_t n_tokens, char *reason,
                    size_t reason_size)
{
    const char *why = NULL;

    (void)n_tokens;
    if (config->dtype != SLM_F32)
        why = "binary32 only";
    else if (op == SLM_OP_select && config->score != SLM_SCORE_SIGMOID)
        why = "sigmoid scores only";
    else if (op == SLM_OP_rmsnorm && config->norm != SLM_NORM_RMS)
        why = "the norm of K3 only";
    if (why && reason_size > strlen(why)) strcpy(reason, why);
    return !why;
}

/* Bytes of scratch that a call gets as args->call.workspace; no malloc in a call. */
static size_t workspace(slm_handle *handle, slm_op op, const slm_call *call)
{
    (void)call;
    return op == SLM_OP_select ? handle->config.n_experts * sizeof(float) : 0;
}

/* ---- elements at any stride ---- */

static void *element(const slm_tensor *tensor, size_t i, size_t j)
{
    const ptrdiff_t column = tensor->rank > 1 ? tensor->stride[1] : 0;
    const ptrdiff_t at = (ptrdiff_t)i * tensor->stride[0] + (ptrdiff_t)j * column;

    return (char *)tensor->data + at * 4; /* f32 and i32 alike */
}

static float get(const slm_tensor *tensor, size_t i, size_t j)
{
    return *(const float *)element(tensor, i, j);
}

static void put(const slm_tensor *tensor, size_t i, size_t j, float value)
{
    *(float *)element(tensor, i, j) = value;
}

/* 1 / (1 + e^-a), without overflow and without losing small scores.              R2 */
static float sigmoid(float a)
{
    const float e = expf(-fabsf(a));

    return (a >= 0 ? 1 : e) / (1 + e);
}

/* ---- select                                                              R2-R4 ---- */

/* Scores of one row. Returns 0 when one of them is NaN. */
static int row_scores(const slm_select_args *args, size_t t, size_t n, float *score)
{
    int sound = 1;

    for (size_t e = 0; e < n; e++) {
        score[e] = args->score.rank ? get(&args->score, t, e)
                                    : sigmoid(get(&args->logit, t, e));
        if (isnan(score[e])) sound = 0;
    }
    return sound;
}

/* R4: ids of a poisoned row are distinct and in range, and nothing looks sound. */
static void poison_row(const slm_config *config, const slm_select_args *args, size_t t)
{
    for (size_t j = 0; j < config->top_k; j++) {
        *(int32_t *)element(&args->ids, t, j) = (int32_t)j;
        put(&args->weight, t, j, NAN);
    }
    if (args->cutoff.rank && config->top_k < config->n_experts)
        put(&args->cutoff, t, 0, NAN);
}

/* Whether a comes before b: key descending, then the lower id. A `taken` expert has a
 * NaN score and comes before nobody. */
static int is_before(float key_a, size_t a, float key_b, size_t b)
{
    if (isnan(key_a)) return 0;
    if (isnan(key_b)) return 1;
    return key_a > key_b || (key_a == key_b && a < b);
}

/* The expert that comes first among those left; its key. */
static size_t first_expert(const float *score, const slm_tensor *bias, size_t n,
                           float *key)
{
    size_t best = 0;

    *key = score[0] + get(bias, 0, 0);
    for (size_t e = 1; e < n; e++) {
        const float other = score[e] + get(bias, e, 0);

        if (!is_before(other, e, *key, best)) continue;
        best = e;
        *key = other;
    }
    return best;
}

/* The bias chooses; the raw score, never the key, becomes the weight.         R2, R3 */
static void choose_row(const slm_config *config, const slm_select_args *args, size_t t,
                       float *score)
{
    const size_t n = config->n_experts, k = config->top_k;
    float sum = 0, key;

    for (size_t j = 0; j < k; j++) {
        const size_t e = first_expert(score, &args->bias, n, &key);

        *(int32_t *)element(&args->ids, t, j) = (int32_t)e;
        put(&args->weight, t, j, score[e]);
        sum += score[e];
        score[e] = NAN; /* taken */
    }
    if (args->cutoff.rank && k < n) {
        first_expert(score, &args->bias, n, &key);
        put(&args->cutoff, t, 0, key);
    }
    if (config->weighting == SLM_WEIGHT_RELEASE) {
        if (k == 1) return;
        sum += 1e-20f;
    }
    for (size_t j = 0; j < k; j++)
        put(&args->weight, t, j,
            sum > 0 ? get(&args->weight, t, j) / sum : 1 / (float)k);
}

static slm_status select_experts(slm_handle *handle, const slm_select_args *args,
                                 slm_error *error)
{
    const size_t n = handle->config.n_experts;
    float *score = args->call.workspace;
    /* NONFINITE reaches a backend; slm_check_finite() looks for it. Nothing is written
     * before the last refusal.                                                   X1 */
    const slm_status status =
        slm_check_finite(SLM_OP_select, &handle->config, args, error);

    if (status != SLM_OK) return status;
    for (size_t t = 0; t < args->call.n_tokens; t++) {
        if (row_scores(args, t, n, score))
            choose_row(&handle->config, args, t, score);
        else
            poison_row(&handle->config, args, t);
    }
    return SLM_OK;
}

/* ---- situ_glu                                                               L1 ---- */

static slm_status situ_glu(slm_handle *handle, const slm_situ_glu_args *args,
                           slm_error *error)
{
    const size_t width = args->h.shape[1];
    const float beta_gate = (float)handle->config.beta_gate;
    const float beta_up = (float)handle->config.beta_up;

    (void)error;
    for (size_t t = 0; t < args->call.n_tokens; t++)
        for (size_t j = 0; j < width; j++) {
            const float a = get(&args->gate_up, t, j);
            const float b = get(&args->gate_up, t, width + j);
            const float gate = beta_gate * tanhf(a / beta_gate);
            const float up = beta_up * tanhf(b / beta_up);

            put(&args->h, t, j, gate * sigmoid(a) * up);
        }
    return SLM_OK;
}

/* ---- rmsnorm                                                                L2 ---- */

static slm_status rmsnorm(slm_handle *handle, const slm_rmsnorm_args *args,
                          slm_error *error)
{
    const size_t width = args->u.shape[1];

    (void)error;
    for (size_t t = 0; t < args->call.n_tokens; t++) {
        double sum = 0; /* the square of a binary32 may overflow a binary32 */

        for (size_t j = 0; j < width; j++) {
            const double u = get(&args->u, t, j);

            sum += u * u;
        }

        /* A row that is not finite becomes NaN as a whole (R4), not partly zero. */
        const double scale = isfinite(sum)
                                 ? 1 / sqrt(sum / (double)width + handle->config.eps)
                                 : (double)NAN;

        for (size_t j = 0; j < width; j++) {
            const double gamma = args->gamma.rank ? get(&args->gamma, j, 0) : 1;

            put(&args->r, t, j, (float)(get(&args->u, t, j) * scale * gamma));
        }
    }
    return SLM_OK;
}

/* ---- the table ---- */

/* What your sums and functions may be off by: the bounds are derived from it, and it is
 * part of the verdict. Declare what you know; `slmoe explain A1` says how each is used. */
static const slm_arithmetic arithmetic = {
    .struct_size = sizeof arithmetic,
    .accumulator = 0x1p-24, /* one addition of a dot product; bf16: 0x1p-8          */
    .input = 0,             /* rounding of factors; tf32: 0x1p-11                   */
    .sigmoid_ulp = 5,       /* relative error of sigmoid in units of 2^-24          */
    .tanh_ulp = 5,          /* of tanh                                              */
    .rsqrt_ulp = 2,         /* of 1/sqrt                                            */
};

/* Each NULL is a place to fill; `slmoe explain` prints the clause that it names. */
static const slm_ops operations = {
    .struct_size = sizeof operations,
    .select = select_experts,
    .situ_glu = situ_glu,
    .rmsnorm = rmsnorm,

    /* Level infer. */
    .route = NULL,         /* R1-R4: logits of x and w_router, then as select    */
    .permute = NULL,       /* R5, L5: counts, offsets, stable order of the pairs */
    .dense_ffn = NULL,     /* L1, L3: a gated feed-forward network at width d    */
    .layer_forward = NULL, /* R1-L6: all of it; needs prepare() in the table     */
    .load_metrics = NULL,  /* Q7: load, MaxVio, CV, dead experts, residual       */

    /* Level train: add SLM_LEVEL_TRAIN to the levels of the table. */
    .qb_exact = NULL,           /* Q1, Q2: order statistic of required biases */
    .qb_hist_accumulate = NULL, /* Q3: integer counts of required biases      */
    .qb_hist_solve = NULL,      /* Q3: new bias from pooled counts            */
    .sign_step = NULL,          /* Q6: the loss-free sign update              */

    /* Level dist: add SLM_LEVEL_DIST. */
    .qb_hist_merge = NULL, /* C1: pooled counts of several parts */
};

static const slm_backend table = {
    .struct_size = sizeof table,
    .abi_major = SLM_ABI_MAJOR,
    .abi_minor = SLM_ABI_MINOR,
    .name = "@NAME@",
    .version = "0.1",
    /* Promises: they are tested. */
    .flags = SLM_DETERMINISTIC | SLM_BATCH_INVARIANT | SLM_STRIDED,
    .levels = SLM_LEVEL_INFER,
    .arithmetic = &arithmetic,
    .ops = &operations,
    .supports = supports,
    .open = open_handle,
    .close = close_handle,
    /* Weights are packed once, before layer_forward. */
    .prepare = NULL,
    .workspace = workspace,
    /* Device memory: alloc, free, copy and sync, all four or none. */
    .alloc = NULL,
};

/* The one symbol of a plug-in. */
SLM_EXPORT const slm_backend *slm_backend_get(uint32_t host_major);

const slm_backend *slm_backend_get(uint32_t host_major)
{
    return host_major == SLM_ABI_MAJOR ? &table : NULL;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/study/rival.c - rules that tests of such layers use today, on y alone. */
#include "rival.h"

#include <math.h>

const char *rival_name(study_rival rival)
{
    static const char *const names[RIVALS] = {
        "PyTorch default of the dtype",
        "1e-2 / 1e-2 (KernelBench)",
        "3e-2 / 3e-2 (vLLM)",
        "0.1 / 0.85 for 92.5 % (FlashInfer)",
        "scaled by std for 97 % (FlashInfer)",
        "cosine-like < 1e-3 (DeepGEMM)",
        "NMSE <= 1e-7 (ggml)",
        "NMSE <= 5e-4 (ggml)",
    };

    return names[rival];
}

/* Share of elements within atol + rtol |r|. A NaN is not within. */
static double share_within(const double *y, const double *r, size_t n, double atol,
                           double rtol)
{
    size_t good = 0;

    for (size_t i = 0; i < n; i++)
        good += fabs(y[i] - r[i]) <= atol + rtol * fabs(r[i]);
    return (double)good / (double)n;
}

static double deviation(const double *r, size_t n)
{
    double mean = 0, squares = 0;

    for (size_t i = 0; i < n; i++) mean += r[i] / (double)n;
    for (size_t i = 0; i < n; i++) squares += (r[i] - mean) * (r[i] - mean);
    return sqrt(squares / (double)n);
}

static double share_scaled(const double *y, const double *r, size_t n)
{
    const double atol = fmax(0.05, 1.5 * fmax(deviation(r, n), 0.01));
    size_t good = 0;

    for (size_t i = 0; i < n; i++) {
        const double off = fabs(y[i] - r[i]);

        good += off < atol || off / (fabs(r[i]) + 1e-8) < 0.5;
    }
    return (double)good / (double)n;
}

static double dot(const double *a, const double *b, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

static double nmse(const double *y, const double *r, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++) sum += (y[i] - r[i]) * (y[i] - r[i]);
    return sum / dot(r, r, n);
}

bool rival_accepts(study_rival rival, const double *y, const double *r, size_t n,
                   slm_dtype dtype)
{
    switch (rival) {
    case RIVAL_TORCH:
        return share_within(y, r, n, 1e-5, dtype == SLM_BF16 ? 1.6e-2 : 1.3e-6) >= 1;
    case RIVAL_KERNEL:
        return share_within(y, r, n, 1e-2, 1e-2) >= 1;
    case RIVAL_SERVING:
        return share_within(y, r, n, 3e-2, 3e-2) >= 1;
    case RIVAL_MOST:
        return share_within(y, r, n, 0.1, 0.85) >= 0.925;
    case RIVAL_SCALED:
        return share_scaled(y, r, n) >= 0.97;
    case RIVAL_COSINE:
        return 1 - 2 * dot(y, r, n) / (dot(y, y, n) + dot(r, r, n)) < 1e-3;
    case RIVAL_NMSE_TIGHT:
        return nmse(y, r, n) <= 1e-7;
    case RIVAL_NMSE:
        return nmse(y, r, n) <= 5e-4;
    case RIVALS:
        break;
    }
    return false;
}

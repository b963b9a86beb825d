/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/rows_tile.h - combination and RMSNorm of a row, for one instruction set.
 *
 * Included once by each kernels_LEVEL.c. The vectors are the compiler's own, and each
 * element has the same operations in the same order whatever their width: all give the
 * same bits.
 *
 * Clause   L2, R4.
 * Method   RMSNorm: squares, sum, root and the products in binary64, one rounding to
 *          binary32 an element: no square can overflow or underflow on the way.
 * Order    slots ascending; eight partial sums of squares i mod 8, added from 0 to 7:
 *          fixed by the width alone. */

enum { PARTS = 8 };

typedef float eight __attribute__((vector_size(4 * PARTS)));
typedef double wide __attribute__((vector_size(8 * PARTS)));

static inline float element_of(const void *row, size_t i, int half)
{
    return half ? slm_cpu_of_bf16(((const uint16_t *)row)[i]) : ((const float *)row)[i];
}

/* `half`, of o, is a constant. */
static inline __attribute__((always_inline)) void
combine_rows(size_t k, size_t l, const float *weight, const int64_t *place,
             const void *o, int half, float *u)
{
    const size_t bytes = l * (half ? sizeof(uint16_t) : sizeof(float));

    for (size_t q = 0; q < k; q++) {
        const float p = weight[q];
        const void *row = (const char *)o + (size_t)place[q] * bytes;

        if (q == 0) {
#pragma omp simd
            for (size_t i = 0; i < l; i++) u[i] = p * element_of(row, i, half);
        } else {
#pragma omp simd
            for (size_t i = 0; i < l; i++) u[i] += p * element_of(row, i, half);
        }
    }
}

static void combine(size_t k, size_t l, const float *weight, const int64_t *place,
                    const float *o, float *u)
{
    combine_rows(k, l, weight, place, o, 0, u);
}

static void combine_half(size_t k, size_t l, const float *weight, const int64_t *place,
                         const uint16_t *o, float *u)
{
    combine_rows(k, l, weight, place, o, 1, u);
}

static double sum_of_squares(size_t width, const float *u)
{
    wide part = {0.0};
    double sum = 0.0;

    for (size_t i = 0; i < width; i += PARTS) {
        eight some = {0.0f};

        if (width - i >= PARTS)
            memcpy(&some, u + i, sizeof some);
        else
            memcpy(&some, u + i, (width - i) * sizeof *u);
        part +=
            __builtin_convertvector(some, wide) * __builtin_convertvector(some, wide);
    }
    for (size_t i = 0; i < PARTS; i++) sum += part[i];
    return sum;
}

static void rmsnorm(size_t width, const float *u, const float *gamma, double eps,
                    float *r)
{
    const double sum = sum_of_squares(width, u);
    /* An infinity in u would leave zeros beside it. */
    const double scale =
        isfinite(sum) ? 1.0 / sqrt(sum / (double)width + eps) : (double)NAN;

    if (gamma) {
#pragma omp simd
        for (size_t j = 0; j < width; j++)
            r[j] = (float)((double)gamma[j] * ((double)u[j] * scale));
    } else {
#pragma omp simd
        for (size_t j = 0; j < width; j++) r[j] = (float)((double)u[j] * scale);
    }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/bins.cuh - the bin of a required bias, that of exact rationals.               Q3
 *
 * A guess by multiplication is moved until it fits. alpha - s is compared with a table
 * of edges in binary64, and where these are too close to tell, by the sign of an exact
 * sum: also where min b - 1 is no binary64. */
#ifndef SLM_GPU_BINS_CUH
#define SLM_GPU_BINS_CUH

#include "pair.cuh"

/* lo and hi of the clause are least - 1 and most + 1. */
struct slm_gpu_bins {
    double least;
    double most;
    const double *edge; /* [count]: RN64 of lo + t (hi - lo) / count */
    int count;
    double per_width;
    double doubt; /* absolute error of an edge, far above the real one */
};

/* hi - lo. */
__device__ inline slm_gpu_pair slm_gpu_range_width(double least, double most)
{
    return slm_gpu_pair_add(slm_gpu_two_sum(most, -least), {2.0, 0.0});
}

/* lo + position (hi - lo) / count. */
__device__ inline slm_gpu_pair slm_gpu_along(double least, double most,
                                             slm_gpu_pair position, double count)
{
    const slm_gpu_pair width = slm_gpu_range_width(least, most);
    const slm_gpu_pair scaled = slm_gpu_pair_add(
        slm_gpu_pair_times(width, position.hi), slm_gpu_pair_times(width, position.lo));

    return slm_gpu_pair_add(slm_gpu_two_sum(least, -1.0),
                            slm_gpu_pair_over(scaled, count));
}

__device__ inline slm_gpu_bins slm_gpu_make_bins(const double *range,
                                                 const double *edge, int count)
{
    const double least = range[0], most = range[1];

    return {least,
            most,
            edge,
            count,
            (double)count / slm_gpu_range_width(least, most).hi,
            (fabs(least - 1.0) + fabs(most + 1.0)) * 0x1p-90};
}

/* alpha - s >= edge t, all exact:
 * B (alpha - s) - (B - t)(least - 1) - t (most + 1) >= 0. */
__device__ inline bool slm_gpu_reaches_exactly(const slm_gpu_bins &of, int t,
                                               float alpha, float score)
{
    const double whole = (double)of.count, part = (double)t, rest = whole - part;
    const slm_gpu_pair a = slm_gpu_two_product(whole, (double)alpha);
    const slm_gpu_pair b = slm_gpu_two_product(-whole, (double)score);
    const slm_gpu_pair c = slm_gpu_two_product(-rest, of.least);
    const slm_gpu_pair d = slm_gpu_two_product(-part, of.most);
    double term[] = {a.hi, a.lo, b.hi, b.lo, c.hi, c.lo, d.hi, d.lo, rest, -part};

    return slm_gpu_sign_of_sum(term) >= 0;
}

__device__ inline bool slm_gpu_reaches(const slm_gpu_bins &of, int t, double r,
                                       float alpha, float score)
{
    const double edge = of.edge[t];

    if (fabs(r - edge) <= fabs(edge) * 0x1p-50 + of.doubt)
        return slm_gpu_reaches_exactly(of, t, alpha, score);
    return r > edge;
}

/* One loop, so that the exact comparison is compiled once: up while the next edge is
 * reached, else down until the own one is. */
__device__ inline int slm_gpu_bin(const slm_gpu_bins &of, float alpha, float score)
{
    const double r = (double)alpha - (double)score;
    const double guess = (r - (of.least - 1.0)) * of.per_width;
    const double last = (double)(of.count - 1);
    int low = 0, high = of.count; /* the bin is in low .. high - 1 */
    int t = guess > 0.0 ? (int)(guess < last ? guess : last) : 0;

    t = t + 1 < high ? t + 1 : t;
    while (high - low > 1) {
        if (slm_gpu_reaches(of, t, r, alpha, score))
            low = t++;
        else
            high = t--;
        if (t <= low) t = low + 1;
        if (t >= high) t = high - 1;
    }
    return low;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/bounds_stages.c - the bound of each stage, beside its derivation.   A1 */
#include "bounds.h"
#include "interval.h"

/* ---- routing ---- */

/* sigma(l - d)(1 - c u) - eta - phi <= s <= min(1, sigma(l + d)(1 + c u) + eta + phi):
 * sigma is monotone. Below 2^-126 a naive form, whose exponential overflows, gives
 * 0. */
bound_interval bound_score(const bound_rules *rules, bound_interval logit, int real)
{
    const double eta = real ? 0 : rules->eta;
    const double phi = real ? 0 : rules->phi;
    bound_interval s = {
        wider_lo(sigma(logit.lo)) * (1 - rules->sigmoid) - eta - phi,
        wider_hi(wider_hi(sigma(logit.hi)) * (1 + rules->sigmoid) + eta + phi)};

    if (s.lo < 0 || (!real && s.lo < 0x1p-126)) s.lo = 0;
    if (s.hi > 1) s.hi = 1;
    return s;
}

/* Each logit moves by d at most, so a softmax score moves by a factor e^(2 d) at most;
 * its n terms are added in binary32 and two functions of c u enter. */
bound_interval bound_softmax(const bound_rules *rules, double s, double d, size_t n,
                             int real)
{
    const double rel =
        outward(expm1(2 * d) + 2 * rules->sigmoid + ((double)n + 2) * U32);
    const double eta = real ? 0 : rules->eta;
    const double phi = real ? 0 : rules->phi;
    bound_interval out = {wider_lo(s / (1 + rel)) - eta - phi,
                          wider_hi(s * (1 + rel)) + eta + phi};

    if (out.lo < 0 || (!real && out.lo < 0x1p-126)) out.lo = 0;
    if (out.hi > 1) out.hi = 1;
    return out;
}

/* k - 1 additions, one division, one store: (k + 2) u p is ample; the release's
 * constant costs one rounding and one addition more. */
double bound_weight(const bound_rules *rules, double p, size_t k, int release)
{
    const double roundings = (double)k + (release ? 4 : 2);

    return outward(roundings * U32 * p + rules->eta + rules->phi);
}

/* s / (s + others + c) grows with s and falls with the others. c = 0, or 1e-20 in the
 * release. Empty denominators give [0, 1]. */
bound_interval bound_weight_interval(const bound_rules *rules,
                                     const bound_interval *score, size_t k, size_t q,
                                     int release)
{
    const double added = release && k > 1 ? 1e-20 : 0;
    double others_lo = added, others_hi = added;
    bound_interval p = {0, 1};

    if (release && k == 1) return score[0];
    for (size_t i = 0; i < k; i++) {
        if (i == q) continue;
        others_lo += score[i].lo;
        others_hi += score[i].hi;
    }
    if (score[q].lo + others_hi > 0) p.lo = score[q].lo / (score[q].lo + others_hi);
    if (score[q].hi + others_lo > 0) p.hi = score[q].hi / (score[q].hi + others_lo);
    p.lo = fmax(0, wider_lo(p.lo - bound_weight(rules, p.lo, k, release)));
    p.hi = wider_hi(p.hi + bound_weight(rules, p.hi, k, release));
    return p;
}

/* Each of k weights is within (k + 2) u of its share of 1. */
double bound_weight_sum(size_t k)
{
    return outward(((double)k + 3) * U32);
}

/* ---- layer ---- */

/* SiTU-GLU: the product of three monotone factors, each in its interval, times b1 b2;
 * then six roundings of u (two quotients, four products) and an underflow in either
 * branch, magnified by the other: (b1 + b2 + 1)(eta + phi). As for scores, a sigma
 * below 2^-126 may have become 0. SwiGLU: a sigma(a) b, three roundings and underflow
 * magnified by |a| or |b|. ReLU: exact. */
bound_interval bound_activation(const bound_rules *rules, const slm_config *config,
                                bound_interval a, bound_interval b)
{
    const double least = rules->eta + rules->phi;
    double magnified;
    bound_interval out, s;

    if (config->expert == SLM_EXPERT_RELU)
        return (bound_interval){fmax(0, b.lo), fmax(0, b.hi)};
    s.lo = wider_lo(sigma(a.lo));
    s.hi = fmin(1, wider_hi(sigma(a.hi)));
    s = stretched(s, rules->sigmoid);
    s.hi = fmin(1, s.hi);
    if (s.lo < 0x1p-126) s.lo = 0;
    if (config->expert == SLM_EXPERT_SITU) {
        const double b1 = config->beta_gate, b2 = config->beta_up;

        out = times(times(capped(rules, a, b1), s), capped(rules, b, b2));
        out = times(out, (bound_interval){b1 * b2, b1 * b2});
        magnified = b1 + b2 + 1;
    } else {
        out = times(times(a, s), b);
        magnified = fmax(fabs(a.lo), fabs(a.hi)) + fmax(fabs(b.lo), fabs(b.hi)) + 1;
    }
    out = stretched(out, 6 * U32);
    if (isnan(out.lo) || isnan(out.hi)) return (bound_interval){-INFINITY, INFINITY};
    return (bound_interval){out.lo - magnified * least, out.hi + magnified * least};
}

/* tanh and sigma are at most 1 and round to nearest is monotone, so the computed
 * product is at most RN(b1 b2). A store is monotone, too: it keeps a limit that it
 * holds, a multiple of 2 v 2^e, and lifts another by v of it at most. */
double bound_activation_limit(const slm_config *config, double v)
{
    double limit = config->beta_gate * config->beta_up;

    if (config->expert != SLM_EXPERT_SITU) return INFINITY;
    if ((double)(float)limit != limit) limit *= 1 + 4 * U32;
    if (v <= U32 || fmod(limit, ldexp(2 * v, ilogb(limit))) == 0) return limit;
    return outward(limit * (1 + v));
}

/* The errors of o, weighted; one product and k - 1 additions, each of u of what is
 * summed; then the store. u is summed in binary32 or better (L2): a truncating
 * accumulator counts as 2^-23, a narrower one is no excuse. */
double bound_combine(const bound_rules *rules, double u, double gauge, double error,
                     size_t k, double v)
{
    const double each = fmin(fmax(rules->u, U32), 0x1p-23);
    const double sum = error + ((double)k + 1) * each * gauge +
                       ((double)k + 1) * (bound_least(rules, each) + rules->phi);

    return bound_store(rules, u, outward(sum), v);
}

/* |r^ - r| <= |r| [(1 - (K + 4) u)^(-1/2) (1 + u)^(c + 2) - 1]: the sum of squares has
 * only positive terms, so K u is its relative error; square, quotient, eps and the
 * addition of eps make 4; the root halves it; 1/sqrt has c u, two products follow.
 * Squares that underflow lose at most eta + phi each, against a mean of at least
 * eps. */
double bound_rmsnorm(const bound_rules *rules, double eps, size_t terms)
{
    const double inner =
        (double)terms * rules->u + 4 * U32 + rules->phi / eps + rules->eta / eps;

    if (!(inner < 1)) return INFINITY;
    return outward(expm1(-0.5 * log1p(-inner) + 2 * log1p(U32) + log1p(rules->rsqrt)));
}

/* r moves by e_i / R through u_i and by |u_i| |e|_2 / (sqrt(l) R^2) through the mean,
 * R the smallest root in reach: max(sqrt(eps), rho - |e|_2 / sqrt(l)). */
double bound_rmsnorm_spread(double u, double e, double e2, double rho, double eps,
                            size_t width)
{
    const double shift = e2 / sqrt((double)width);
    const double least = fmax(sqrt(eps), rho - shift) * (1 - 0x1p-40);

    return outward(e / least + (fabs(u) + e) * shift / (least * least));
}

/* ---- balancing ---- */

/* An order statistic moves no more than the values do; an interpolation takes a
 * quotient, two products and three additions of values no larger than `largest`. */
double bound_candidate(const bound_rules *rules, double candidate, double largest)
{
    return outward(8 * rules->balance * largest + 0x1p-53 * fabs(candidate));
}

/* Half an ulp of binary32 at |x| + error: the stored bias is rounded once. */
static double half_ulp(double x)
{
    const int exponent = x > 0 ? ilogb(x) : -149;

    return ldexp(1, (exponent < -126 ? -126 : exponent) - 24);
}

/* The mean of n candidates, one subtraction, one rounding to binary32. */
double bound_new_bias(const bound_rules *rules, double x, size_t n, double largest)
{
    const double error = ((double)n + 8) * rules->balance * largest;

    return outward(error + half_ulp(fabs(x) + error) + rules->eta);
}

/* delta = u (4 max(|lo|, |hi|) + 5 (hi - lo)): edge and required bias are each a few
 * operations on numbers of that size. */
double bound_hist_edge(const bound_rules *rules, double lo, double hi)
{
    return outward(rules->balance * (4 * fmax(fabs(lo), fabs(hi)) + 5 * (hi - lo)));
}

/* Sums of n deviations, each wrong by u of the largest load over the mean. */
double bound_metric(const bound_rules *rules, double value, double peak, size_t n)
{
    return outward(((double)n + 8) * rules->balance * (fabs(value) + peak + 1));
}

/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/bounds_backward.c - the bounds of gradients, beside their derivation. A1
 *
 * e = 2^-24, least = eta + phi: what one operation of binary32 loses, relatively and
 * where it underflows. */
#include "bounds.h"
#include "interval.h"

/* ---- slopes of the activation: G1 ---- */

/* sigma(x), within c_s. Below 2^-126 a naive form, whose exponential overflows, is 0. */
static bound_interval sigmoid(const bound_rules *rules, double x)
{
    const double s = sigma(x);
    bound_interval out =
        stretched((bound_interval){wider_lo(s), wider_hi(s)}, rules->sigmoid);

    out.hi = fmin(1, out.hi + rules->eta + rules->phi);
    if (out.lo < 0x1p-126) out.lo = 0;
    return out;
}

/* sech^2(x) at x = a / beta, relative however small it is: 1 - tanh^2 is none of its
 * forms. 4 q / (1 + q)^2, q = e^(-2 |x|), or 4 sigma(2 x) sigma(-2 x), or 1 / cosh^2:
 * two functions of c_s and four roundings. x itself is within 2 e (a quotient, or a
 * product with a rounded 1 / beta), and sech^2 has the condition number
 * 2 |x| tanh |x|. A sigma(-2 |x|) that may be 0 (R2) makes a sech^2 below 2^-124 0. */
static bound_interval sech2(const bound_rules *rules, double a, double beta)
{
    const double x = fabs(a / beta);
    const double q = exp(-2 * x);
    const double value = 4 * q / ((1 + q) * (1 + q));
    const double rel =
        2 * rules->sigmoid + 4 * U32 + (isinf(x) ? 0 : 4 * x * tanh(x) * U32);
    bound_interval out =
        stretched((bound_interval){wider_lo(value), wider_hi(value)}, outward(rel));

    if (isinf(x)) return (bound_interval){0, 0};
    out.hi += 4 * (rules->eta + rules->phi);
    if (out.lo < 0x1p-124) out.lo = 0;
    return out;
}

static bound_interval cap(const bound_rules *rules, double a, double beta)
{
    return times(capped(rules, (bound_interval){a, a}, beta),
                 (bound_interval){beta, beta});
}

static bound_interval scaled(bound_interval a, double factor)
{
    return times(a, (bound_interval){factor, factor});
}

static bound_interval plus(bound_interval a, bound_interval b)
{
    return (bound_interval){wider_lo(a.lo + b.lo), wider_hi(a.hi + b.hi)};
}

static int is_zero(bound_interval a)
{
    return a.lo == 0 && a.hi == 0;
}

/* Any product of some of the factors may underflow and is then multiplied by the others,
 * whose product is at most `magnified`; there are seven factors at most. A product with
 * an exact 0 is 0. Where one of them may overflow nothing is known. */
static bound_interval underflowing(const bound_rules *rules, bound_interval a,
                                   double magnified)
{
    const double least = 6 * (rules->eta + rules->phi) * magnified;

    if (is_zero(a)) return a;
    if (isnan(a.lo) || isnan(a.hi) || magnified >= 0x1p127)
        return (bound_interval){-INFINITY, INFINITY};
    return (bound_interval){a.lo - least, a.hi + least};
}

/* SiTU: dh U (t1 + t2), t1 = sigma sech^2, t2 = B1 tanh sigma sigma(-a). However it is
 * factored, each of the two terms is a product of seven factors at most: six roundings,
 * two in the argument of each tanh, whose condition number is at most 1, and one of the
 * sum: less than 12. t1 and t2 cancel where a < 0, so their errors are added and not
 * those of the sum. SwiGLU: dh b (sigma + a sigma sigma(-a)), five roundings. */
bound_interval bound_gate_slope(const bound_rules *rules, const slm_config *config,
                                double a, double b, double dh)
{
    const bound_interval s = sigmoid(rules, a), rest = sigmoid(rules, -a);
    const double b1 = config->beta_gate, b2 = config->beta_up;
    bound_interval first, second, up;

    if (dh == 0 || b == 0) return (bound_interval){0, 0};
    if (config->expert == SLM_EXPERT_SWIGLU) {
        first = scaled(scaled(s, dh), b);
        second = times(scaled(scaled(rest, dh), b), scaled(s, a));
        first = plus(stretched(first, 6 * U32), stretched(second, 6 * U32));
        return underflowing(rules, first,
                            (1 + fabs(dh)) * (1 + fabs(a)) * (1 + fabs(b)));
    }
    if (isinf(a)) return (bound_interval){0, 0};
    up = scaled(cap(rules, b, b2), dh);
    first = times(up, times(s, sech2(rules, a, b1)));
    second = times(up, times(cap(rules, a, b1), times(s, rest)));
    first = plus(stretched(first, 12 * U32), stretched(second, 12 * U32));
    return underflowing(rules, first, (1 + fabs(dh)) * (1 + b1) * (1 + b2));
}

/* SiTU: dh B1 tanh sigma sech^2, five factors: four roundings and two in the argument of
 * tanh. SwiGLU: dh a sigma. */
bound_interval bound_up_slope(const bound_rules *rules, const slm_config *config,
                              double a, double b, double dh)
{
    const bound_interval s = sigmoid(rules, a);
    const double b1 = config->beta_gate;
    bound_interval out;

    if (dh == 0 || a == 0) return (bound_interval){0, 0};
    if (config->expert == SLM_EXPERT_SWIGLU) {
        out = stretched(scaled(scaled(s, a), dh), 3 * U32);
        return underflowing(rules, out, (1 + fabs(dh)) * (1 + fabs(a)));
    }
    if (a == -INFINITY) return (bound_interval){0, 0};
    out = times(times(cap(rules, a, b1), s), sech2(rules, b, config->beta_up));
    out = stretched(scaled(out, dh), 6 * U32);
    return underflowing(rules, out, (1 + fabs(dh)) * (1 + b1));
}

/* ---- RMSNorm: G2 ---- */

/* |g| / R is one product with 1 / R and the rounding of g; n m / R has 1 / R three times
 * (n, the n inside of m, and the last factor), the K roundings u of the mean's sum, its
 * quotient, the roundings of g and of each product: 8 e. Both meet in one subtraction.
 * The mean is known to its gauge, not to itself. Whatever underflows is multiplied by
 * the factors that are still missing: 1 / R, n / R, and in the form that divides by l
 * R^3 once u / R^3. */
double bound_norm_slope(const bound_rules *rules, const bound_norm_row *row, double g,
                        double n)
{
    const double inverse = 1 / row->root;
    const double least = rules->eta + rules->phi;
    const double first = fabs(g) * (row->rel + 4 * U32);
    const double second =
        fabs(n) * row->mean *
        (3 * row->rel + ((double)row->terms + 1) * rules->u + 8 * U32);
    const double lost =
        least *
        (2 + 2 * inverse + fabs(n) * (3 * inverse + inverse * inverse + row->root) +
         row->mean * inverse);

    if (g == 0 && (n == 0 || row->mean == 0)) return 0;
    return outward((first + second) * inverse + lost);
}

/* Either n is made first, within R's error and its own rounding, or dr u is and meets
 * 1 / R, which magnifies what it lost. */
double bound_norm_factor(const bound_rules *rules, const bound_norm_row *row, double n)
{
    if (n == 0) return 0;
    return outward(fabs(n) * (row->rel + 2 * U32) +
                   (rules->eta + rules->phi) * (1 + 1 / row->root));
}

/* ---- weights: G3 ---- */

/* As a row of weights: s / sum with each score in its interval, and what the scores may
 * lose to underflow, against the sum. A score below 2^-126 may have become 0, and a
 * ratio of a sum below 2^-100 is lost altogether (R3). */
void bound_choice_weights(const bound_rules *rules, const double *logit, size_t k,
                          int release, bound_interval *score, bound_interval *p)
{
    double sum = release && k > 1 ? 1e-20 : 0, least = 1, lost;

    for (size_t q = 0; q < k; q++) {
        score[q] = bound_score(rules, bound_around(logit[q], 0), 1);
        sum += sigma(logit[q]);
        least = fmin(least, sigma(logit[q]));
    }
    lost = rules->eta + rules->phi + (least < 0x1p-126 ? 0x1p-126 : 0);
    lost = release && k == 1 ? lost : outward((double)k * lost / sum);
    for (size_t q = 0; q < k; q++) {
        p[q] = bound_weight_interval(rules, score, k, q, release);
        p[q].lo = fmax(0, p[q].lo - lost);
        p[q].hi = fmin(1 + 4 * U32, p[q].hi + lost);
        if (sigma(logit[q]) < 0x1p-126) p[q].lo = 0;
        if (!release && sum < 0x1p-100) p[q] = (bound_interval){0, 1 + 4 * U32};
    }
}

/* D = dp - sum p dp, or the sum of p_i (dp - dp_i): k products and k additions, and the
 * row of p sums to 1 within (k + 3) e. D cancels, so its error is that of its gauge
 * |dp| + sum p |dp|. Then a product of three factors (p may be s / sum): four
 * roundings, and an underflow that |D| magnifies. */
bound_interval bound_choice_slope(const bound_rules *rules, const bound_interval *p,
                                  const double *dp, size_t k, size_t q, double logit,
                                  int alone)
{
    const double least = rules->eta + rules->phi;
    const double roundings = 2 * (double)k + 6;
    bound_interval mean = {0, 0}, d = {dp[q], dp[q]}, out;
    double gauge = fabs(dp[q]), most;

    for (size_t i = 0; i < k && !alone; i++) {
        mean = plus(mean, scaled(p[i], dp[i]));
        gauge += p[i].hi * fabs(dp[i]);
    }
    if (gauge == 0) return (bound_interval){0, 0};
    if (!alone) {
        const double error = outward(roundings * U32 * gauge + ((double)k + 1) * least);

        d = plus(d, (bound_interval){-mean.hi - error, -mean.lo + error});
    }
    most = fmax(fabs(d.lo), fabs(d.hi));
    out = stretched(times(times(p[q], sigmoid(rules, -logit)), d), 4 * U32);
    return (bound_interval){out.lo - least * (2 + most), out.hi + least * (2 + most)};
}

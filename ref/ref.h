/* SPDX-License-Identifier: Apache-2.0 */
/* ref/ref.h - the exact reference: every number a ball, rounded once with proof.
 *
 * A ball (FLINT's arb_t) is a midpoint and a rigorous radius. The functions read like
 * their clauses; `prec` is the working precision in bits: the judge asks for
 * SLM_REF_JUDGE, golden values are repeated at doubled precision until both ends of the
 * ball round to the same element (round.c). Vectors of balls belong to the caller
 * (_arb_vec_init). No function here allocates for its caller or keeps state. */
#ifndef SLM_REF_H
#define SLM_REF_H

#if __has_include(<flint/arb.h>)
#include <flint/arb.h>
#include <flint/fmpq.h>
#else
#include <arb.h>
#include <flint/fmpq.h>
#endif

#include <slm/backend.h>

enum { SLM_REF_JUDGE = 64, SLM_REF_FIRST = 128, SLM_REF_CAP = 4096 };

/* ---- round.c: from balls to elements, and back ---- */

/* Round to nearest, ties to even, subnormals and overflow to infinity as in IEEE 754.
 * Returns 1 when every number in the ball rounds to *out (+0 and -0 count as one), else
 * 0 with *out unchanged. */
int slm_ref_f32(float *out, const arb_t value);
int slm_ref_f64(double *out, const arb_t value);
int slm_ref_bf16(uint16_t *out, const arb_t value);

/* Exact rationals, rounded once: always decided. */
float slm_ref_f32_q(const fmpq_t value);
double slm_ref_f64_q(const fmpq_t value);

/* RN32(s + b), the selection key.                                               R2 */
float slm_ref_key(float score, float bias);

/* eps of a configuration as the rational that its shortest decimal denotes.     X3 */
void slm_ref_decimal(fmpq_t out, double value);

/* One element of a tensor of any dtype as a double (exact; i64 up to 2^53), by its
 * row-major index. */
double slm_ref_get(const slm_tensor *tensor, size_t index);

/* A rank-1 view as exact balls (infinities and NaN stay what they are). */
void slm_ref_load(arb_ptr out, const slm_tensor *row);

/* ---- ffn.c ---- */

/* y[i] = sum_j w[i,j] x[j]; gauge[i] = sum_j |w[i,j]| |x[j]| unless gauge is NULL.
 *
 *   w      [rows, cols] view; x [cols] balls; y, gauge [rows] balls, not aliasing x
 *   exact  with exact x and prec >= 1024 the result is exact (radius 0)
 *
 * Rows are shared among OpenMP threads; each is one dot product, so the result does
 * not depend on their number. */
void slm_ref_linear(arb_ptr y, arb_ptr gauge, const slm_tensor *w, arb_srcptr x,
                    slong prec);

/* y[j] = sum_i w[i,j] x[i]; gauge[j] = sum_i |w[i,j]| |x[i]| unless gauge is NULL: what
 * slm_ref_linear() does to a gradient.                                       G1, G4
 *
 *   w  [rows, cols] view; x [rows] balls; y, gauge [cols] balls, not aliasing x */
void slm_ref_linear_transposed(arb_ptr y, arb_ptr gauge, const slm_tensor *w,
                               arb_srcptr x, slong prec);

/* Threads that slm_ref_linear() may use when called from this thread, from now on. */
void slm_ref_use_threads(int n);

/* ---- situ.c ---- */

void slm_ref_sigmoid(arb_t out, const arb_t a, slong prec);

/* beta tanh(a / beta). */
void slm_ref_softcap(arb_t out, const arb_t a, double beta, slong prec);

/* beta_gate tanh(a/beta_gate) sigma(a) beta_up tanh(b/beta_up); a = -inf / +inf is its
 * limit. out may be a or b.                                                     L1 */
void slm_ref_situ_glu(arb_t out, const arb_t a, const arb_t b, double beta_gate,
                      double beta_up, slong prec);

/* The configuration's activation: SiTU-GLU, a sigma(a) b, or max(0, b).      L1, L4 */
void slm_ref_activation(arb_t out, const arb_t a, const arb_t b,
                        const slm_config *config, slong prec);

/* The activation's factors and their slopes: h = G(a) U(b); kinds situ and swiglu
 * alone. At an infinity each is its limit (swiglu: finite arguments alone). Exact
 * arguments give balls that are narrow relative to the value, however far in saturation
 * (G' near its one zero, a = -1.2..-1.3: relative to its two terms); a slope that is
 * exactly 1, 1/2 or 0 is an exact ball. out may be the argument.             G1, L4 */
void slm_ref_gate(arb_t out, const arb_t a, const slm_config *config, slong prec);
void slm_ref_gate_slope(arb_t out, const arb_t a, const slm_config *config, slong prec);
void slm_ref_up(arb_t out, const arb_t b, const slm_config *config, slong prec);
void slm_ref_up_slope(arb_t out, const arb_t b, const slm_config *config, slong prec);

/* da = dh G'(a) U(b), db = dh G(a) U'(b) of the configuration's kind, situ or swiglu;
 * da and db alias no argument and not each other. The operation situ_glu_backward is
 * SiTU whatever config->expert says.                                            G1 */
void slm_ref_situ_glu_backward(arb_t da, arb_t db, const arb_t a, const arb_t b,
                               const arb_t dh, const slm_config *config, slong prec);

/* ---- select.c ---- */

/* Real scores of one row of real logits: sigmoid, or softmax over the row.   R2, L4 */
void slm_ref_scores(arb_ptr score, arb_srcptr logit, const slm_config *config,
                    slong prec);

/* ids [k] and, when k < n, *cutoff from binary32 keys [n]: key descending, then lower
 * id. Keys must not be NaN.                                                     R2 */
void slm_ref_choose(int32_t *ids, float *cutoff, const float *key, size_t n, size_t k);

/* weight [k] from the real scores [n] of the row and the chosen ids.            R3 */
void slm_ref_mixture(arb_ptr weight, arb_srcptr score, const int32_t *ids,
                     const slm_config *config, slong prec);

/* ---- select_backward.c ---- */

/* dlogit [n] of one row from its real logits [n], the chosen ids [k] and the gradients
 * [k] of their weights; scores are sigmoids. dlogit[e] = p (1 - s) (dp - sum p dp)
 * where e was chosen, exactly 0 elsewhere; where all dp are one exact number (k = 1
 * included) ratio gives exactly 0. dlogit aliases nothing.                      G3 */
void slm_ref_mixture_backward(arb_ptr dlogit, arb_srcptr logit, const int32_t *ids,
                              arb_srcptr dweight, const slm_config *config, slong prec);

/* ---- rmsnorm.c ---- */

/* r[i] = gamma[i] u[i] / sqrt(mean(u^2) + eps); gamma NULL means ones; r may be u. L2 */
void slm_ref_rmsnorm(arb_ptr r, arb_srcptr u, arb_srcptr gamma, size_t width,
                     const fmpq_t eps, slong prec);

/* One row, with R = sqrt(mean(u^2) + eps), n = u / R, g = gamma dr (gamma NULL: ones):
 *
 *   du[i] = (g[i] - n[i] mean(g n)) / R       [width]
 *   dgamma[i] = dr[i] n[i]                    [width] this row's addend, or NULL
 *
 * du and dgamma alias nothing. A ball of u so wide that mean(u^2) + eps may not be
 * positive gives balls that are not finite.                                     G2 */
void slm_ref_rmsnorm_backward(arb_ptr du, arb_ptr dgamma, arb_srcptr u,
                              arb_srcptr gamma, arb_srcptr dr, size_t width,
                              const fmpq_t eps, slong prec);

/* ---- layer.c ---- */

/* u[i] = sum over slots of p[q] o[q,i], gauge of absolute values unless NULL.   L2 */
void slm_ref_combine(arb_ptr u, arb_ptr gauge, arb_srcptr p, arb_srcptr o, size_t k,
                     size_t width, slong prec);

/* ---- qb.c, hist.c: exact rationals ---- */

/* 0-based ascending index of the order statistic: floor((k (m-1) + n-1) / n). m >= 1,
 * k <= n; exact for every size_t.                                               Q1 */
size_t slm_ref_quantile_index(size_t m, size_t n, size_t k);

/* lo and hi of the histogram: min b - 1, max b + 1.                             Q3 */
void slm_ref_hist_range(fmpq_t lo, fmpq_t hi, const float *bias, size_t n);

/* Bin of r: clamp(floor((r - lo) B / (hi - lo)), 0, B - 1).                     Q3 */
size_t slm_ref_hist_bin(const fmpq_t r, const fmpq_t lo, const fmpq_t hi, size_t bins);

/* ---- backend.c: the same operations behind the table ---- */

/* The reference as a backend. Its operations accept what the contract accepts; beyond
 * it, a real-valued output may be SLM_F64: then the real number is rounded to binary64,
 * which is how golden values are made. A value that no precision up to SLM_REF_CAP
 * decides gives SLM_ERR_INTERNAL with the field, its index and "unproved ...". */
const slm_backend *slm_ref_backend(void);

#endif

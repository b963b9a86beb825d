/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/trial.c - one outcome tried, stage by stage, element by element. */
#include "trial.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>

void *stage_array(size_t n, size_t size)
{
    return flint_calloc(n ? n : 1, size);
}

void stage_release(void *array)
{
    flint_free(array);
}

const slm_tensor *stage_written(const judge_trial *trial, const char *field)
{
    const slm_tensor *tensor = frame_tensor(trial->frame, field);

    if (!tensor || tensor->rank == 0 || frame_untouched(trial->frame, field))
        return NULL;
    return tensor;
}

/* The first line that fits holds; SLM_OP_COUNT stands for any operation. */
static const struct {
    slm_op op;
    const char *field;
    const char *clause;
} clauses[] = {
    {SLM_OP_qb_exact, "cutoff", "Q1"},
    {SLM_OP_qb_exact, "candidate", "Q1"},
    {SLM_OP_qb_exact, "new_bias", "Q1"},
    {SLM_OP_sign_step, "new_bias", "Q6"},
    {SLM_OP_qb_hist_merge, "hist", "C1"},
    {SLM_OP_qb_commit, "hist", "Q8"},
    {SLM_OP_qb_commit, "bias", "Q8"},
    {SLM_OP_COUNT, "stamp", "Q8"},
    {SLM_OP_COUNT, "logit", "R1"},
    {SLM_OP_COUNT, "score", "R2"},
    {SLM_OP_COUNT, "ids", "R2"},
    {SLM_OP_COUNT, "cutoff", "R2"},
    {SLM_OP_COUNT, "weight", "R3"},
    {SLM_OP_COUNT, "counts", "L5"},
    {SLM_OP_COUNT, "offsets", "L5"},
    {SLM_OP_COUNT, "order", "L5"},
    {SLM_OP_COUNT, "z", "L6"},
    {SLM_OP_COUNT, "h", "L1"},
    {SLM_OP_COUNT, "gate_up", "L6"},
    {SLM_OP_COUNT, "o", "L6"},
    {SLM_OP_COUNT, "u", "L2"},
    {SLM_OP_COUNT, "r", "L2"},
    {SLM_OP_COUNT, "shared_gate_up", "L3"},
    {SLM_OP_COUNT, "hs", "L3"},
    {SLM_OP_COUNT, "y", "L6"},
    {SLM_OP_COUNT, "dgate_up", "G1"},
    {SLM_OP_COUNT, "dshared_gate_up", "G1"},
    {SLM_OP_COUNT, "du", "G2"},
    {SLM_OP_COUNT, "dgamma", "G2"},
    {SLM_OP_COUNT, "dlogit", "G3"},
    {SLM_OP_COUNT, "dbias", "G5"},
    {SLM_OP_COUNT, "dr", "G4"},
    {SLM_OP_COUNT, "dweight", "G4"},
    {SLM_OP_COUNT, "dh", "G4"},
    {SLM_OP_COUNT, "dz", "G4"},
    {SLM_OP_COUNT, "dhs", "G4"},
    {SLM_OP_COUNT, "dx", "G4"},
    {SLM_OP_COUNT, "dw_router", "G4"},
    {SLM_OP_COUNT, "dw_down", "G4"},
    {SLM_OP_COUNT, "dw_gate", "G4"},
    {SLM_OP_COUNT, "dw_up", "G4"},
    {SLM_OP_COUNT, "dw_out", "G4"},
    {SLM_OP_COUNT, "dw_expert", "G4"},
    {SLM_OP_COUNT, "dw_lift", "G4"},
    {SLM_OP_COUNT, "dw_shared_gate", "G4"},
    {SLM_OP_COUNT, "dw_shared_up", "G4"},
    {SLM_OP_COUNT, "dw_shared_out", "G4"},
    {SLM_OP_COUNT, "dw_shared", "G4"},
    {SLM_OP_COUNT, "hist", "Q3"},
    {SLM_OP_COUNT, "candidate", "Q3"},
    {SLM_OP_COUNT, "new_bias", "Q3"},
    {SLM_OP_COUNT, "load", "Q7"},
    {SLM_OP_COUNT, "metric", "Q7"},
};

const char *stage_clause(slm_op op, const char *field)
{
    for (size_t i = 0; i < sizeof clauses / sizeof *clauses; i++)
        if ((clauses[i].op == op || clauses[i].op == SLM_OP_COUNT) &&
            strcmp(clauses[i].field, field) == 0)
            return clauses[i].clause;
    return "X1";
}

void stage_open_nan(judge_trial *trial, const char *field)
{
    stage_open_under(trial, field, "R4");
}

void stage_open_under(judge_trial *trial, const char *field, const char *clause)
{
    stage_open(trial, field);
    trial->clause = clause;
}

void stage_open(judge_trial *trial, const char *field)
{
    judge_verdict *verdict = trial->verdict;

    trial->clause = stage_clause(trial->test->op, field);
    trial->tensor = frame_tensor(trial->frame, field);
    trial->golden = vec_find(trial->outcome->out, trial->outcome->n_out, field);
    for (size_t i = 0; i < verdict->n_stages; i++)
        if (strcmp(verdict->stages[i].name, field) == 0) {
            trial->stage = &verdict->stages[i];
            return;
        }
    trial->stage = &verdict->stages[verdict->n_stages++];
    *trial->stage = (judge_stage){.name = field};
}

void stage_record(judge_trial *trial, size_t index, double multiple, const char *got,
                  const char *want)
{
    judge_verdict *verdict = trial->verdict;
    judge_stage *stage = trial->stage;

    stage->checked++;
    if (!(multiple <= stage->used)) stage->used = multiple;
    if (multiple <= 1) return;
    stage->failed++;
    verdict->state = JUDGE_FAIL;
    if (verdict->reason[0] || (trial->guilty && trial->guilty <= stage)) return;
    trial->guilty = stage;
    snprintf(verdict->clause, sizeof verdict->clause, "%s", trial->clause);
    snprintf(verdict->stage, sizeof verdict->stage, "%s", stage->name);
    compare_say_place(verdict->place, stage->name, trial->tensor, index);
    snprintf(verdict->got, sizeof verdict->got, "%s", got);
    snprintf(verdict->want, sizeof verdict->want, "%s", want);
    verdict->multiple = multiple;
}

void stage_record_exact(judge_trial *trial, size_t index, int same, const char *got,
                        const char *want)
{
    const judge_stage *guilty = trial->guilty;

    stage_record(trial, index, same ? 0 : INFINITY, got, want);
    if (trial->guilty != guilty) trial->verdict->multiple = 0;
}

void stage_exact(judge_trial *trial, size_t index, double want)
{
    const double got = slm_ref_get(trial->tensor, index);
    char say_got[COMPARE_TEXT] = "", say_want[COMPARE_TEXT] = "";
    const int same = compare_same(got, want);

    if (!same) {
        compare_say(say_got, got);
        compare_say(say_want, want);
    }
    stage_record_exact(trial, index, same, say_got, say_want);
}

void stage_zeros(judge_trial *trial, size_t first, size_t n)
{
    for (size_t i = first; i < first + n; i++)
        if (slm_ref_get(trial->tensor, i) == 0)
            trial->stage->checked++;
        else
            stage_exact(trial, i, 0);
}

void stage_integer(judge_trial *trial, size_t index, int64_t want)
{
    const int64_t got = compare_integer(trial->tensor, index);
    char say_got[COMPARE_TEXT], say_want[COMPARE_TEXT];

    snprintf(say_got, sizeof say_got, "%lld", (long long)got);
    snprintf(say_want, sizeof say_want, "%lld", (long long)want);
    stage_record_exact(trial, index, got == want, say_got, say_want);
}

/* |got - want| over the bound; a bound of 0 leaves no room. */
static double multiple_of(double got, const arb_t want, double bound, slm_dtype dtype)
{
    const double distance = compare_distance(got, want, dtype);

    if (distance == 0) return 0;
    return bound > 0 ? distance / bound : INFINITY;
}

void stage_real(judge_trial *trial, size_t index, const arb_t want, double bound,
                int by_file)
{
    const slm_tensor *tensor = trial->tensor;
    const double got = slm_ref_get(tensor, index);
    char say_got[COMPARE_TEXT] = "", say_want[COMPARE_WANT] = "";
    double radius, multiple;
    arb_t wanted;

    arb_init(wanted);
    arb_set(wanted, want);
    if (compare_is_fixed(trial->golden, index)) {
        const slm_tensor view = compare_golden_view(trial->golden);
        const double golden = slm_ref_get(&view, index);

        if (isnan(golden)) {
            const char *clause = trial->clause;

            trial->clause = "R4";
            stage_exact(trial, index, golden);
            trial->clause = clause;
            arb_clear(wanted);
            return;
        }
        if (by_file) {
            arb_set_d(wanted, golden);
            bound += 0x1p-53 * fabs(golden) + 0x1p-1074;
        }
    }
    if (arb_is_finite(wanted) && bound < (double)INFINITY) {
        multiple = multiple_of(got, wanted, bound, tensor->dtype);
        if (!(multiple <= 1)) {
            compare_say(say_got, got);
            compare_say_want(say_want, stage_middle(wanted, &radius), bound);
        }
        stage_record(trial, index, multiple, say_got, say_want);
    }
    arb_clear(wanted);
}

/* Where doubles do not decide it, balls do. */
void stage_double(judge_trial *trial, size_t index, double want, double bound)
{
    const double distance = fabs(slm_ref_get(trial->tensor, index) - want);
    arb_t wanted;

    if (!(bound < (double)INFINITY)) return;
    if (distance == 0 || distance <= bound) {
        stage_record(trial, index, distance == 0 ? 0 : distance / bound, "", "");
        return;
    }
    arb_init(wanted);
    arb_set_d(wanted, want);
    stage_real(trial, index, wanted, bound, 0);
    arb_clear(wanted);
}

void stage_fail(judge_trial *trial, const char *clause, const char *reason, ...)
{
    judge_verdict *verdict = trial->verdict;
    va_list list;

    verdict->state = JUDGE_FAIL;
    if (verdict->clause[0] || verdict->reason[0]) return;
    snprintf(verdict->clause, sizeof verdict->clause, "%s", clause);
    va_start(list, reason);
    vsnprintf(verdict->reason, sizeof verdict->reason, reason, list);
    va_end(list);
}

void stage_row(double *out, const slm_tensor *row)
{
    for (size_t i = 0; i < row->shape[0]; i++) out[i] = slm_ref_get(row, i);
}

void stage_balls(arb_ptr out, const double *values, size_t n)
{
    for (size_t i = 0; i < n; i++) arb_set_d(out + i, values[i]);
}

double stage_middle(const arb_t ball, double *radius)
{
    const double middle = arf_get_d(arb_midref(ball), ARF_RND_NEAR);

    *radius = mag_get_d(arb_radref(ball));
    if (isinf(middle)) return middle;
    *radius += 0x1p-52 * fabs(middle);
    if (middle != 0 && fabs(middle) < 0x1p-1000) *radius += 0x1p-1000;
    return middle;
}

void stage_linear(const judge_trial *trial, arb_ptr y, bound_dot *dots,
                  const slm_tensor *w, const double *x, const double *dx)
{
    const size_t rows = w->shape[0];
    const size_t cols = w->shape[1];
    arb_ptr exact = _arb_vec_init((slong)cols);
    double *row = stage_array(cols, sizeof *row);

    stage_balls(exact, x, cols);
    slm_ref_linear(y, NULL, w, exact, SLM_REF_JUDGE);
    for (size_t i = 0; i < rows; i++) {
        const slm_tensor view = slm_tensor_at(w, i);

        if (!arb_is_finite(y + i)) {
            dots[i].gauge = INFINITY;
            continue;
        }
        stage_row(row, &view);
        bound_dot_add(&dots[i], &trial->rules, row, x, dx, cols);
    }
    stage_release(row);
    _arb_vec_clear(exact, (slong)cols);
}

/* One column of a matrix at a time is what a dot of it needs; a stripe of them is read
 * at once. */
enum { STRIPE = 64 };

static void read_stripe(double *out, const slm_tensor *w, size_t first, size_t n)
{
    const size_t rows = w->shape[0], cols = w->shape[1];

    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < n; j++)
            out[j * rows + i] = slm_ref_get(w, i * cols + first + j);
}

void stage_transposed(const judge_trial *trial, arb_ptr y, bound_dot *dots,
                      const slm_tensor *w, const double *x)
{
    const size_t rows = w->shape[0], cols = w->shape[1];
    arb_ptr exact = _arb_vec_init((slong)rows), part = _arb_vec_init((slong)cols);
    double *stripe = stage_array(rows * STRIPE, sizeof *stripe);

    stage_balls(exact, x, rows);
    slm_ref_linear_transposed(part, NULL, w, exact, SLM_REF_JUDGE);
    for (size_t first = 0; first < cols; first += STRIPE) {
        const size_t n = cols - first < STRIPE ? cols - first : STRIPE;

        read_stripe(stripe, w, first, n);
        for (size_t j = 0; j < n; j++)
            bound_dot_add(&dots[first + j], &trial->rules, stripe + j * rows, x, NULL,
                          rows);
    }
    _arb_vec_add(y, y, part, (slong)cols, SLM_REF_JUDGE);
    stage_release(stripe);
    _arb_vec_clear(part, (slong)cols);
    _arb_vec_clear(exact, (slong)rows);
}

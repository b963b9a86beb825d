/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/judge.c - the verdict over one executed case.
 *
 * Two authorities: the file decides what the inputs fix, live ref decides what depends
 * on the backend's own values. A case with several outcomes conforms when it meets one
 * of them whole. */
#include "judge.h"
#include "controls.h"
#include "trial.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *judge_state_name(judge_state state)
{
    static const char *const names[JUDGE_STATES] = {"PASS",  "FAIL",    "XFAIL",
                                                    "XPASS", "SKIP",    "VACUOUS",
                                                    "CRASH", "TIMEOUT", "ERROR"};

    return (unsigned)state < JUDGE_STATES ? names[state] : "unknown state";
}

const char *judge_control_name(judge_control control)
{
    static const char *const names[JUDGE_CONTROLS] = {"zeros", "constant", "rotated",
                                                      "dropped"};

    return (unsigned)control < JUDGE_CONTROLS ? names[control] : "unknown control";
}

const char *judge_null_name(judge_null null)
{
    static const char *const names[] = {"none", "same", "fails", "passes"};

    return (unsigned)null <= JUDGE_NULL_PASSES ? names[null] : "unknown outcome";
}

static int is_output(const slm_field *field)
{
    return field->role == SLM_ROLE_OUT || field->role == SLM_ROLE_TAP ||
           field->role == SLM_ROLE_INOUT;
}

/* ---- refusals ---- */

/* An output that is input, too, must still hold what the file gave. */
static int is_unchanged(const judge_trial *trial, const slm_field *field)
{
    const vec_tensor *given = vec_find(trial->test->in, trial->test->n_in, field->name);
    const slm_tensor *tensor = frame_tensor(trial->frame, field->name);
    void *values;
    int same;

    if (field->role != SLM_ROLE_INOUT)
        return frame_untouched(trial->frame, field->name);
    /* What lies in an input's memory is seen there. */
    if (!given || !tensor || tensor->rank == 0 || trial->test->alias_output == field)
        return 1;
    values = stage_array(given->count, slm_dtype_size(given->dtype));
    vec_values(given, values);
    same =
        memcmp(values, tensor->data, given->count * slm_dtype_size(given->dtype)) == 0;
    stage_release(values);
    return same;
}

static void judge_refusal(judge_trial *trial, slm_status status, const slm_error *error)
{
    const vec_outcome *outcome = trial->outcome;
    const slm_op_info *info = trial->frame->info;

    if (status != outcome->status) {
        stage_fail(trial, "X1", "returned %s, must return %s%s%s",
                   slm_status_name(status), slm_status_name(outcome->status),
                   outcome->field[0] ? " for " : "", outcome->field);
        return;
    }
    if (outcome->field[0] && strcmp(outcome->field, error->field) != 0)
        stage_fail(trial, "X1", "the error names the field '%s', must name '%s'",
                   error->field, outcome->field);
    else if (outcome->has_index && outcome->index != error->index)
        stage_fail(trial, "X1", "the error names element %zu of %s, must name %zu",
                   error->index, error->field, outcome->index);
    for (size_t i = 0; i < info->n_fields; i++) {
        const slm_field *field = &info->fields[i];

        if (is_output(field) && !is_unchanged(trial, field))
            stage_fail(trial, "X1",
                       "returned %s and wrote to %s: outputs must be untouched",
                       slm_status_name(status), field->name);
    }
}

static void judge_wrong_refusal(judge_trial *trial, slm_status status,
                                const slm_error *error)
{
    if (status == SLM_ERR_UNSUPPORTED)
        stage_fail(trial, "X1",
                   "returned SLM_ERR_UNSUPPORTED after supports() said yes");
    else if (!error->field[0])
        stage_fail(trial, "X1", "returned %s (%s), must succeed",
                   slm_status_name(status), error->expected);
    else
        stage_fail(trial, "X1", "returned %s (%s[%zu]: %s), must succeed",
                   slm_status_name(status), error->field, error->index,
                   error->expected);
}

/* ---- what was written ---- */

static void check_written(judge_trial *trial, const slm_field *field)
{
    const call_frame *frame = trial->frame;
    const slm_tensor *tensor = frame_tensor(frame, field->name);
    char place[COMPARE_PLACE];
    size_t count, first, t;

    if (!is_output(field) || !tensor || tensor->rank == 0) return;
    count = slm_tensor_count(tensor);
    if (strcmp(field->name, "cutoff") == 0 &&
        frame->config.top_k == frame->config.n_experts) {
        if (!frame_untouched(frame, "cutoff"))
            stage_fail(trial, "R2",
                       "wrote to cutoff although k = n leaves no next expert");
        return;
    }
    if (field->role == SLM_ROLE_TAP && frame_untouched(frame, field->name)) return;
    first = frame_first_masked(frame, field->name);
    if (first < count) {
        compare_say_place(place, field->name, tensor, first);
        stage_fail(trial, "Q5", "wrote to %s although the mask leaves the token out",
                   place);
        snprintf(trial->verdict->stage, sizeof trial->verdict->stage, "%s",
                 field->name);
        return;
    }
    first = frame_first_poison(frame, field->name);
    if (first >= count) return;
    t = field->dims[0] == 'T' ? first / (count / tensor->shape[0]) : 0;
    if (field->dims[0] == 'T' && strcmp(field->name, "y") != 0 &&
        strcmp(field->name, "ids") != 0 && trial_may_be_poisoned(frame, t))
        return;
    compare_say_place(place, field->name, tensor, first);
    stage_fail(trial, stage_clause(trial->test->op, field->name),
               "%s was never written", place);
    snprintf(trial->verdict->stage, sizeof trial->verdict->stage, "%s", field->name);
}

/* ---- results ---- */

/* The file's golden values, rounded once, and nothing else. */
static void judge_exactly(judge_trial *trial)
{
    for (size_t n = 0; n < trial->outcome->n_out; n++) {
        const vec_tensor *golden = &trial->outcome->out[n];
        const slm_tensor *tensor = frame_tensor(trial->frame, golden->field->name);

        if (!tensor || tensor->rank == 0) continue;
        stage_open(trial, golden->field->name);
        if (golden->form == VEC_DIGEST && tensor->dtype == golden->dtype)
            stage_record_exact(trial, 0, compare_digest(tensor, golden),
                               "another digest", golden->sha256);
        if (!golden->values) continue;

        const slm_tensor want = compare_golden_view(golden);
        const int integers = want.dtype == SLM_I32 || want.dtype == SLM_I64;

        for (size_t i = 0; i < golden->count; i++) {
            if (!compare_is_fixed(golden, i)) continue;
            if (integers)
                stage_integer(trial, i, compare_integer(&want, i));
            else
                stage_exact(trial, i,
                            compare_round(slm_ref_get(&want, i), tensor->dtype));
        }
    }
}

static void judge_by_stages(judge_trial *trial)
{
    switch (trial->test->op) {
    case SLM_OP_route:
    case SLM_OP_select:
        judge_routing(trial);
        break;
    case SLM_OP_layer_forward:
        judge_routing(trial);
        judge_layer(trial);
        break;
    case SLM_OP_situ_glu:
        judge_situ_glu(trial);
        break;
    case SLM_OP_dense_ffn:
        judge_dense_ffn(trial);
        break;
    case SLM_OP_rmsnorm:
        judge_rmsnorm(trial);
        break;
    case SLM_OP_situ_glu_backward:
        judge_situ_glu_backward(trial);
        break;
    case SLM_OP_rmsnorm_backward:
        judge_rmsnorm_backward(trial);
        break;
    case SLM_OP_select_backward:
        judge_select_backward(trial);
        break;
    case SLM_OP_dense_ffn_backward:
        judge_dense_ffn_backward(trial);
        break;
    case SLM_OP_layer_backward:
        judge_layer_backward(trial);
        break;
    default:
        judge_counts(trial);
        break;
    }
}

/* A case that cannot fail is no evidence.                                        A4 */
static void check_vacuous(const judge_trial *trial)
{
    judge_verdict *verdict = trial->verdict;
    const slm_op_info *info = trial->frame->info;
    size_t checked = 0, elements = 0;

    for (size_t i = 0; i < verdict->n_stages; i++)
        checked += verdict->stages[i].checked;
    for (size_t i = 0; i < info->n_fields; i++)
        if (info->fields[i].role == SLM_ROLE_OUT)
            elements +=
                slm_tensor_count(frame_tensor(trial->frame, info->fields[i].name));
    if (elements == 0 || checked > 0) return;
    verdict->state = JUDGE_VACUOUS;
    snprintf(verdict->clause, sizeof verdict->clause, "A4");
    snprintf(verdict->reason, sizeof verdict->reason,
             "no element could be judged under the declared arithmetic");
}

static void judge_success(judge_trial *trial, bool exact)
{
    const slm_op_info *info = trial->frame->info;
    size_t n_rows = 0;

    for (size_t i = 0; i < info->n_fields; i++) check_written(trial, &info->fields[i]);
    if (trial->verdict->state != JUDGE_PASS) return;
    if (exact) {
        judge_exactly(trial);
        return;
    }
    /* Pooled counts stand for more tokens than any memory holds, and have no rows. */
    if (strchr("Tq", info->fields[0].dims[0])) n_rows = trial->frame->call->n_tokens;
    trial->rows = stage_array(n_rows, 1);
    judge_by_stages(trial);
    stage_release(trial->rows);
    if (trial->verdict->state == JUDGE_PASS) check_vacuous(trial);
}

static void try_outcome(judge_trial *trial, slm_status status, const slm_error *error,
                        bool exact)
{
    const vec_outcome turned = {.status = status, .field = "new_bias"};
    const char *changed = "";

    memset(trial->verdict, 0, sizeof *trial->verdict);
    if (!exact && judge_tie_is_free(trial, status)) trial->outcome = &turned;
    if (!frame_inputs_intact(trial->frame, &changed))
        stage_fail(trial, "X2", "changed its input %s", changed);
    else if (trial->outcome->status != SLM_OK)
        judge_refusal(trial, status, error);
    else if (status != SLM_OK)
        judge_wrong_refusal(trial, status, error);
    else
        judge_success(trial, exact);
}

/* The verdict of the first outcome that is met; else of the one that wants the returned
 * status, which says most; else of the first. */
void judge_answer(const vec_case *test, const call_frame *frame, slm_status status,
                  const slm_error *error, const slm_arithmetic *arithmetic, bool exact,
                  judge_verdict *verdict)
{
    const bound_rules rules = bound_declared(arithmetic);
    int telling = 0;

    for (size_t i = 0; i < test->n_outcomes; i++) {
        judge_verdict one;
        judge_trial trial = {.test = test,
                             .frame = frame,
                             .outcome = &test->outcomes[i],
                             .rules = rules,
                             .verdict = &one};
        const int same = test->outcomes[i].status == status;

        try_outcome(&trial, status, error, exact);
        if (i == 0 || one.state == JUDGE_PASS || (same && !telling)) *verdict = one;
        telling |= same;
        if (one.state == JUDGE_PASS) return;
    }
}

void judge_case(const vec_case *test, const call_frame *frame, slm_status status,
                const slm_error *error, const slm_arithmetic *arithmetic, bool exact,
                judge_verdict *verdict)
{
    judge_answer(test, frame, status, error, arithmetic, exact, verdict);
    if (verdict->state == JUDGE_PASS && status == SLM_OK)
        controls_judge(test, frame, arithmetic, exact, verdict);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/cli_bench_command.c - timed calls of a command, in a process of its own. */
#include "bench_case.h"
#include "cli_bench_rig.h"
#include "vector_fill.h"

#include <stdlib.h>
#include <string.h>

static json_t *frame_message(const char *type, const call_frame *frame)
{
    json_t *message = json_pack("{s:s}", "type", type);
    json_t *content = protocol_frame(frame);

    json_object_update(message, content);
    json_decref(content);
    return message;
}

/* Inputs that differ from place to place: all but weights. */
static int varies(const frame_buffer *buffer)
{
    size_t n;
    const slm_field *weights = slm_weight_fields(&n);

    return buffer->field && !buffer->output &&
           !(buffer->field >= weights && buffer->field < weights + n);
}

static size_t varied_bytes(const call_frame *frame)
{
    size_t bytes = 0;

    for (size_t i = 0; i < frame->n_buffers; i++)
        if (varies(&frame->buffers[i])) bytes += frame->buffers[i].bytes;
    return bytes;
}

/* Make the inputs of every place, one after the other. */
static int make_inputs(const bench_rig *rig, subject *one)
{
    const rig_work *work = &rig->work;
    const size_t bytes = varied_bytes(&one->frame);
    unsigned char *at = malloc(work->places * bytes + 1);

    one->inputs = at;
    for (size_t place = 0; at && place < work->places; place++) {
        bench_case made;

        if (!bench_case_make(&made, work->op, &work->config, work->n_tokens, 0, place))
            return 0;
        for (size_t i = 0; i < one->frame.n_buffers; i++) {
            const frame_buffer *buffer = &one->frame.buffers[i];

            if (!varies(buffer)) continue;
            vec_fill(vec_find(made.in, made.test.n_in, buffer->field->name),
                     buffer->tensor.dtype, 0, slm_tensor_count(&buffer->tensor), at);
            at += buffer->bytes;
        }
        bench_case_free(&made);
    }
    return one->inputs != NULL;
}

static void show_place(const bench_rig *rig, subject *one)
{
    const unsigned char *at =
        one->inputs + one->place % rig->work.places * varied_bytes(&one->frame);

    for (size_t i = 0; i < one->frame.n_buffers; i++) {
        const frame_buffer *buffer = &one->frame.buffers[i];

        if (!varies(buffer)) continue;
        memcpy(buffer->tensor.data, at, buffer->bytes);
        at += buffer->bytes;
    }
    one->place++;
}

int command_call(const bench_rig *rig, subject *one, double *seconds, char *why)
{
    double start;
    json_t *answer;
    const json_t *told;

    show_place(rig, one);
    start = stopwatch_now();
    answer = rig_ask(one->child, one->name, frame_message("call", &one->frame),
                     "status", why);
    *seconds = stopwatch_now() - start;
    if (!answer) return 0;
    told = json_object_get(answer, "seconds");
    if (json_is_number(told)) *seconds = json_number_value(told);
    if (strcmp(child_text(answer, "status"), "SLM_OK") != 0) {
        snprintf(why, TESTEE_WHY, "%s: returned %.64s (%.200s)", one->name,
                 child_text(answer, "status"), child_text(answer, "expected"));
        json_decref(answer);
        return 0;
    }
    json_decref(answer);
    return 1;
}

static int build_frame(const bench_rig *rig, subject *one, char *why)
{
    const rig_work *work = &rig->work;
    const frame_options options = {.arena_fd = one->child->arena};
    bench_case made;

    snprintf(why, TESTEE_WHY, "%s: out of memory", one->name);
    if (!bench_case_make(&made, work->op, &work->config, work->n_tokens, 0, 0))
        return 0;
    one->framed = frame_build_as(&one->frame, &made.test, &options, why);
    bench_case_free(&made);
    if (!one->framed) return 0;
    frame_hide_taps(&one->frame, UINT64_MAX);
    return make_inputs(rig, one);
}

int command_open(const bench_rig *rig, subject *one, bench_rotation *rotation,
                 char *why)
{
    const slm_config *config = &rig->work.config;
    const slm_tensor *ids;
    unsigned char *seen;
    int ok;

    if (!build_frame(rig, one, why) ||
        !rig_tell(one->child, frame_message("open", &one->frame), "status", why))
        return 0;
    ids = one->frame.info->prepared ? frame_tensor(&one->frame, "ids") : NULL;
    seen = calloc(config->n_experts + 1, 1);
    ok = seen != NULL;
    for (size_t place = 0; ok && place < rig->work.places; place++) {
        double seconds;

        ok = command_call(rig, one, &seconds, why);
        if (ok && ids)
            rotation->experts += (double)bench_count_experts(
                ids->data, slm_tensor_count(ids), seen, config->n_experts);
    }
    rotation->experts /= (double)rig->work.places;
    for (size_t i = 0; seen && i < config->n_experts; i++) rotation->reached += seen[i];
    free(seen);
    return ok;
}

void command_let_go(subject *one)
{
    if (one->framed) frame_free(&one->frame);
    free(one->inputs);
    one->inputs = NULL;
    one->framed = false;
    one->place = 0;
}

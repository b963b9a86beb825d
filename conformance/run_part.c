/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/run_part.c - the line of a run file that a backend's results begin with. */
#include "declared.h"
#include "run_line.h"

#include <string.h>

static void read_arithmetic(run_line *line, const json_t *object, run_part *part)
{
    const json_t *declared = line_object(line, object, "arithmetic");
    const json_t *store = line_object(line, declared, "store");

    if (!declared) line_fault(line, "arithmetic: expected an object");
    part->arithmetic = (slm_arithmetic){
        .struct_size = sizeof part->arithmetic,
        .accumulator = line_number(line, declared, "accumulator"),
        .input = line_number(line, declared, "input"),
        .sigmoid_ulp = line_number(line, declared, "sigmoid_ulp"),
        .tanh_ulp = line_number(line, declared, "tanh_ulp"),
        .tanh_abs = line_number(line, declared, "tanh_abs"),
        .rsqrt_ulp = line_number(line, declared, "rsqrt_ulp"),
        .balance = line_number(line, declared, "balance"),
        .store_gradient = line_number(line, declared, "store_gradient"),
        .store_weight_gradient = line_number(line, declared, "store_weight_gradient"),
        .flushes_subnormals =
            json_is_true(json_object_get(declared, "flushes_subnormals"))};
    for (int i = 0; i < SLM_STAGE_COUNT; i++)
        part->arithmetic.store[i] =
            line_number(line, store, declared_stage((slm_stage)i));
}

static void read_abi(run_line *line, const json_t *object, run_part *part)
{
    const json_t *abi = json_object_get(object, "abi");
    const json_t *major = json_array_get(abi, 0), *minor = json_array_get(abi, 1);

    if (json_array_size(abi) != 2 || !json_is_integer(major) ||
        !json_is_integer(minor) || json_integer_value(major) < 0 ||
        json_integer_value(minor) < 0) {
        line_fault(line, "abi: expected [MAJOR, MINOR]");
        return;
    }
    part->abi_major = (size_t)json_integer_value(major);
    part->abi_minor = (size_t)json_integer_value(minor);
}

void line_part(run_line *line, const json_t *object, run_part *part)
{
    const json_t *certifiable = json_object_get(object, "certifiable");
    const char *format = line_text(line, object, "format");

    memset(part, 0, sizeof *part);
    if (strcmp(format, "slm-run/1") != 0)
        line_fault(line, "format: expected slm-run/1, got %.32s",
                   format[0] ? format : "none");
    part->backend = line_word(line, object, "backend");
    part->name = line_text(line, object, "name");
    part->version = line_text(line, object, "version");
    part->url = line_text(line, object, "url");
    part->note = line_text(line, object, "note");
    read_abi(line, object, part);
    part->n_levels = line_words(line, object, "levels", part->levels,
                                sizeof part->levels / sizeof *part->levels);
    if (!json_is_boolean(certifiable))
        line_fault(line, "certifiable: expected true or false");
    part->certifiable = json_is_true(certifiable);
    read_arithmetic(line, object, part);
    part->tier = line_word(line, object, "tier");
    part->selection = line_text(line, object, "selection");
    part->vectors = line_word(line, object, "vectors");
    part->harness = line_text(line, object, "slmoe");
    part->spec = line_text(line, object, "spec");
    part->date = line_text(line, object, "date");
    part->system = line_text(line, object, "system");
    part->cpu = line_text(line, object, "cpu");
    part->cores = line_count(line, object, "cores");
}

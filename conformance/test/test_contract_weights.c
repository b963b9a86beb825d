/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/test_contract_weights.c - weights at the door, from both sides.  X1 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdint.h>
#include <string.h>

#include <slm/backend.h>

#include "lawful.h"

static slm_weights lawful_weights(const slm_config *config, void *memory)
{
    slm_weights weights = {.struct_size = sizeof weights};
    const slm_call none = {0};
    size_t n_fields;
    const slm_field *fields = slm_weight_fields(&n_fields);

    for (size_t i = 0; i < n_fields; i++) {
        size_t shape[SLM_MAX_RANK];
        slm_tensor tensor;

        if (!slm_field_applies(&fields[i], config)) continue;
        for (size_t dim = 0; fields[i].dims[dim]; dim++)
            assert_true(slm_dim(config, &none, fields[i].dims[dim], &shape[dim]));
        tensor = slm_tensor_packed(memory, config->dtype,
                                   (uint32_t)strlen(fields[i].dims), shape);
        memcpy((char *)&weights + fields[i].offset, &tensor, sizeof tensor);
    }
    return weights;
}

static void expect_weights(const slm_config *config, const slm_weights *weights,
                           slm_status status, const char *field)
{
    slm_error error = {.index = 0};

    assert_int_equal(slm_check_weights(config, weights, &error), status);
    if (!status) return;
    assert_string_equal(error.field, field);
    assert_string_equal(error.op, "prepare");
}

static void weights_are_checked_against_the_configuration(void **state)
{
    double memory[1024] = {0};

    (void)state;
    for (int kind = 0; kind < SLM_EXPERT_KINDS; kind++) {
        size_t n_fields;
        const slm_field *fields = slm_weight_fields(&n_fields);
        slm_config config = lawful_config();
        slm_weights weights;

        config.expert = (slm_expert_kind)kind;
        weights = lawful_weights(&config, memory);
        expect_weights(&config, &weights, SLM_OK, "");
        for (size_t i = 0; i < n_fields; i++) {
            slm_tensor *tensor =
                (slm_tensor *)(void *)((char *)&weights + fields[i].offset);
            const slm_tensor kept = *tensor;

            if (slm_field_applies(&fields[i], &config)) {
                tensor->rank = 0;
                expect_weights(&config, &weights,
                               fields[i].role == SLM_ROLE_IN ? SLM_ERR_SHAPE : SLM_OK,
                               fields[i].name);
                *tensor = kept;
                tensor->shape[kept.rank - 1]++;
                expect_weights(&config, &weights, SLM_ERR_SHAPE, fields[i].name);
            } else {
                *tensor = weights.w_router;
                expect_weights(&config, &weights, SLM_ERR_SHAPE, fields[i].name);
            }
            *tensor = kept;
        }
        config.n_shared = 0;
        weights = lawful_weights(&config, memory);
        expect_weights(&config, &weights, SLM_OK, "");
        weights.w_shared.rank = weights.w_shared_gate.rank = 0;
        weights.w_shared_up.rank = weights.w_shared_out.rank = 0;
        expect_weights(&config, &weights, SLM_OK, "");
        config.dtype = SLM_BF16;
        expect_weights(&config, &weights, SLM_ERR_SHAPE, "w_router");
        config.dtype = SLM_F32;
        config.expert = (slm_expert_kind)-1;
        expect_weights(&config, &weights, SLM_ERR_DOMAIN, "expert");
        weights.struct_size--;
        expect_weights(&config, &weights, SLM_ERR_SHAPE, "struct_size");
    }
}

static void weights_are_not_checked_without_a_configuration(void **state)
{
    const slm_config config = lawful_config();
    const slm_weights weights = {.struct_size = sizeof weights};
    slm_error error;

    (void)state;
    assert_int_equal(slm_check_weights(&config, NULL, &error), SLM_ERR_SHAPE);
    assert_int_equal(slm_check_weights(NULL, &weights, &error), SLM_ERR_SHAPE);
    assert_string_equal(error.op, "prepare");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_are_checked_against_the_configuration),
        cmocka_unit_test(weights_are_not_checked_without_a_configuration),
    };

    return cmocka_run_group_tests(tests, NULL, NULL) ? 1 : 0;
}

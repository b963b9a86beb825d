/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/test/fuzz_vector.c - libFuzzer on the loader: it reads files from strangers.
 *
 * Whatever the bytes, a load ends in a set whose values can be read, or in a fault with
 * a text and a place within the file. */
#include "../vector.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_all(const vec_tensor *tensors, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const vec_tensor *tensor = &tensors[i];
        double values[8];

        if (tensor->form == VEC_DIGEST || tensor->form == VEC_PENDING) continue;
        if (tensor->count == 0) continue;
        vec_values_range(tensor, 0, tensor->count < 8 ? tensor->count : 8, values);
        vec_values_range(tensor, tensor->count - 1, 1, values);
    }
}

static void check_marks(const vec_tensor *tensors, size_t n, size_t size)
{
    for (size_t i = 0; i < n; i++)
        if (tensors[i].after_key > tensors[i].begin.byte ||
            tensors[i].begin.byte >= tensors[i].end.byte || tensors[i].end.byte > size)
            abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    vec_error error;
    vec_set *set = vec_load_memory("fuzz.yaml", (const char *)data, size, &error);

    if (!set) {
        if (error.what[0] == 0 || error.mark.byte > size) abort();
        return 0;
    }
    for (size_t i = 0; i < set->families[0].n_cases; i++) {
        const vec_case *test = &set->families[0].cases[i];

        read_all(test->in, test->n_in);
        check_marks(test->in, test->n_in, size);
        for (size_t j = 0; j < test->n_outcomes; j++) {
            read_all(test->outcomes[j].out, test->outcomes[j].n_out);
            check_marks(test->outcomes[j].out, test->outcomes[j].n_out, size);
        }
    }
    vec_free(set);
    return 0;
}

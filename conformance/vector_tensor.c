/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/vector_tensor.c - a tensor of a golden vector: shape, form, values. */
#include "vector_load.h"

#include "vector_number.h"

#include <string.h>

enum { KEY_SHAPE, KEY_DATA, KEY_WORDS, KEY_FILL, KEY_GEN, KEY_SHA256, N_KEYS };
static const char *const keys[N_KEYS] = {"shape", "data", "words",
                                         "fill",  "gen",  "sha256"};

/* What the functions of one tensor share. */
typedef struct reading {
    const char *what; /* "in.score" */
    slm_dtype fit;    /* a real value must be exact in this type */
    bool output;
} reading;

const char *load_shape_text(char *out, uint32_t rank, const size_t *shape)
{
    size_t used = 0;

    for (uint32_t i = 0; i < rank; i++)
        used += (size_t)snprintf(out + used, LOAD_SHAPE - used, "%s%zu", i ? ", " : "[",
                                 shape[i]);
    snprintf(out + used, LOAD_SHAPE - used, "]");
    return out;
}

int load_count(loader *ld, const vec_mark *mark, const char *what, uint32_t rank,
               const size_t *shape, size_t *count)
{
    char text[LOAD_SHAPE];

    *count = 1;
    for (uint32_t i = 0; i < rank; i++)
        if (__builtin_mul_overflow(*count, shape[i], count) ||
            *count > SIZE_MAX / sizeof(double))
            return load_fault(ld, mark, "%s: shape %s has too many elements", what,
                              load_shape_text(text, rank, shape));
    return 1;
}

static int read_shape(loader *ld, const tree_node *node, const reading *as,
                      vec_tensor *out)
{
    char what[SLM_NAME + 16];

    snprintf(what, sizeof what, "%s.shape", as->what);
    if (node->kind != TREE_LIST)
        return load_unexpected(ld, node, what, "a list of sizes");
    if (node->n == 0 || node->n > SLM_MAX_RANK)
        return load_fault(ld, &node->begin, "%s: expected 1 to %d sizes, got %zu", what,
                          SLM_MAX_RANK, node->n);
    out->rank = 0;
    for (const tree_node *item = node->first; item; item = item->next) {
        uint64_t size;

        if (!load_size(ld, item, what, &size)) return 0;
        out->shape[out->rank++] = (size_t)size;
    }
    return load_count(ld, &node->begin, as->what, out->rank, out->shape, &out->count);
}

int load_allocate(loader *ld, const tree_node *node, const char *what, vec_tensor *out)
{
    if (out->count > LOAD_MAX_VALUES - ld->n_values)
        return load_fault(ld, &node->begin, "%s: more than %d values in one file", what,
                          LOAD_MAX_VALUES);
    ld->n_values += out->count;
    out->values = arena_new(ld->memory, out->count, slm_dtype_size(out->dtype));
    return out->values ? 1 : load_no_memory(ld);
}

static void store(vec_tensor *out, size_t i, double real, int64_t integer)
{
    switch (out->dtype) {
    case SLM_F64:
        ((double *)out->values)[i] = real;
        break;
    case SLM_I32:
        ((int32_t *)out->values)[i] = (int32_t)integer;
        break;
    case SLM_I64:
        ((int64_t *)out->values)[i] = integer;
        break;
    default:
        ((float *)out->values)[i] = (float)real;
        break;
    }
}

static int store_any(loader *ld, vec_tensor *out, size_t i)
{
    if (!out->any) out->any = arena_new(ld->memory, out->count, 1);
    if (!out->any) return load_no_memory(ld);
    out->any[i] = 1;
    return 1;
}

static int read_value(loader *ld, const tree_node *node, const reading *as,
                      vec_tensor *out, size_t i)
{
    const bool whole = out->dtype == SLM_I32 || out->dtype == SLM_I64;
    char why[NUMBER_WHY];
    double real = 0;
    int64_t integer = 0;

    if (node->kind != TREE_SCALAR || node->style != TREE_PLAIN || node->size == 0)
        return load_unexpected(ld, node, as->what,
                               whole ? "a decimal integer" : "a hexadecimal float");
    if (as->output && load_is(node, "any")) return store_any(ld, out, i);
    if (whole ? !number_integer(node->text, out->dtype, &integer, why)
              : !number_real(node->text, as->fit, &real, why))
        return load_fault(ld, &node->begin, "%s: %s", as->what, why);
    store(out, i, real, integer);
    return 1;
}

static int read_data(loader *ld, const tree_node *node, const reading *as,
                     vec_tensor *out)
{
    char shape[LOAD_SHAPE];
    size_t i = 0;

    out->form = VEC_DATA;
    if (node->kind != TREE_LIST)
        return load_unexpected(ld, node, as->what, "a list of values");
    if (node->n != out->count)
        return load_fault(ld, &node->begin, "%s: shape %s needs %zu value%s, got %zu",
                          as->what, load_shape_text(shape, out->rank, out->shape),
                          out->count, out->count == 1 ? "" : "s", node->n);
    if (node->n > LOAD_MAX_DATA)
        return load_fault(ld, &node->begin,
                          "%s: at most %d values stand in data, got %zu; use words",
                          as->what, LOAD_MAX_DATA, node->n);
    if (!load_allocate(ld, node, as->what, out)) return 0;
    for (const tree_node *item = node->first; item; item = item->next)
        if (!read_value(ld, item, as, out, i++)) return 0;
    return 1;
}

static int read_fill(loader *ld, const tree_node *node, const reading *as,
                     vec_tensor *out)
{
    const size_t size = slm_dtype_size(out->dtype);
    vec_tensor one = *out;

    out->form = VEC_FILL;
    one.count = 1;
    if (!load_allocate(ld, node, as->what, out) ||
        !load_allocate(ld, node, as->what, &one))
        return 0;
    if (!read_value(ld, node, as, &one, 0)) return 0;
    for (size_t i = 0; i < out->count; i++)
        memcpy((char *)out->values + i * size, one.values, size);
    if (!one.any) return 1;
    out->any = arena_new(ld->memory, out->count, 1);
    if (!out->any) return load_no_memory(ld);
    memset(out->any, 1, out->count);
    return 1;
}

static int read_sha256(loader *ld, const tree_node *node, const reading *as,
                       vec_tensor *out)
{
    char what[SLM_NAME + 16];

    snprintf(what, sizeof what, "%s.sha256", as->what);
    if (node->kind != TREE_SCALAR || node->size != 64 ||
        strspn(node->text, "0123456789abcdef") != 64)
        return load_unexpected(ld, node, what, "64 lower-case hexadecimal digits");
    memcpy(out->sha256, node->text, 65);
    return 1;
}

/* Which form the keys make; N_KEYS when they make none. */
static int find_form(loader *ld, const tree_node *node, const reading *as,
                     const tree_node **found, size_t *form)
{
    *form = N_KEYS;
    for (size_t i = KEY_DATA; i <= KEY_GEN; i++) {
        if (!found[i]) continue;
        if (*form != N_KEYS)
            return load_fault(ld, &found[i]->key->begin, "%s: %s and %s in one tensor",
                              as->what, keys[*form], keys[i]);
        *form = i;
    }
    if (found[KEY_SHA256] && *form == N_KEYS) *form = KEY_SHA256;
    if (*form == N_KEYS)
        return load_fault(ld, &node->begin, "%s: needs one of %s", as->what,
                          as->output ? "data, words, fill, sha256"
                                     : "data, words, fill, gen");
    if (as->output && *form == KEY_GEN)
        return load_fault(ld, &found[KEY_GEN]->key->begin,
                          "%s: gen makes inputs, this is an output", as->what);
    if (!as->output && *form == KEY_SHA256)
        return load_fault(ld, &found[KEY_SHA256]->key->begin,
                          "%s: sha256 alone stands for outputs, this is an input",
                          as->what);
    if (found[KEY_SHA256] && *form != KEY_GEN && *form != KEY_SHA256)
        return load_fault(ld, &found[KEY_SHA256]->key->begin,
                          "%s: sha256 beside %s: the values are here", as->what,
                          keys[*form]);
    return 1;
}

static int read_form(loader *ld, const tree_node *node, const reading *as,
                     const tree_node **found, vec_tensor *out)
{
    size_t form;

    if (!find_form(ld, node, as, found, &form)) return 0;
    if (!found[KEY_SHAPE])
        return load_fault(ld, &node->begin, "%s: shape is missing", as->what);
    if (!read_shape(ld, found[KEY_SHAPE], as, out)) return 0;
    if (found[KEY_SHA256] && !read_sha256(ld, found[KEY_SHA256], as, out)) return 0;
    switch (form) {
    case KEY_DATA:
        return read_data(ld, found[form], as, out);
    case KEY_WORDS:
        return load_hex_words(ld, found[form], as->what, as->fit, out);
    case KEY_FILL:
        return read_fill(ld, found[form], as, out);
    case KEY_GEN:
        return load_recipe(ld, found[form], as->what, as->fit, out);
    default:
        out->form = VEC_DIGEST;
        return 1;
    }
}

/* The byte after the colon between key and value, or where the value begins if
 * something else stands there too (a comment). */
static size_t after_colon(const tree_text *text, const tree_node *node)
{
    size_t at = node->key->end.byte;
    size_t colon;

    while (at < node->begin.byte && strchr(" \n", text->data[at])) at++;
    if (at >= node->begin.byte || text->data[at] != ':') return node->begin.byte;
    colon = at++;
    while (at < node->begin.byte && strchr(" \n", text->data[at])) at++;
    return at == node->begin.byte ? colon + 1 : node->begin.byte;
}

int load_tensor(loader *ld, const tree_node *node, const slm_field *field, bool output,
                const slm_config *config, vec_tensor *out)
{
    char what[SLM_NAME + 8];
    const tree_node *found[N_KEYS];
    const slm_dtype own = slm_field_dtype(field, config);
    const reading as = {what, output ? slm_field_golden_dtype(field) : own, output};

    snprintf(what, sizeof what, "%s.%s", output ? "out" : "in", field->name);
    *out = (vec_tensor){.field = field,
                        .dtype = output            ? as.fit
                                 : own == SLM_BF16 ? SLM_F32
                                                   : own,
                        .begin = node->begin,
                        .end = node->end,
                        .indent = node->key->begin.column - 1,
                        .after_key = after_colon(ld->text, node)};
    if (load_is(node, "pending")) {
        out->form = VEC_PENDING;
        return output ? 1
                      : load_fault(ld, &node->begin,
                                   "%s: pending stands for outputs, this is an input",
                                   what);
    }
    if (node->kind != TREE_MAP)
        return load_unexpected(ld, node, what,
                               output ? "a tensor or pending" : "a tensor");
    return load_keys(ld, node, what, keys, N_KEYS, found) &&
           read_form(ld, node, &as, found, out);
}

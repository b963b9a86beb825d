/* SPDX-License-Identifier: Apache-2.0 */
/* conformance/vector_format.c - golden values as the text of a vector file. */
#include "vector.h"

#include "vector_number.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FLOW = 64, MAX_WORDS = 1 << 16, COLUMNS = 88 };

static void write_shape(FILE *to, uint32_t rank, const size_t *shape)
{
    fputs("shape: [", to);
    for (uint32_t i = 0; i < rank; i++) fprintf(to, "%s%zu", i ? ", " : "", shape[i]);
    fputc(']', to);
}

static void write_element(slm_dtype dtype, const void *values, size_t i, char *out)
{
    switch (dtype) {
    case SLM_F64:
        number_write(((const double *)values)[i], out);
        break;
    case SLM_I32:
        snprintf(out, NUMBER_TEXT, "%" PRId32, ((const int32_t *)values)[i]);
        break;
    case SLM_I64:
        snprintf(out, NUMBER_TEXT, "%" PRId64, ((const int64_t *)values)[i]);
        break;
    default:
        number_write((double)((const float *)values)[i], out);
        break;
    }
}

/* On one line if it fits behind a key of 12 letters, else a line for each row, broken
 * where rows are long. */
static void write_flow(FILE *to, slm_dtype dtype, size_t count, size_t row,
                       const void *values, size_t indent)
{
    const size_t margin = indent + 4;
    char text[NUMBER_TEXT];
    size_t length = indent + 12 + 40;
    bool lines;

    for (size_t i = 0; i < count; i++) {
        write_element(dtype, values, i, text);
        length += strlen(text) + 2;
    }
    lines = length > COLUMNS;
    fputs(", data: [", to);
    length = COLUMNS;
    for (size_t i = 0; i < count; i++) {
        const char *comma = i ? "," : "";

        write_element(dtype, values, i, text);
        length += strlen(text) + 2;
        if (lines && (length > COLUMNS || i % row == 0)) {
            fprintf(to, "%s\n%*s%s", comma, (int)margin, "", text);
            length = margin + strlen(text) + 2;
        } else {
            fprintf(to, "%s%s%s", comma, i ? " " : "", text);
        }
    }
    fputs("]}", to);
}

static void write_words(FILE *to, slm_dtype dtype, size_t count, const void *values,
                        size_t indent)
{
    const size_t size = slm_dtype_size(dtype);
    const size_t a_line = size == 8 ? 4 : 8;

    fprintf(to, "\n%*swords: |", (int)indent + 2, "");
    for (size_t i = 0; i < count; i++) {
        uint64_t bits = 0;

        memcpy(&bits, (const char *)values + i * size, size);
        if (i % a_line == 0)
            fprintf(to, "\n%*s", (int)indent + 4, "");
        else
            fputc(' ', to);
        fprintf(to, "%0*" PRIx64, (int)(2 * size), bits);
    }
}

char *vec_format(slm_dtype dtype, uint32_t rank, const size_t *shape,
                 const void *values, size_t indent)
{
    char *text = NULL, digest[65];
    size_t size = 0, count = 1;
    FILE *to = open_memstream(&text, &size);

    if (!to) return NULL;
    for (uint32_t i = 0; i < rank; i++) count *= shape[i];
    if (count > MAX_FLOW && count <= MAX_WORDS)
        fprintf(to, "\n%*s", (int)indent + 2, "");
    else
        fputs(" {", to);
    write_shape(to, rank, shape);
    if (count <= MAX_FLOW) {
        const size_t row = shape[rank - 1] ? shape[rank - 1] : 1;

        write_flow(to, dtype, count, row, values, indent);
    } else if (count <= MAX_WORDS) {
        write_words(to, dtype, count, values, indent);
    } else {
        vec_sha256(values, count * slm_dtype_size(dtype), digest);
        fprintf(to, ", sha256: \"%s\"}", digest);
    }
    if (ferror(to) | fclose(to)) {
        free(text);
        return NULL;
    }
    return text;
}

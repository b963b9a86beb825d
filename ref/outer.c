/* SPDX-License-Identifier: Apache-2.0 */
/* ref/outer.c - gradients of weights: sums over tokens of products.                G4
 *
 * A weight's gradient may be far larger than memory for balls: one row of it is made,
 * rounded and forgotten. OpenMP threads share its rows, never a row. */
#include "internal.h"

/* The columns of the rows, one after the other: [width, n]. The balls are borrowed:
 * copies of the structs, read and never cleared. */
static arb_ptr borrow_columns(const slm_ref_rows *rows, size_t n)
{
    arb_ptr columns = flint_malloc((rows->width * n + 1) * sizeof *columns);

    for (size_t c = 0; c < n; c++) {
        arb_srcptr row = rows->value + (rows->row ? rows->row[c] : c) * rows->step;

        for (size_t i = 0; i < rows->width; i++) columns[i * n + c] = row[i];
    }
    return columns;
}

/* Multiply-adds below which waking a thread costs more than it brings. */
enum { WORTH_THREADS = 1 << 15 };

void slm_ref_put_outer(slm_ref_draft *draft, const char *name, size_t first,
                       const slm_ref_rows *left, const slm_ref_rows *right, size_t n,
                       slong prec)
{
    const slm_ref_output *output = slm_ref_find(draft, name);
    const slong rows = (slong)left->width, cols = (slong)right->width;
    const slong terms = (slong)n;
    size_t unproved = SIZE_MAX;
    arb_ptr a, b;

    if (n == 0 || !output) return; /* an empty sum is 0 */
    a = borrow_columns(left, n);
    b = borrow_columns(right, n);
#ifdef _OPENMP
#pragma omp parallel if (!draft->watch && rows * cols * terms >= WORTH_THREADS)
#endif
    {
        arb_ptr row = _arb_vec_init(cols); /* this thread's */
#ifdef _OPENMP
#pragma omp for reduction(min : unproved)
#endif
        for (slong i = 0; i < rows; i++) {
            size_t bad;

            for (slong j = 0; j < cols; j++)
                slm_ref_dot(row + j, a + i * terms, 1, b + j * terms, 1, terms, prec);
            bad = slm_ref_round_at(draft, output, first + (size_t)(i * cols), row,
                                   (size_t)cols);
            if (bad < unproved) unproved = bad;
        }
        _arb_vec_clear(row, cols);
    }
    if (unproved < SIZE_MAX) slm_ref_unproved(draft, name, unproved);
    flint_free(b);
    flint_free(a);
}

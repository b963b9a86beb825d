/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/gemm_factors.h - the products of one instruction set whose factors are read as
 * they lie: the last part of gemm_tile.h. Weights become panels a few at a time. */

enum { GROUP = 4 }; /* panels packed at once: rows of w are read in longer pieces */

/* Columns [col, col + cols) of w, at most GROUP panels, elements [first, first + depth)
 * of the inner index. */
static void pack_group(const slm_cpu_linear *of, size_t col, size_t cols, size_t first,
                       size_t depth, float to[GROUP][DEPTH * SLM_CPU_WIDTH])
{
    const size_t ld = of->w.ld;
    const int rows_are_columns = (of->how & (SLM_CPU_BACK | SLM_CPU_OUTER)) == 0;

    for (size_t p = 0; rows_are_columns && p * SLM_CPU_WIDTH < cols; p++) {
        const size_t j = p * SLM_CPU_WIDTH;
        const size_t have = cols - j < SLM_CPU_WIDTH ? cols - j : SLM_CPU_WIDTH;

        slm_cpu_transpose(of->w.data + (col + j) * ld + first, ld, have, depth, to[p]);
    }
    for (size_t k = 0; !rows_are_columns && k < depth; k++) {
        const float *from = of->w.data + (first + k) * ld + col;

        for (size_t j = 0, p = 0; j < cols; j += SLM_CPU_WIDTH, p++) {
            const size_t have = cols - j < SLM_CPU_WIDTH ? cols - j : SLM_CPU_WIDTH;
            float *row = to[p] + k * SLM_CPU_WIDTH;

            memcpy(row, from + j, have * sizeof *row);
            memset(row + have, 0, (SLM_CPU_WIDTH - have) * sizeof *row);
        }
    }
}

/* Whole panels of w are read where they lie, unless many rows would read them again and
 * again from the few sets of the cache that rows of w a multiple of 4096 bytes apart
 * share. */
static int reads_in_place(const slm_cpu_linear *of, size_t cols)
{
    return (of->how & (SLM_CPU_BACK | SLM_CPU_OUTER)) && cols % SLM_CPU_WIDTH == 0 &&
           (of->rows <= 2 * TILE_ROWS || of->w.ld % 1024 != 0);
}

static void gemm(const slm_cpu_linear *of)
{
    enum { COLS = GROUP * SLM_CPU_WIDTH };
    float panels[GROUP][DEPTH * SLM_CPU_WIDTH] __attribute__((aligned(64)));
    const int outer = (of->how & SLM_CPU_OUTER) != 0;
    const int add = (of->how & SLM_CPU_ADD) != 0;
    const size_t ldx = of->x.ld;

    for (size_t k = 0; k < of->inner; k += DEPTH) {
        const size_t left = of->inner - k;
        const size_t depth = left < DEPTH ? left : DEPTH;
        const rows_of x = outer ? (rows_of){of->x.data + k * ldx, 1, ldx}
                                : (rows_of){of->x.data + k, ldx, 1};

        for (size_t col = 0; col < of->cols; col += COLS) {
            const size_t cols = of->cols - col < COLS ? of->cols - col : COLS;
            const int in_place = reads_in_place(of, cols);

            if (!in_place) pack_group(of, col, cols, k, depth, panels);
            for (size_t j = 0, p = 0; j < cols; j += SLM_CPU_WIDTH, p++) {
                const size_t have = cols - j < SLM_CPU_WIDTH ? cols - j : SLM_CPU_WIDTH;
                const float *there = of->w.data + k * of->w.ld + col + j;
                const weights_of w = in_place
                                         ? (weights_of){there, of->w.ld, 0}
                                         : (weights_of){panels[p], SLM_CPU_WIDTH, 0};

                rows_panel(of->rows, have, &x, &w, depth, of->y.data + col + j,
                           of->y.ld, add || k > 0);
            }
        }
    }
}

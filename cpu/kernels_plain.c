/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/kernels_plain.c - elements and rows in portable C: situ_tile.h with 4 lanes, a
 * product and an addition each rounded. The vectors are GCC's and Clang's own. */
#include "kernels.h"

#define LANES 4
#define PICK(which, yes, no) ((vec)(((ints)(yes) & (which)) | ((ints)(no) & ~(which))))
#define VEC_FMA(a, b, c) ((c) + (a) * (b))
#define VEC_MIN(a, b) PICK((a) < (b), a, b)
#define VEC_MAX(a, b) PICK((a) > (b), a, b)
#define VEC_LESS(a, b, yes, no) PICK((a) < (b), yes, no)

#include "rows_tile.h"
#include "situ_tile.h"

const slm_cpu_kernels *slm_cpu_kernels_plain(void)
{
    static const slm_cpu_kernels table = {
        sigmoid, situ, situ_rows, situ_rows_half, combine, combine_half, rmsnorm};

    return &table;
}

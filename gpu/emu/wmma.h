/* SPDX-License-Identifier: Apache-2.0 */
/* gpu/emu/wmma.h - what a kernel sees of tensor cores: nvcuda::wmma of CUDA's <mma.h>.
 *
 * Tiles of 16 x 16 x 16, factors in bf16, sums in binary32; another shape, type or
 * layout does not compile. All 32 lanes of a warp come to the same call, with the same
 * pointer and leading dimension. A pointer is 32 bytes aligned, a leading dimension is a
 * multiple of 8 elements of bf16 and of 4 of binary32.
 *
 * Which lane holds which element is nobody's business: here lane i has half i % 2 of
 * line i / 2, a line as it lies in memory. Kernels may treat all elements of x[] alike
 * and nothing else. Like a shuffle, none of these calls orders memory. */
#ifndef SLM_GPU_EMU_WMMA_H
#define SLM_GPU_EMU_WMMA_H

#include "emu.h"

namespace nvcuda
{
namespace wmma
{

struct row_major;
struct col_major;
struct matrix_a;
struct matrix_b;
struct accumulator;
enum layout_t { mem_row_major, mem_col_major };

} // namespace wmma
} // namespace nvcuda

namespace emu
{

enum { MATRIX_SIDE = 16, LANE_ELEMENTS = MATRIX_SIDE * MATRIX_SIDE / 32 };

/* What a lane holds: NaN until something fills it. */
template <class T> struct lane_part {
    enum { num_elements = LANE_ELEMENTS, num_storage_elements = LANE_ELEMENTS };
    typedef T element_type;
    T x[LANE_ELEMENTS];
    EMU_UNSEEN lane_part()
    {
        memset(static_cast<void *>(x), 0xff, sizeof x);
    }
};

/* A lane's part of d = a b + c; d may be c. Of a factor a line is a column of the
 * matrix, or a row. */
struct lane_product {
    const __nv_bfloat16 *a, *b;
    bool a_by_columns, b_by_columns;
    const float *c;
    float *d;
};

/* The lanes meet and their warp's product is made. */
void multiply(const lane_product &part, site at);

/* The lanes meet to load or store a tile; finds a fault in what they ask for. */
void meet_at_tile(const void *memory, unsigned leading, size_t element, site at);

/* Where the part of the running lane begins, in elements. */
inline size_t lane_offset(unsigned leading)
{
    return (size_t)(self->lane / 2) * leading + self->lane % 2 * LANE_ELEMENTS;
}

} // namespace emu

namespace nvcuda
{
namespace wmma
{

template <class Use, int m, int n, int k, class T, class Layout = void> class fragment;

#define EMU_FRAGMENT(use, type, ...)                                                   \
    template <>                                                                        \
    class fragment<use, 16, 16, 16, type, ##__VA_ARGS__> : public emu::lane_part<type> \
    {                                                                                  \
    }
EMU_FRAGMENT(matrix_a, __nv_bfloat16, row_major);
EMU_FRAGMENT(matrix_a, __nv_bfloat16, col_major);
EMU_FRAGMENT(matrix_b, __nv_bfloat16, row_major);
EMU_FRAGMENT(matrix_b, __nv_bfloat16, col_major);
EMU_FRAGMENT(accumulator, float);
#undef EMU_FRAGMENT

typedef fragment<accumulator, 16, 16, 16, float> emu_sums;

template <class T>
inline void fill_fragment(emu::lane_part<T> &part, const emu::same<T> &value)
{
    for (T &element : part.x) element = value;
}

/* These two are never inlined: the return address is the place in the kernel. Each lane
 * is watched on its own, at most 16 bytes at a time. */
template <class Use, class Layout>
EMU_UNSEEN __attribute__((noinline)) void
load_tile(emu::site at, fragment<Use, 16, 16, 16, __nv_bfloat16, Layout> &part,
          const __nv_bfloat16 *memory, unsigned leading)
{
    emu::meet_at_tile(memory, leading, sizeof *memory, at);
    memory += emu::lane_offset(leading);
    emu::before_access(memory, sizeof part.x, false, __builtin_return_address(0));
    for (int i = 0; i < emu::LANE_ELEMENTS; i++) part.x[i] = memory[i];
}

EMU_UNSEEN __attribute__((noinline)) inline void store_tile(emu::site at, float *memory,
                                                            const emu_sums &part,
                                                            unsigned leading,
                                                            layout_t layout)
{
    const size_t line = emu::self->lane / 2, first = emu::lane_offset(16) % 16;
    const size_t along = layout == mem_row_major ? 1 : leading;
    const size_t across = layout == mem_row_major ? leading : 1;

    emu::meet_at_tile(memory, leading, sizeof *memory, at);
    for (size_t i = 0; i < emu::LANE_ELEMENTS; i++) {
        float *to = memory + line * across + (first + i) * along;

        emu::before_access(to, sizeof *to, true, __builtin_return_address(0));
        *to = part.x[i];
    }
}

template <class A, class B>
inline void multiply_tiles(emu::site at, emu_sums &d,
                           const fragment<matrix_a, 16, 16, 16, __nv_bfloat16, A> &a,
                           const fragment<matrix_b, 16, 16, 16, __nv_bfloat16, B> &b,
                           const emu_sums &c)
{
    const emu::lane_product part = {
        a.x, b.x, std::is_same<A, col_major>::value, std::is_same<B, col_major>::value,
        c.x, d.x};

    emu::multiply(part, at);
}

} // namespace wmma
} // namespace nvcuda

#define load_matrix_sync(...) load_tile(EMU_SITE, __VA_ARGS__)
#define store_matrix_sync(...) store_tile(EMU_SITE, __VA_ARGS__)
#define mma_sync(...) multiply_tiles(EMU_SITE, __VA_ARGS__)

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* cpu/topk_tile.h - selection and balancing row by row, for one instruction set.
 *
 * Included once by each topk_LEVEL.c, which defines before
 *   LANES              of a vector: 4, 8 or 16
 *   VEC_MAX, VEC_MIN   of two vectors
 *   BITS(op, a, b)     bit i is set where lane i of a is GE, GT or LT that of b
 *   COUNT_GT(to, a, b) ints `to`, one more in lanes where a is greater than b
 *
 * Method   the best of a row: its columns fall into 32 or 64 classes whose maxima are
 *          kept in lanes. The keep-th greatest maximum, found by a sorting network with
 *          a row in each lane, is a bound that few more than `keep` keys reach; these
 *          are listed, and ranked by comparing each with each. Nothing of it branches
 *          on a key. Columns below a bound are listed in the same way.
 * Order    keys descending, then ids ascending: the list is in order of ids, so of
 *          equal keys the one that stands earlier is the better. -0 equals +0.    R2 */

#include "lanes.h"

typedef ints mask;
typedef uint16_t halves __attribute__((vector_size(2 * LANES)));

enum {
    FEW_CLASSES = 32,
    MANY_CLASSES = 64,
    FEW_KEPT = 17, /* up to here few classes serve                                 */
    LISTED = 96,   /* most keys that are ranked: a multiple of every LANES         */
    WORD = 64      /* columns whose comparisons make a word                        */
};

static inline mask all_of(int32_t x)
{
    return x - (mask){0};
}

static inline mask bits_of(vec v)
{
    return (mask)v;
}

static inline mask negated(mask m)
{
    return ~m;
}

/* ---- a bound on the keys that are kept ---- */

static int is_wrong(const float *score, size_t n)
{
    int wrong = 0;

    for (size_t j = 0; j < n; j++) wrong |= !(score[j] - score[j] == 0.0f);
    return wrong;
}

/* Maxima of the classes of a row's keys; column j is of class j mod classes. Returns 0,
 * or not 0 when a score is NaN or infinite: the sum of the keys is finite only where all
 * scores are, and where it is not the scores say whether it overflowed. `classes` is a
 * constant. */
static inline __attribute__((always_inline)) int
maxima(const float *score, const float *bias, size_t n, size_t classes, float *most)
{
    vec best[MANY_CLASSES / LANES], sum[MANY_CLASSES / LANES];
    float total = 0.0f;
    size_t j = 0;

#pragma GCC unroll 16
    for (size_t v = 0; v < classes / LANES; v++) {
        best[v] = all(-INFINITY);
        sum[v] = all(0.0f);
    }
    for (; j + classes <= n; j += classes) {
#pragma GCC unroll 16
        for (size_t v = 0; v < classes / LANES; v++) {
            const vec key = load(score + j + v * LANES) + load(bias + j + v * LANES);

            best[v] = VEC_MAX(best[v], key);
            sum[v] += key;
        }
    }
#pragma GCC unroll 16
    for (size_t v = 0; v < classes / LANES; v++) {
        store(most + v * LANES, best[v]);
        if (v > 0) sum[0] += sum[v];
    }
    for (size_t c = 0; j < n; j++, c++) {
        const float key = score[j] + bias[j];

        if (key > most[c]) most[c] = key;
        total += key;
    }
    for (size_t i = 0; i < LANES; i++) total += sum[0][i];
    return total - total == 0.0f ? 0 : is_wrong(score, n);
}

static inline void exchange(vec *v, size_t i, size_t j)
{
    const vec a = v[i], b = v[j];

    v[i] = VEC_MAX(a, b);
    v[j] = VEC_MIN(a, b);
}

/* Batcher's network: 16 vectors, in each lane descending. */
static inline void sort_sixteen(vec *v)
{
#define TWO(i, j) exchange(v, i, j);
#define FOUR(i, j, k, l) TWO(i, j) TWO(k, l)
    FOUR(0, 1, 2, 3) FOUR(4, 5, 6, 7) FOUR(8, 9, 10, 11) FOUR(12, 13, 14, 15);
    FOUR(0, 2, 1, 3) FOUR(4, 6, 5, 7) FOUR(8, 10, 9, 11) FOUR(12, 14, 13, 15);
    FOUR(1, 2, 5, 6) FOUR(9, 10, 13, 14);
    FOUR(0, 4, 1, 5) FOUR(2, 6, 3, 7) FOUR(8, 12, 9, 13) FOUR(10, 14, 11, 15);
    FOUR(2, 4, 3, 5) FOUR(10, 12, 11, 13);
    FOUR(1, 2, 3, 4) FOUR(5, 6, 9, 10) FOUR(11, 12, 13, 14);
    FOUR(0, 8, 1, 9) FOUR(2, 10, 3, 11) FOUR(4, 12, 5, 13) FOUR(6, 14, 7, 15);
    FOUR(4, 8, 5, 9) FOUR(6, 10, 7, 11);
    FOUR(2, 4, 3, 5) FOUR(6, 8, 7, 9) FOUR(10, 12, 11, 13);
    FOUR(1, 2, 3, 4) FOUR(5, 6, 7, 8) FOUR(9, 10, 11, 12) TWO(13, 14);
#undef FOUR
#undef TWO
}

/* Two sorted halves of 16 become one list of 32. */
static inline void merge_halves(vec *v)
{
    for (size_t k = 16; k >= 1; k /= 2)
        for (size_t j = k % 16; j + k < 32; j += 2 * k)
            for (size_t i = j; i < j + k && i + k < 32; i++) exchange(v, i, i + k);
}

/* In each lane, the keep-th greatest (from 1) of two descending lists of `size`. */
static inline vec keep_th(const vec *a, const vec *b, size_t size, size_t keep)
{
    const size_t first = keep > size ? keep - size : 0;
    const size_t last = keep < size ? keep : size;
    vec found = all(-INFINITY);

    for (size_t i = first; i <= last; i++) {
        const size_t j = keep - i;
        const vec least = i == 0   ? b[j - 1]
                          : j == 0 ? a[i - 1]
                                   : VEC_MIN(a[i - 1], b[j - 1]);

        found = VEC_MAX(found, least);
    }
    return found;
}

/* bound[row]: the keep-th greatest maximum of a row, keep <= classes. */
static void bounds(float most[][MANY_CLASSES], size_t classes, size_t keep,
                   float *bound)
{
    float turned[MANY_CLASSES][LANES] __attribute__((aligned(64)));
    vec v[MANY_CLASSES];

    for (size_t row = 0; row < LANES; row++)
        for (size_t c = 0; c < classes; c++) turned[c][row] = most[row][c];
    for (size_t c = 0; c < classes; c++) v[c] = load(turned[c]);
    for (size_t c = 0; c < classes; c += 16) sort_sixteen(v + c);
    for (size_t c = 0; c < classes && classes > FEW_CLASSES; c += 32)
        merge_halves(v + c);
    store(bound, keep_th(v, v + classes / 2, classes / 2, keep));
}

/* ---- lists of columns ---- */

/* Append the places of the set bits, counted from `first`. Nearly always there are at
 * most four: these are written whatever the bits are, over what comes later. */
static inline size_t listed(uint64_t bits, size_t first, uint32_t *at, size_t count)
{
    const size_t more = (size_t)__builtin_popcountll(bits);

#pragma GCC unroll 4
    for (size_t i = 0; i < SLM_CPU_BEYOND; i++) {
        uint32_t place =
            (uint32_t)(first + (size_t)__builtin_ctzll(bits | (uint64_t)1 << 63));

        /* GCC would build a vector of these words, which takes longer */
        __asm__("" : "+r"(place));
        at[count + i] = place;
        bits &= bits - 1;
    }
    for (size_t i = SLM_CPU_BEYOND; bits; i++, bits &= bits - 1)
        at[count + i] = (uint32_t)(first + (size_t)__builtin_ctzll(bits));
    return count + more;
}

/* Bits of up to WORD columns whose key reaches the bound. */
static inline __attribute__((always_inline)) uint64_t
word_reaching(const float *score, const float *bias, size_t cols, float bound)
{
    uint64_t bits = 0;
    size_t i = 0;

#pragma GCC unroll 16
    for (; i + LANES <= cols; i += LANES) {
        const vec key = load(score + i) + load(bias + i);

        bits |= (uint64_t)BITS(GE, key, all(bound)) << i;
    }
    for (; i < cols; i++) bits |= (uint64_t)(score[i] + bias[i] >= bound) << i;
    return bits;
}

/* Ask for WORD columns that are read later. */
static inline void ask(const float *row)
{
    enum { LINE = 16 };

#pragma GCC unroll 4
    for (size_t i = 0; i < WORD; i += LINE) __builtin_prefetch(row + i, 0, 2);
}

/* Columns whose key reaches the bound, ascending; stops once there are more than
 * LISTED, so `at` has LISTED + WORD + SLM_CPU_BEYOND elements. Asks for a row `ahead` on
 * the way: memory is idle here. */
static size_t reaching(const float *score, const float *bias, size_t n, float bound,
                       const float *ahead, uint32_t *at)
{
    size_t count = 0, first = 0;

    for (; first + WORD <= n && count <= LISTED; first += WORD) {
        ask(ahead + first);
        count = listed(word_reaching(score + first, bias + first, WORD, bound), first,
                       at, count);
    }
    if (first < n && count <= LISTED)
        count = listed(word_reaching(score + first, bias + first, n - first, bound),
                       first, at, count);
    return count;
}

/* Bits of up to WORD columns with RN32(alpha - score) <= most. */
static inline __attribute__((always_inline)) uint64_t
word_below(float alpha, const float *score, const float *most, size_t cols)
{
    uint64_t bits = 0;
    size_t i = 0;

#pragma GCC unroll 16
    for (; i + LANES <= cols; i += LANES) {
        const vec r = all(alpha) - load(score + i);

        bits |= (uint64_t)BITS(GE, load(most + i), r) << i;
    }
    for (; i < cols; i++) bits |= (uint64_t)(alpha - score[i] <= most[i]) << i;
    return bits;
}

static size_t below(float alpha, const float *score, const float *most, size_t n,
                    uint32_t *at)
{
    size_t count = 0, first = 0;

    for (; first + WORD <= n; first += WORD)
        count = listed(word_below(alpha, score + first, most + first, WORD), first, at,
                       count);
    if (first < n)
        count = listed(word_below(alpha, score + first, most + first, n - first), first,
                       at, count);
    return count;
}

/* ---- the best of a row ---- */

/* Signed integers in the order of the keys; its own inverse. */
static inline mask in_order(mask bits)
{
    return bits ^ ((bits >> 31) & 0x7fffffff);
}

/* ranked[how many keys are better] = id, of `count` keys, a multiple of LANES, which are
 * in order of ids. */
static void rank_all(const float *key, const uint32_t *id, size_t count,
                     uint32_t *ranked)
{
    int32_t word[LISTED], at[LANES], steps[2 * LANES];

    memset(steps, 0, sizeof at);
    memset(steps + LANES, -1, sizeof at);
    for (size_t i = 0; i < count; i += LANES) {
        const mask ordered = in_order(bits_of(load(key + i)));

        memcpy(word + i, &ordered, sizeof ordered);
    }
    for (size_t first = 0; first < count; first += LANES) {
        mask here, better = {0};
        size_t j = 0;

        memcpy(&here, word + first, sizeof here);
        /* an equal key is better where it stands earlier */
        for (; j < first; j++) better = COUNT_GT(better, all_of(word[j]), here - 1);
        for (; j < first + LANES; j++) {
            mask later;

            memcpy(&later, steps + LANES - 1 - (j - first), sizeof later);
            better = COUNT_GT(better, all_of(word[j]), here + later);
        }
        for (; j < count; j++) better = COUNT_GT(better, all_of(word[j]), here);
        memcpy(at, &better, sizeof better);
        for (size_t i = 0; i < LANES; i++) ranked[at[i]] = id[first + i];
    }
}

static inline float key_of(const slm_cpu_chooser *at, size_t row, uint32_t id)
{
    return at->score[row][id] + at->bias[id] + 0.0f;
}

static void choose_row(slm_cpu_chooser *at, size_t row, float bound)
{
    uint32_t id[LISTED + WORD + SLM_CPU_BEYOND], ranked[LISTED];
    float key[LISTED + LANES];
    const float *score = at->score[row];
    const float *ahead = at->ahead[row] ? at->ahead[row] : score;
    const size_t found = reaching(score, at->bias, at->n, bound, ahead, id);
    const size_t count = (found + LANES - 1) / LANES * LANES;

    at->found[row] = SLM_FOUND_NOT;
    if (found < at->keep || count > LISTED) return;
    for (size_t i = 0; i < found; i++) key[i] = key_of(at, row, id[i]);
    store(key + found, all(-INFINITY));
    memset(id + found, 0, sizeof(vec));
    rank_all(key, id, count, ranked);
    memcpy(at->ids[row], ranked,
           sizeof at->ids[row]); /* a known size; more than keep */
    at->last[row] = key_of(at, row, ranked[at->keep - 1]);
    at->found[row] = SLM_FOUND;
}

static void choose(slm_cpu_chooser *at)
{
    float most[LANES][MANY_CLASSES] __attribute__((aligned(64))) = {{0.0f}};
    float bound[LANES];
    const int few = at->keep <= FEW_KEPT, none = at->keep > SLM_CPU_KEPT;

    for (size_t row = 0; row < at->rows; row++) {
        const float *score = at->score[row];
        const int wrong = few ? maxima(score, at->bias, at->n, FEW_CLASSES, most[row])
                              : maxima(score, at->bias, at->n, MANY_CLASSES, most[row]);

        at->found[row] = wrong ? SLM_FOUND_WRONG : SLM_FOUND_NOT;
    }
    if (none) return;
    bounds(most, few ? FEW_CLASSES : MANY_CLASSES, at->keep, bound);
    for (size_t row = 0; row < at->rows; row++)
        if (at->found[row] == SLM_FOUND_NOT) choose_row(at, row, bound[row]);
}

/* ---- columns ---- */

static void pivots(const slm_cpu_sample *from, size_t first, size_t cols, size_t rank,
                   float *most)
{
    const mask wanted = all_of((int32_t)(from->rows - rank));
    mask low = all_of(INT32_MIN), high = all_of(INT32_MAX);
    float lane[LANES] = {0.0f};

    for (size_t t = 0; t < from->rows; t++) {
        const float *score = from->score[t] + first;

        if (cols < LANES) {
            memcpy(lane, score, cols * sizeof *lane);
            score = lane;
        }

        const mask r = in_order(bits_of(all(from->alpha[t]) - load(score) + 0.0f));

        memcpy(from->strip + t * LANES, &r, sizeof r);
    }
    for (int step = 0; step < 32; step++) {
        const mask middle = (low & high) + ((low ^ high) >> 1);
        mask above = {0}, enough;

        for (size_t t = 0; t < from->rows; t++) {
            mask r;

            memcpy(&r, from->strip + t * LANES, sizeof r);
            above = COUNT_GT(above, r, middle);
        }
        enough = above <= wanted;
        high = (high & negated(enough)) | (middle & enough);
        low = (low & enough) | ((middle + 1) & negated(enough));
    }
    high = in_order(high);
    memcpy(lane, &high, sizeof lane);
    memcpy(most, lane, cols * sizeof *most);
}

static inline float clamped(float x, float most)
{
    const float positive = x > 0.0f ? x : 0.0f;

    return positive < most ? positive : most;
}

static uint64_t bins(const slm_cpu_scale *scale, float alpha, const float *score,
                     size_t n, uint16_t *bin, size_t step)
{
    const vec low = all(scale->low), per_width = all(scale->per_width);
    const float near = scale->doubt, far = 1.0f - near;
    uint64_t open = 0;
    size_t i = 0;

    for (; i + LANES <= n; i += LANES) {
        const vec r = all(alpha) - load(score + i);
        const vec at =
            VEC_MIN(VEC_MAX((r - low) * per_width, all(0.0f)), all(scale->count));
        const mask whole = __builtin_convertvector(at, mask);
        const vec rest = at - __builtin_convertvector(whole, vec);
        const halves narrow = __builtin_convertvector(whole, halves);

        memcpy(bin + i / SLM_CPU_STRIP * step + i % SLM_CPU_STRIP, &narrow,
               sizeof narrow);
        open |= (uint64_t)(BITS(LT, rest, all(near)) | BITS(GT, rest, all(far))) << i;
    }
    for (; i < n; i++) {
        const float r = alpha - score[i];
        const float at = clamped((r - scale->low) * scale->per_width, scale->count);
        const float rest = at - (float)(uint32_t)at;

        bin[i / SLM_CPU_STRIP * step + i % SLM_CPU_STRIP] = (uint16_t)at;
        open |= (uint64_t)(rest < near || rest > far) << i;
    }
    return open;
}

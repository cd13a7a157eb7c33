/* One pass over a pair of float32 arrays: sums and extremes per channel, three histograms.
 *
 * Mirrors _update_numpy in stats.py, which is the definition; the tests hold the two together.
 * Loaded with ctypes, so it needs no Python headers, works on every Python version, and runs
 * without the GIL.
 */
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Order as in SUMS and EXTREMES in stats.py. */
enum { COUNT, X, X2, X3, X4, Y, Y2, XY, E, E2, NONZERO, FLUSHED, CLIPPED, NAN_X, NAN_Y, N_SUMS };
enum { NEG_X_MIN, X_MAX, NEG_Y_MIN, Y_MAX, E_ABS, N_EXTREMES };

#define LANES 16
#define MOST_ROWS (1 << 30) /* lanes count in 32 bits */
#define BLOCK 65536  /* elements of each array handled together: they stay in the caches */
#define KEY_SHIFT 18 /* keeps sign, exponent and 5 bits of the mantissa */
#define KEYS (1 << (32 - KEY_SHIFT))
#define PER_OCTAVE 32 /* as in histogram.py, down to BINS */
#define OCTAVES 16
#define SIDE (PER_OCTAVE * OCTAVES)
#define BINS (2 * SIDE + 1)
#define LARGEST (255 * PER_OCTAVE - 1) /* key of the largest finite float */
#define SPARE (256 * PER_OCTAVE - LANES) /* keys of NaN, which are free: zeros are counted there, in turns */

/* What a processor has is asked when the kernel runs. PLAIN_C is for tests: the same without any of it. */
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__) && !defined(PLAIN_C)
#define FOR_EACH_CPU __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FOR_EACH_CPU
#endif
#if defined(__x86_64__) && defined(__GNUC__) && !defined(PLAIN_C)
#include <immintrin.h>
#define WITH_AVX512
#endif

/* What each of the lanes has seen; the sums by their position in SUMS. Those of e and xy follow from the others. */
typedef struct {
    double sums[E2 + 1][LANES];
    float low_x[LANES], high_x[LANES], low_y[LANES], high_y[LANES], worst[LANES];
    int32_t count[LANES], nonzero[LANES], flushed[LANES], clipped[LANES], nan_x[LANES], nan_y[LANES];
} Lanes;

static void clear(Lanes *to) {
    memset(to, 0, sizeof *to);
    for (int l = 0; l < LANES; l++) {
        to->low_x[l] = to->low_y[l] = INFINITY;
        to->high_x[l] = to->high_y[l] = to->worst[l] = -INFINITY;
    }
}

static inline void add_one(Lanes *to, int l, float x, float y, float lo, float hi) {
    double u = x, v = y, e = u - v, u2 = u * u;
    float off = fabsf(x - y);
    to->sums[X][l] += u;
    to->sums[X2][l] += u2;
    to->sums[X3][l] += u2 * u;
    to->sums[X4][l] += u2 * u2;
    to->sums[Y][l] += v;
    to->sums[Y2][l] += v * v;
    to->sums[E2][l] += e * e;
    to->low_x[l] = x < to->low_x[l] ? x : to->low_x[l];
    to->high_x[l] = x > to->high_x[l] ? x : to->high_x[l];
    to->low_y[l] = y < to->low_y[l] ? y : to->low_y[l];
    to->high_y[l] = y > to->high_y[l] ? y : to->high_y[l];
    to->worst[l] = off > to->worst[l] ? off : to->worst[l];
    to->count[l] += 1;
    to->nonzero[l] += x != 0;
    to->flushed[l] += (x != 0) & (y == 0);
    to->clipped[l] += (x < lo) | (x > hi);
}

static inline void merge(Lanes *o, int into, int from) {
    for (int k = X; k <= E2; k++) o->sums[k][into] += o->sums[k][from];
    o->low_x[into] = o->low_x[from] < o->low_x[into] ? o->low_x[from] : o->low_x[into];
    o->high_x[into] = o->high_x[from] > o->high_x[into] ? o->high_x[from] : o->high_x[into];
    o->low_y[into] = o->low_y[from] < o->low_y[into] ? o->low_y[from] : o->low_y[into];
    o->high_y[into] = o->high_y[from] > o->high_y[into] ? o->high_y[from] : o->high_y[into];
    o->worst[into] = o->worst[from] > o->worst[into] ? o->worst[from] : o->worst[into];
    o->count[into] += o->count[from];
    o->nonzero[into] += o->nonzero[from];
    o->flushed[into] += o->flushed[from];
    o->clipped[into] += o->clipped[from];
    o->nan_x[into] += o->nan_x[from];
    o->nan_y[into] += o->nan_y[from];
}

/* Into the first lane: all are of one channel. Halves of a fixed length are what compilers know how to do at once. */
FOR_EACH_CPU
static void fold(Lanes *o) {
    for (int l = 0; l < 8; l++) merge(o, l, l + 8);
    for (int l = 0; l < 4; l++) merge(o, l, l + 4);
    for (int l = 0; l < 2; l++) merge(o, l, l + 2);
    merge(o, 0, 1);
}

/* What is left over at the end of rows goes to the first lanes. */
static void add_ends(const float *x, const float *y, int64_t rows, int64_t stride, int64_t length, const float *lo,
                     const float *hi, Lanes *to) {
    int64_t whole = length / LANES * LANES;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = whole; i < length; i++)
            add_one(to, (int)(i - whole), x[r * stride + i], y[r * stride + i], lo[i - whole], hi[i - whole]);
}

/* Lane l sees every value whose position in its row is l modulo LANES, but for those behind the last whole lanes. */
FOR_EACH_CPU
static void add_rows(const float *restrict x, const float *restrict y, int64_t rows, int64_t stride, int64_t length,
                     const float *restrict lo, const float *restrict hi, Lanes *restrict to) {
    double s[E2 + 1][LANES] = {{0}};
    float low_x[LANES], high_x[LANES], low_y[LANES], high_y[LANES], worst[LANES];
    int32_t nonzero[LANES] = {0}, flushed[LANES] = {0}, clipped[LANES] = {0};
    int64_t whole = length / LANES * LANES;
    for (int l = 0; l < LANES; l++) {
        low_x[l] = low_y[l] = INFINITY;
        high_x[l] = high_y[l] = worst[l] = -INFINITY;
    }
    for (int64_t r = 0; r < rows; r++) {
        const float *row_x = x + r * stride, *row_y = y + r * stride;
        for (int64_t i = 0; i < whole; i += LANES) {
            for (int l = 0; l < LANES; l++) {
                double u = row_x[i + l], v = row_y[i + l], e = u - v, u2 = u * u;
                s[X][l] += u;
                s[X2][l] += u2;
                s[X3][l] += u2 * u;
                s[X4][l] += u2 * u2;
                s[Y][l] += v;
                s[Y2][l] += v * v;
                s[E2][l] += e * e;
            }
            for (int l = 0; l < LANES; l++) {
                float u = row_x[i + l], v = row_y[i + l], e = fabsf(u - v);
                low_x[l] = u < low_x[l] ? u : low_x[l];
                high_x[l] = u > high_x[l] ? u : high_x[l];
                low_y[l] = v < low_y[l] ? v : low_y[l];
                high_y[l] = v > high_y[l] ? v : high_y[l];
                worst[l] = e > worst[l] ? e : worst[l];
                nonzero[l] += u != 0;
                flushed[l] += (u != 0) & (v == 0);
                clipped[l] += (u < lo[l]) | (u > hi[l]);
            }
        }
    }
    for (int k = X; k <= E2; k++)
        for (int l = 0; l < LANES; l++) to->sums[k][l] += s[k][l];
    for (int l = 0; l < LANES; l++) {
        to->low_x[l] = low_x[l] < to->low_x[l] ? low_x[l] : to->low_x[l];
        to->high_x[l] = high_x[l] > to->high_x[l] ? high_x[l] : to->high_x[l];
        to->low_y[l] = low_y[l] < to->low_y[l] ? low_y[l] : to->low_y[l];
        to->high_y[l] = high_y[l] > to->high_y[l] ? high_y[l] : to->high_y[l];
        to->worst[l] = worst[l] > to->worst[l] ? worst[l] : to->worst[l];
        to->count[l] += (int32_t)(rows * (whole / LANES));
        to->nonzero[l] += nonzero[l];
        to->flushed[l] += flushed[l];
        to->clipped[l] += clipped[l];
    }
}

/* One by one: rows shorter than the lanes, and non-finite values, which are counted apart and their pair left out of
 * everything else. Without `joined` position l of a row goes to lane l. */
static void add_rows_slowly(const float *x, const float *y, int64_t rows, int64_t stride, int64_t length,
                            const float *lo, const float *hi, int joined, Lanes *to) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < length; i++) {
            int l = joined ? 0 : (int)i;
            float u = x[r * stride + i], v = y[r * stride + i];
            to->nan_x[l] += !isfinite(u);
            to->nan_y[l] += !isfinite(v);
            if (isfinite(u) && isfinite(v)) add_one(to, l, u, v, lo[l], hi[l]);
        }
}

/* Two tables an array, used in turns: equal neighbors then do not wait for each other. */
typedef uint32_t Table[2][KEYS];

typedef struct {
    const float *lo, *hi; /* one value a channel */
    double *sums, *extremes;
    Table *tables;
} Target;

/* What lane l has seen goes to its channel. */
static void put(const Lanes *from, int l, int64_t channel, const Target *to) {
    double *s = to->sums + channel * N_SUMS, *m = to->extremes + channel * N_EXTREMES;
    double x2 = from->sums[X2][l], y2 = from->sums[Y2][l], e2 = from->sums[E2][l];
    s[COUNT] += from->count[l];
    for (int k = X; k <= E2; k++) s[k] += from->sums[k][l];
    s[E] += from->sums[X][l] - from->sums[Y][l];
    s[XY] += (x2 + y2 - e2) / 2; /* from (x - y)^2 */
    s[NONZERO] += from->nonzero[l];
    s[FLUSHED] += from->flushed[l];
    s[CLIPPED] += from->clipped[l];
    s[NAN_X] += from->nan_x[l];
    s[NAN_Y] += from->nan_y[l];
    double found[N_EXTREMES] = {-from->low_x[l], from->high_x[l], -from->low_y[l], from->high_y[l],
                                fmin(from->worst[l], FLT_MAX)};
    for (int k = 0; k < N_EXTREMES; k++)
        if (found[k] > m[k]) m[k] = found[k];
}

/* Also brings the block into the cache, in the order in which memory likes to be read. */
FOR_EACH_CPU
static int all_finite(const float *restrict x, const float *restrict y, int64_t n) {
    float sum = 0; /* zero times a finite number is zero, times another NaN */
    float lanes[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++) lanes[l] += x[i + l] * 0.0f + y[i + l] * 0.0f;
    for (; i < n; i++) sum += x[i] * 0.0f + y[i] * 0.0f;
    for (int l = 0; l < LANES; l++) sum += lanes[l];
    return sum == 0;
}

static inline uint16_t key(float v) {
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return (uint16_t)(bits >> KEY_SHIFT);
}

#define STEP 512

/* Of zeros there may be very many, and neighbors that count at the same place wait for each other. */
FOR_EACH_CPU
static void keys_plainly(const float *restrict x, const float *restrict y, int n, uint16_t *restrict kx,
                         uint16_t *restrict ky, uint16_t *restrict ke) {
    for (int i = 0; i < n; i++) {
        float e = x[i] - y[i];
        uint32_t bits_x, bits_y, bits_e, zero = SPARE + i % LANES;
        memcpy(&bits_x, x + i, sizeof bits_x);
        memcpy(&bits_y, y + i, sizeof bits_y);
        memcpy(&bits_e, &e, sizeof bits_e);
        kx[i] = (uint16_t)(bits_x ? bits_x >> KEY_SHIFT : zero);
        ky[i] = (uint16_t)(bits_y ? bits_y >> KEY_SHIFT : zero);
        ke[i] = (uint16_t)(bits_e ? bits_e >> KEY_SHIFT : zero);
    }
}

#ifdef WITH_AVX512
__attribute__((target("avx512f"))) static inline void keys_of_lanes(__m512 values, __m512i zeros, uint16_t *to) {
    __m512i bits = _mm512_castps_si512(values);
    __m512i found = _mm512_mask_srli_epi32(zeros, _mm512_test_epi32_mask(bits, bits), bits, KEY_SHIFT);
    _mm256_storeu_si256((__m256i *)to, _mm512_cvtepi32_epi16(found));
}

__attribute__((target("avx512f"))) static void keys_avx512(const float *x, const float *y, int n, uint16_t *kx,
                                                           uint16_t *ky, uint16_t *ke) {
    const __m512i places = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i zeros = _mm512_add_epi32(places, _mm512_set1_epi32(SPARE));
    int i = 0;
    for (; i + LANES <= n; i += LANES) {
        __m512 u = _mm512_loadu_ps(x + i), v = _mm512_loadu_ps(y + i);
        keys_of_lanes(u, zeros, kx + i);
        keys_of_lanes(v, zeros, ky + i);
        keys_of_lanes(_mm512_sub_ps(u, v), zeros, ke + i);
    }
    keys_plainly(x + i, y + i, n - i, kx + i, ky + i, ke + i);
}
#endif

static void keys_of(const float *x, const float *y, int n, uint16_t *kx, uint16_t *ky, uint16_t *ke) {
#ifdef WITH_AVX512
    if (__builtin_cpu_supports("avx512f")) {
        keys_avx512(x, y, n, kx, ky, ke);
        return;
    }
#endif
    keys_plainly(x, y, n, kx, ky, ke);
}

static inline void count_four(const uint16_t *keys, Table table) {
    table[0][keys[0]]++;
    table[1][keys[1]]++;
    table[0][keys[2]]++;
    table[1][keys[3]]++;
}

static void histograms(const float *restrict x, const float *restrict y, int64_t n, int finite, Table *tables) {
    if (!tables) return;
    uint16_t kx[STEP], ky[STEP], ke[STEP];
    int64_t i = 0;
    while (finite && i + 4 <= n) {
        int m = n - i < STEP ? (int)(n - i) & ~3 : STEP;
        keys_of(x + i, y + i, m, kx, ky, ke);
        for (int j = 0; j < m; j += 4) count_four(kx + j, tables[0]);
        for (int j = 0; j < m; j += 4) count_four(ky + j, tables[1]);
        for (int j = 0; j < m; j += 4) count_four(ke + j, tables[2]);
        i += m;
    }
    for (; i < n; i++) {
        if (!isfinite(x[i]) || !isfinite(y[i])) continue;
        tables[0][0][key(x[i])]++;
        tables[1][0][key(y[i])]++;
        tables[2][0][key(x[i] - y[i])]++;
    }
}

/* The octaves that Histogram keeps, as it lays them out; returns the top exponent, 0 for no values. */
static int32_t compact(Table table, int64_t *counts) {
    uint32_t *even[2] = {table[0], table[0] + KEYS / 2}, *odd[2] = {table[1], table[1] + KEYS / 2};
    for (int sign = 0; sign < 2; sign++) { /* a difference of two finite values may have overflowed */
        even[sign][LARGEST] += even[sign][LARGEST + 1] + odd[sign][LARGEST + 1];
        even[sign][LARGEST + 1] = odd[sign][LARGEST + 1] = 0;
    }
    for (int k = SPARE; k < SPARE + LANES; k++) {
        even[0][0] += even[0][k] + odd[0][k];
        even[0][k] = odd[0][k] = 0;
    }
    int used = LARGEST;
    while (used >= 0 && !(even[0][used] | odd[0][used] | even[1][used] | odd[1][used])) used--;
    if (used < 0) return 0;
    int top = used / PER_OCTAVE < OCTAVES ? OCTAVES : used / PER_OCTAVE;
    int low = (top - OCTAVES + 1) * PER_OCTAVE;
    int64_t near_zero = 0;
    for (int k = 0; k < low; k++) near_zero += (int64_t)even[0][k] + odd[0][k] + even[1][k] + odd[1][k];
    counts[SIDE] = near_zero;
    for (int k = 0; k < SIDE; k++) {
        counts[SIDE + 1 + k] = (int64_t)even[0][low + k] + odd[0][low + k];
        counts[SIDE - 1 - k] = (int64_t)even[1][low + k] + odd[1][low + k];
    }
    return top;
}

/* The lanes of neighboring positions of a row, which may be several rows in one. */
typedef struct {
    Lanes lanes;
    float lo[LANES], hi[LANES];
} Group;

static void open_group(Group *group, int64_t p, int64_t row, int64_t channels, int64_t inner, const Target *to) {
    clear(&group->lanes);
    for (int64_t l = 0; l < LANES; l++) {
        int64_t channel = (p + l) / inner % channels;
        group->lo[l] = p + l < row ? to->lo[channel] : 0;
        group->hi[l] = p + l < row ? to->hi[channel] : 0;
    }
}

static void close_group(const Group *group, int64_t p, int64_t row, int64_t channels, int64_t inner, const Target *to) {
    for (int64_t l = 0; l < LANES && p + l < row; l++) put(&group->lanes, (int)l, (p + l) / inner % channels, to);
}

static void add_to_group(const float *x, const float *y, int64_t rows, int64_t row, int64_t p, int finite,
                         Group *group) {
    int64_t width = row - p < LANES ? row - p : LANES;
    if (finite && width == LANES)
        add_rows(x + p, y + p, rows, row, LANES, group->lo, group->hi, &group->lanes);
    else
        add_rows_slowly(x + p, y + p, rows, row, width, group->lo, group->hi, 0, &group->lanes);
}

/* Rows of a few values a channel. The groups of a row are kept through all rows; one at a time where there is no
 * memory for that. */
static void add_positions(const float *x, const float *y, int64_t rows, int64_t row, int64_t channels, int64_t inner,
                          const Target *to) {
    int64_t groups = (row + LANES - 1) / LANES, fitting = row < BLOCK / LANES ? BLOCK / row : LANES;
    Group one, *kept = rows > fitting ? malloc((size_t)groups * sizeof *kept) : NULL;
    for (int64_t g = 0; kept && g < groups; g++) open_group(kept + g, g * LANES, row, channels, inner, to);
    for (int64_t r = 0; r < rows; r += fitting) {
        int64_t some = rows - r < fitting ? rows - r : fitting;
        const float *bx = x + r * row, *by = y + r * row;
        int finite = all_finite(bx, by, some * row);
        for (int64_t g = 0; g < groups; g++) {
            if (!kept) open_group(&one, g * LANES, row, channels, inner, to);
            add_to_group(bx, by, some, row, g * LANES, finite, kept ? kept + g : &one);
            if (!kept) close_group(&one, g * LANES, row, channels, inner, to);
        }
        histograms(bx, by, some * row, finite, to->tables);
    }
    for (int64_t g = 0; kept && g < groups; g++) close_group(kept + g, g * LANES, row, channels, inner, to);
    free(kept);
}

static void add_short_channels(const float *x, const float *y, int64_t outer, int64_t channels, int64_t inner,
                               const Target *to) {
    int64_t row = channels * inner, together = LANES;
    while (together > 1 && row * (together / 2) % LANES == 0) together /= 2; /* so many rows fill whole lanes */
    int64_t done = 0;
    while (outer - done >= together) {
        int64_t whole = (outer - done) / together < MOST_ROWS ? (outer - done) / together : MOST_ROWS;
        add_positions(x + done * row, y + done * row, whole, together * row, channels, inner, to);
        done += whole * together;
    }
    if (done < outer) add_positions(x + done * row, y + done * row, outer - done, row, channels, inner, to);
}

/* Channels c and up, `inner` values each, in rows that are `row` values apart: lanes are neighboring positions. */
static void add_long_channels(const float *x, const float *y, int64_t rows, int64_t row, int64_t c, int64_t channels,
                              int64_t inner, const Target *to) {
    int finite = rows == 1 || all_finite(x, y, (rows - 1) * row + channels * inner);
    for (int64_t i = 0; i < channels; i++) {
        Lanes lanes;
        float lo[LANES], hi[LANES];
        const float *cx = x + i * inner, *cy = y + i * inner;
        for (int l = 0; l < LANES; l++) {
            lo[l] = to->lo[c + i];
            hi[l] = to->hi[c + i];
        }
        clear(&lanes);
        add_rows(cx, cy, rows, row, inner, lo, hi, &lanes);
        if (inner % LANES) add_ends(cx, cy, rows, row, inner, lo, hi, &lanes);
        fold(&lanes);
        if (!isfinite(lanes.sums[X][0]) || !isfinite(lanes.sums[Y][0])) {
            finite = 0;
            clear(&lanes);
            add_rows_slowly(cx, cy, rows, row, inner, lo, hi, 1, &lanes);
        }
        put(&lanes, 0, c + i, to);
    }
    histograms(x, y, (rows - 1) * row + channels * inner, finite, to->tables);
}

/* x and y are C-contiguous [outer, channels, inner]; goes through them in blocks that are contiguous too. */
static void add_all(const float *x, const float *y, int64_t outer, int64_t channels, int64_t inner, const Target *to) {
    int64_t row = channels * inner, fitting = row < BLOCK ? BLOCK / row : 1;
    if (inner < LANES) {
        add_short_channels(x, y, outer, channels, inner, to);
        return;
    }
    for (int64_t o = 0; o < outer; o += fitting) {
        int64_t rows = outer - o < fitting ? outer - o : fitting;
        const float *bx = x + o * row, *by = y + o * row;
        if (row <= BLOCK) {
            add_long_channels(bx, by, rows, row, 0, channels, inner, to);
        } else {
            int64_t together = inner < BLOCK ? BLOCK / inner : 1, step = inner < BLOCK ? inner : BLOCK;
            for (int64_t c = 0; c < channels; c += together) {
                int64_t some = channels - c < together ? channels - c : together;
                for (int64_t i = 0; i < inner; i += step) {
                    int64_t at = c * inner + i, length = inner - i < step ? inner - i : step;
                    add_long_channels(bx + at, by + at, 1, row, c, some, length, to);
                }
            }
        }
    }
}

/* Writes three histograms to `counts` [3, BINS], unless it is NULL, and their top exponents to `tops`. */
void inc_tb_update(const float *x, const float *y, int64_t outer, int64_t channels, int64_t inner, const float *lo,
                   const float *hi, double *sums, double *extremes, int64_t *counts, int32_t *tops) {
    static _Thread_local Table tables[3]; /* all zero between calls */
    Target to = {lo, hi, sums, extremes, counts ? tables : NULL};
    add_all(x, y, outer, channels, inner, &to);
    if (!counts) return;
    for (int i = 0; i < 3; i++) tops[i] = compact(tables[i], counts + i * BINS);
    memset(tables, 0, sizeof tables);
}

/* Of each of `rows` rows of `length` values: the sum of x squared, and of x - y squared. */
FOR_EACH_CPU
void inc_tb_energies(const float *restrict x, const float *restrict y, int64_t rows, int64_t length,
                     double *restrict power, double *restrict error) {
    for (int64_t r = 0; r < rows; r++) {
        const float *row_x = x + r * length, *row_y = y + r * length;
        double p[LANES] = {0}, q[LANES] = {0}, rest_p = 0, rest_q = 0;
        int64_t i = 0;
        for (; i + LANES <= length; i += LANES)
            for (int l = 0; l < LANES; l++) {
                double u = row_x[i + l], e = u - row_y[i + l];
                p[l] += u * u;
                q[l] += e * e;
            }
        for (; i < length; i++) {
            double u = row_x[i], e = u - row_y[i];
            rest_p += u * u;
            rest_q += e * e;
        }
        for (int l = 0; l < LANES; l++) {
            rest_p += p[l];
            rest_q += q[l];
        }
        power[r] = rest_p;
        error[r] = rest_q;
    }
}

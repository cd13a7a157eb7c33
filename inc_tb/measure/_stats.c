/* One pass over a pair of float32 arrays: sums and extremes per channel, three histograms.
 *
 * Mirrors _update_numpy in stats.py, which is the definition; the tests hold the two together.
 * Loaded with ctypes, so it needs no Python headers, works on every Python version, and runs
 * without the GIL.
 */
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

/* Order as in SUMS and EXTREMES in stats.py. */
enum { COUNT, X, X2, X3, X4, Y, Y2, XY, E, E2, NONZERO, FLUSHED, CLIPPED, NAN_X, NAN_Y, N_SUMS };
enum { NEG_X_MIN, X_MAX, NEG_Y_MIN, Y_MAX, E_ABS, N_EXTREMES };

#define LANES 16
#define BLOCK 32768  /* elements of each array handled together: they stay in the caches */
#define KEY_SHIFT 18 /* keeps sign, exponent and 5 bits of the mantissa */
#define KEYS (1 << (32 - KEY_SHIFT))
#define PER_OCTAVE 32 /* as in histogram.py, down to BINS */
#define OCTAVES 16
#define SIDE (PER_OCTAVE * OCTAVES)
#define BINS (2 * SIDE + 1)
#define LARGEST (255 * PER_OCTAVE - 1) /* key of the largest finite float */

#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__)
#define FOR_EACH_CPU __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FOR_EACH_CPU
#endif

/* What one lane has seen; the sums by their position in SUMS. Those of e and xy follow from the others. */
typedef struct {
    double sums[E2 + 1];
    float low_x, high_x, low_y, high_y, worst;
    int32_t count, nonzero, flushed, clipped, nan_x, nan_y;
} One;

static const One NOTHING = {{0}, INFINITY, -INFINITY, INFINITY, -INFINITY, -INFINITY, 0, 0, 0, 0, 0, 0};

static inline void add_one(One *o, float x, float y, float lo, float hi) {
    double u = x, v = y, e = u - v, u2 = u * u;
    o->sums[X] += u;
    o->sums[X2] += u2;
    o->sums[X3] += u2 * u;
    o->sums[X4] += u2 * u2;
    o->sums[Y] += v;
    o->sums[Y2] += v * v;
    o->sums[E2] += e * e;
    o->low_x = x < o->low_x ? x : o->low_x;
    o->high_x = x > o->high_x ? x : o->high_x;
    o->low_y = y < o->low_y ? y : o->low_y;
    o->high_y = y > o->high_y ? y : o->high_y;
    o->worst = fabsf(x - y) > o->worst ? fabsf(x - y) : o->worst;
    o->count += 1;
    o->nonzero += x != 0;
    o->flushed += (x != 0) & (y == 0);
    o->clipped += (x < lo) | (x > hi);
}

static inline void merge(One *into, const One *from) {
    for (int k = X; k <= E2; k++) into->sums[k] += from->sums[k];
    into->low_x = from->low_x < into->low_x ? from->low_x : into->low_x;
    into->high_x = from->high_x > into->high_x ? from->high_x : into->high_x;
    into->low_y = from->low_y < into->low_y ? from->low_y : into->low_y;
    into->high_y = from->high_y > into->high_y ? from->high_y : into->high_y;
    into->worst = from->worst > into->worst ? from->worst : into->worst;
    into->count += from->count;
    into->nonzero += from->nonzero;
    into->flushed += from->flushed;
    into->clipped += from->clipped;
}

/* Lane l sees every value whose position in its row is l modulo LANES; `ones` gets one result a lane.
 * With `joined` all lanes are of one channel: rows may have any length, and the first result is the sum. */
FOR_EACH_CPU
static void add_rows(const float *restrict x, const float *restrict y, int64_t rows, int64_t stride, int64_t length,
                     const float *restrict lo, const float *restrict hi, int joined, One *restrict ones) {
    double s[E2 + 1][LANES] = {{0}};
    float low_x[LANES], high_x[LANES], low_y[LANES], high_y[LANES], worst[LANES];
    int32_t nonzero[LANES] = {0}, flushed[LANES] = {0}, clipped[LANES] = {0}, count = 0;
    One rest = NOTHING;
    for (int l = 0; l < LANES; l++) {
        low_x[l] = low_y[l] = INFINITY;
        high_x[l] = high_y[l] = worst[l] = -INFINITY;
    }
    for (int64_t r = 0; r < rows; r++) {
        const float *row_x = x + r * stride, *row_y = y + r * stride;
        int64_t i = 0;
        for (; i + LANES <= length; i += LANES) {
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
            count++;
        }
        for (; i < length; i++) add_one(&rest, row_x[i], row_y[i], lo[0], hi[0]);
    }
    for (int l = 0; l < LANES; l++) {
        One one = {{0}, low_x[l], high_x[l], low_y[l], high_y[l], worst[l], count, nonzero[l], flushed[l], clipped[l], 0, 0};
        for (int k = X; k <= E2; k++) one.sums[k] = s[k][l];
        if (joined)
            merge(&rest, &one);
        else
            ones[l] = one;
    }
    if (joined) ones[0] = rest;
}

/* The same, one by one: for rows shorter than the lanes, and with non-finite values, which are counted apart
 * and their pair left out of everything else. */
static void add_rows_slowly(const float *x, const float *y, int64_t rows, int64_t stride, int64_t length,
                            const float *lo, const float *hi, int joined, One *ones) {
    for (int l = 0; l < LANES; l++) ones[l] = NOTHING;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < length; i++) {
            int l = joined ? 0 : (int)i;
            float u = x[r * stride + i], v = y[r * stride + i];
            ones[l].nan_x += !isfinite(u);
            ones[l].nan_y += !isfinite(v);
            if (isfinite(u) && isfinite(v)) add_one(ones + l, u, v, lo[l], hi[l]);
        }
}

/* Adds rows to one channel, or each lane to its own. `finite` is what is known or hoped; returns whether it holds. */
static int add(const float *x, const float *y, int64_t rows, int64_t stride, int64_t length, int finite,
                const float *lo, const float *hi, const int64_t *channel, int channels, double *sums,
                double *extremes) {
    One ones[LANES];
    int joined = channels == 1;
    if (finite && (joined || length == LANES)) {
        add_rows(x, y, rows, stride, length, lo, hi, joined, ones);
        finite = !joined || (isfinite(ones[0].sums[X]) && isfinite(ones[0].sums[Y]));
    }
    if (!finite || !(joined || length == LANES))
        add_rows_slowly(x, y, rows, stride, length, lo, hi, joined, ones);
    for (int l = 0; l < channels; l++) {
        const One *o = ones + l;
        double *s = sums + channel[l] * N_SUMS, *m = extremes + channel[l] * N_EXTREMES;
        s[COUNT] += o->count;
        for (int k = X; k <= E2; k++) s[k] += o->sums[k];
        s[E] += o->sums[X] - o->sums[Y];
        s[XY] += (o->sums[X2] + o->sums[Y2] - o->sums[E2]) / 2; /* from (x - y)^2 */
        s[NONZERO] += o->nonzero;
        s[FLUSHED] += o->flushed;
        s[CLIPPED] += o->clipped;
        s[NAN_X] += o->nan_x;
        s[NAN_Y] += o->nan_y;
        double found[N_EXTREMES] = {-o->low_x, o->high_x, -o->low_y, o->high_y, fmin(o->worst, FLT_MAX)};
        for (int k = 0; k < N_EXTREMES; k++)
            if (found[k] > m[k]) m[k] = found[k];
    }
    return finite;
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

static inline uint32_t key(float v) {
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits >> KEY_SHIFT;
}


/* Two tables an array, used in turns: equal neighbors (zeros after a ReLU) then do not wait for each other. */
typedef uint32_t Table[2][KEYS];

#define STEP 512

FOR_EACH_CPU
static void keys_of(const float *restrict x, const float *restrict y, int n, uint16_t *restrict kx,
                    uint16_t *restrict ky, uint16_t *restrict ke) {
    for (int i = 0; i < n; i++) {
        kx[i] = (uint16_t)key(x[i]);
        ky[i] = (uint16_t)key(y[i]);
        ke[i] = (uint16_t)key(x[i] - y[i]);
    }
}

static inline void count_four(const uint16_t *keys, Table table) {
    uint64_t four;
    memcpy(&four, keys, sizeof four);
    table[0][four & 0xffff]++;
    table[1][(four >> 16) & 0xffff]++;
    table[0][(four >> 32) & 0xffff]++;
    table[1][four >> 48]++;
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

typedef struct {
    const float *lo, *hi; /* one value a channel */
    double *sums, *extremes;
    Table *tables;
} Target;

/* Rows of a few values a channel: lanes are neighboring positions of a row, which may be several rows in one. */
static void add_positions(const float *x, const float *y, int64_t rows, int64_t row, int64_t channels, int64_t inner,
                          int finite, const Target *to) {
    int64_t channel[LANES];
    float lo[LANES], hi[LANES];
    for (int64_t p = 0; p < row; p += LANES) {
        int64_t width = row - p < LANES ? row - p : LANES;
        for (int64_t l = 0; l < width; l++) {
            channel[l] = (p + l) / inner % channels;
            lo[l] = to->lo[channel[l]];
            hi[l] = to->hi[channel[l]];
        }
        for (int64_t l = width; l < LANES; l++) lo[l] = hi[l] = 0;
        add(x + p, y + p, rows, row, width, finite, lo, hi, channel, (int)width, to->sums, to->extremes);
    }
}

static void add_short_channels(const float *x, const float *y, int64_t rows, int64_t channels, int64_t inner,
                               const Target *to) {
    int64_t row = channels * inner, together = LANES;
    int finite = all_finite(x, y, rows * row);
    while (together > 1 && row * (together / 2) % LANES == 0) together /= 2; /* so many rows fill whole lanes */
    int64_t whole = rows / together;
    if (whole) add_positions(x, y, whole, together * row, channels, inner, finite, to);
    int64_t done = whole * together;
    if (done < rows) add_positions(x + done * row, y + done * row, rows - done, row, channels, inner, finite, to);
    histograms(x, y, rows * row, finite, to->tables);
}

/* Channels c and up, `inner` values each, in rows that are `row` values apart: lanes are neighboring positions. */
static void add_long_channels(const float *x, const float *y, int64_t rows, int64_t row, int64_t c, int64_t channels,
                              int64_t inner, const Target *to) {
    int finite = 1;
    for (int64_t i = 0; i < channels; i++) {
        float lo[LANES], hi[LANES];
        int64_t channel = c + i;
        for (int l = 0; l < LANES; l++) {
            lo[l] = to->lo[channel];
            hi[l] = to->hi[channel];
        }
        finite &= add(x + i * inner, y + i * inner, rows, row, inner, 1, lo, hi, &channel, 1, to->sums, to->extremes);
    }
    histograms(x, y, (rows - 1) * row + channels * inner, finite, to->tables);
}

/* x and y are C-contiguous [outer, channels, inner]; goes through them in blocks that are contiguous too. */
static void add_all(const float *x, const float *y, int64_t outer, int64_t channels, int64_t inner, const Target *to) {
    int64_t row = channels * inner, fitting = row < BLOCK ? BLOCK / row : 1;
    if (inner < LANES && fitting < LANES) fitting = LANES; /* enough to fill the lanes together */
    for (int64_t o = 0; o < outer; o += fitting) {
        int64_t rows = outer - o < fitting ? outer - o : fitting;
        const float *bx = x + o * row, *by = y + o * row;
        if (inner < LANES) {
            add_short_channels(bx, by, rows, channels, inner, to);
        } else if (row <= BLOCK) {
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

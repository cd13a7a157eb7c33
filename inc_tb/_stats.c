/* One pass over a pair of float32 arrays: sums and extremes per channel, three histograms.
 *
 * Mirrors _update_numpy in stats.py, which is the definition; the tests hold the two together.
 * Loaded with ctypes, so it needs no Python headers, works on every Python version, and runs
 * without the GIL.
 */
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

#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__)
#define FOR_EACH_CPU __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FOR_EACH_CPU
#endif

typedef struct {
    double sums[E2 + 1][LANES];
    float low_x[LANES], high_x[LANES], low_y[LANES], high_y[LANES], worst[LANES];
    int32_t count[LANES], nonzero[LANES], flushed[LANES], clipped[LANES];
} Lanes;

/* Each lane adds up every LANES-th value of each row; nothing is lost when rows are shorter. */
FOR_EACH_CPU
static void add_rows(const float *restrict x, const float *restrict y, int64_t rows, int64_t stride, int64_t length,
                     const float *restrict lo, const float *restrict hi, Lanes *restrict out) {
    Lanes a;
    memset(&a, 0, sizeof a);
    for (int l = 0; l < LANES; l++) {
        a.low_x[l] = a.low_y[l] = INFINITY;
        a.high_x[l] = a.high_y[l] = a.worst[l] = -INFINITY;
    }
#define ADD(width)                                                         \
    for (int l = 0; l < (width); l++) {                                    \
        double u = row_x[i + l], v = row_y[i + l], e = u - v, u2 = u * u;  \
        a.sums[X][l] += u;                                                 \
        a.sums[X2][l] += u2;                                               \
        a.sums[X3][l] += u2 * u;                                           \
        a.sums[X4][l] += u2 * u2;                                          \
        a.sums[Y][l] += v;                                                 \
        a.sums[Y2][l] += v * v;                                            \
        a.sums[XY][l] += u * v;                                            \
        a.sums[E][l] += e;                                                 \
        a.sums[E2][l] += e * e;                                            \
    }                                                                      \
    for (int l = 0; l < (width); l++) {                                    \
        float u = row_x[i + l], v = row_y[i + l], e = fabsf(u - v);        \
        a.low_x[l] = u < a.low_x[l] ? u : a.low_x[l];                      \
        a.high_x[l] = u > a.high_x[l] ? u : a.high_x[l];                   \
        a.low_y[l] = v < a.low_y[l] ? v : a.low_y[l];                      \
        a.high_y[l] = v > a.high_y[l] ? v : a.high_y[l];                   \
        a.worst[l] = e > a.worst[l] ? e : a.worst[l];                      \
        a.count[l] += 1;                                                   \
        a.nonzero[l] += u != 0;                                            \
        a.flushed[l] += (u != 0) & (v == 0);                               \
        a.clipped[l] += (u < lo[l]) | (u > hi[l]);                         \
    }
    for (int64_t r = 0; r < rows; r++) {
        const float *row_x = x + r * stride, *row_y = y + r * stride;
        int64_t i = 0;
        for (; i + LANES <= length; i += LANES) { ADD(LANES) }
        if (i < length) { ADD(length - i) }
    }
    *out = a;
}

static int is_finite(const Lanes *a) {
    double all = 0;
    for (int l = 0; l < LANES; l++) all += a->sums[X][l] * 0 + a->sums[Y][l] * 0;
    return all == 0;
}

/* The same with non-finite values: counted apart, their pair left out of everything else. */
static void add_rows_nonfinite(const float *x, const float *y, int64_t rows, int64_t stride, int64_t length,
                               const float *lo, const float *hi, Lanes *out, double *nan_x, double *nan_y) {
    add_rows(x, y, 0, 0, 0, lo, hi, out);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < length; i++) {
            int l = (int)(i % LANES);
            float u = x[r * stride + i], v = y[r * stride + i];
            nan_x[l] += !isfinite(u);
            nan_y[l] += !isfinite(v);
            if (!isfinite(u) || !isfinite(v)) continue;
            Lanes one;
            add_rows(&u, &v, 1, 1, 1, lo + l, hi + l, &one);
            for (int k = X; k <= E2; k++) out->sums[k][l] += one.sums[k][0];
            if (u < out->low_x[l]) out->low_x[l] = u;
            if (u > out->high_x[l]) out->high_x[l] = u;
            if (v < out->low_y[l]) out->low_y[l] = v;
            if (v > out->high_y[l]) out->high_y[l] = v;
            if (one.worst[0] > out->worst[l]) out->worst[l] = one.worst[0];
            out->count[l] += 1;
            out->nonzero[l] += one.nonzero[0];
            out->flushed[l] += one.flushed[0];
            out->clipped[l] += one.clipped[0];
        }
}

/* Folds all lanes into the first. */
FOR_EACH_CPU
static void collapse(Lanes *a, double *nan_x, double *nan_y) {
    for (int half = LANES / 2; half; half /= 2) {
        for (int k = X; k <= E2; k++)
            for (int l = 0; l < half; l++) a->sums[k][l] += a->sums[k][l + half];
        for (int l = 0; l < half; l++) {
            int m = l + half;
            a->low_x[l] = a->low_x[m] < a->low_x[l] ? a->low_x[m] : a->low_x[l];
            a->high_x[l] = a->high_x[m] > a->high_x[l] ? a->high_x[m] : a->high_x[l];
            a->low_y[l] = a->low_y[m] < a->low_y[l] ? a->low_y[m] : a->low_y[l];
            a->high_y[l] = a->high_y[m] > a->high_y[l] ? a->high_y[m] : a->high_y[l];
            a->worst[l] = a->worst[m] > a->worst[l] ? a->worst[m] : a->worst[l];
            a->count[l] += a->count[m];
            a->nonzero[l] += a->nonzero[m];
            a->flushed[l] += a->flushed[m];
            a->clipped[l] += a->clipped[m];
            nan_x[l] += nan_x[m];
            nan_y[l] += nan_y[m];
        }
    }
}

/* Adds rows to one channel, or each lane to its own; returns whether all values were finite. */
static int add(const float *x, const float *y, int64_t rows, int64_t stride, int64_t length, const float *lo,
               const float *hi, const int64_t *channel, int channels, double *sums, double *extremes) {
    Lanes a;
    double nan_x[LANES] = {0}, nan_y[LANES] = {0};
    add_rows(x, y, rows, stride, length, lo, hi, &a);
    int finite = is_finite(&a);
    if (!finite) add_rows_nonfinite(x, y, rows, stride, length, lo, hi, &a, nan_x, nan_y);
    if (channels == 1) collapse(&a, nan_x, nan_y);
    for (int l = 0; l < channels; l++) {
        double *s = sums + channel[l] * N_SUMS, *m = extremes + channel[l] * N_EXTREMES;
        s[COUNT] += a.count[l];
        for (int k = X; k <= E2; k++) s[k] += a.sums[k][l];
        s[NONZERO] += a.nonzero[l];
        s[FLUSHED] += a.flushed[l];
        s[CLIPPED] += a.clipped[l];
        s[NAN_X] += nan_x[l];
        s[NAN_Y] += nan_y[l];
        double found[N_EXTREMES] = {-a.low_x[l], a.high_x[l], -a.low_y[l], a.high_y[l], a.worst[l]};
        for (int k = 0; k < N_EXTREMES; k++)
            if (found[k] > m[k]) m[k] = found[k];
    }
    return finite;
}

static inline uint32_t key(float v) {
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits >> KEY_SHIFT;
}


#define STEP 512
FOR_EACH_CPU
static void keys_of(const float *restrict x, const float *restrict y, int n, uint16_t *restrict kx, uint16_t *restrict ky, uint16_t *restrict ke) {
    for (int i = 0; i < n; i++) {
        kx[i] = (uint16_t)key(x[i]);
        ky[i] = (uint16_t)key(y[i]);
        ke[i] = (uint16_t)key(x[i] - y[i]);
    }
}
static inline void count4(const uint16_t *k, uint32_t *t) {
    uint64_t four;
    memcpy(&four, k, 8);
    t[four & 0xffff]++;
    t[KEYS + ((four >> 16) & 0xffff)]++;
    t[(four >> 32) & 0xffff]++;
    t[KEYS + (four >> 48)]++;
}
static void histograms(const float *restrict x, const float *restrict y, int64_t n, int finite,
                       uint32_t *restrict tables) {
    uint16_t kx[STEP], ky[STEP], ke[STEP];
    uint32_t *tx = tables, *ty = tables + 2 * KEYS, *te = tables + 4 * KEYS;
    int64_t i = 0;
    for (; finite && i + 4 <= n; ) {
        int m = n - i < STEP ? (int)(n - i) & ~3 : STEP;
        keys_of(x + i, y + i, m, kx, ky, ke);
        for (int j = 0; j < m; j += 4) { count4(kx + j, tx); count4(ky + j, ty); count4(ke + j, te); }
        i += m;
    }
    for (; i < n; i++) {
        if (!isfinite(x[i]) || !isfinite(y[i])) continue;
        tx[key(x[i])]++;
        ty[key(y[i])]++;
        te[key(x[i] - y[i])]++;
    }
}

/* x and y are C-contiguous [outer, channels, inner]; lo and hi have one value a channel. */
void inc_tb_update(const float *x, const float *y, int64_t outer, int64_t channels, int64_t inner, const float *lo,
                   const float *hi, double *sums, double *extremes, uint32_t *tables) {
    int64_t channel[LANES];
    float lane_lo[LANES], lane_hi[LANES];
    int64_t row = channels * inner, rows = row < BLOCK ? BLOCK / row : 1;
    for (int64_t o = 0; o < outer; o += rows) {
        if (outer - o < rows) rows = outer - o;
        const float *bx = x + o * row, *by = y + o * row;
        if (inner < LANES) { /* lanes are neighbouring positions of a row */
            int finite = 1;
            for (int64_t p = 0; p < row; p += LANES) {
                int64_t width = row - p < LANES ? row - p : LANES;
                for (int64_t l = 0; l < width; l++) {
                    channel[l] = (p + l) / inner;
                    lane_lo[l] = lo[channel[l]];
                    lane_hi[l] = hi[channel[l]];
                }
                finite &= add(bx + p, by + p, rows, row, width, lane_lo, lane_hi, channel, (int)width, sums,
                              extremes);
            }
            histograms(bx, by, rows * row, finite, tables);
            continue;
        }
        for (int64_t c = 0; c < channels; c++) { /* lanes are neighbouring positions of a channel */
            for (int l = 0; l < LANES; l++) {
                lane_lo[l] = lo[c];
                lane_hi[l] = hi[c];
            }
            for (int64_t i = 0; i < inner; i += BLOCK) {
                int64_t at = c * inner + i, length = inner - i < BLOCK ? inner - i : BLOCK;
                int finite = add(bx + at, by + at, rows, row, length, lane_lo, lane_hi, &c, 1, sums, extremes);
                for (int64_t r = 0; r < rows; r++)
                    histograms(bx + r * row + at, by + r * row + at, length, finite, tables);
            }
        }
    }
}

"""C++ text that kernels share: OpenMP entry points, memory of a thread, streaming stores, transposed tiles. No system
header but stdint.h is read."""

from __future__ import annotations

TILE = 64  # rows and columns of a transposed tile

RUNTIME = """\
#include <stdint.h>
extern "C" int omp_get_thread_num(void);
extern "C" int omp_get_num_threads(void);
extern "C" int omp_get_max_threads(void);
#define EXPORT extern "C" __attribute__((visibility("default")))
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
#define FMA(a, b, c) __builtin_fmaf(a, b, c)
#define FMA_DOUBLE(a, b, c) __builtin_fma(a, b, c)
#else
#define FMA(a, b, c) ((a) * (b) + (c))
#define FMA_DOUBLE(a, b, c) ((a) * (b) + (c))
#endif
/* A product that is rounded. Of a difference beside a sum, as in products of complex numbers, g++ makes one vector
operation that is rounded once, whatever -ffp-contract says. */
#if defined(__has_builtin)
#if __has_builtin(__builtin_assoc_barrier)
#define ROUNDED(x) __builtin_assoc_barrier(x)
#endif
#endif
#ifndef ROUNDED
#define ROUNDED(x) (x)
#endif
/* A value of which the compiler knows nothing. */
static inline int64_t hidden(int64_t x) { asm("" : "+r"(x)); return x; }
#define PART static __attribute__((noinline)) void
/* A kernel that does little with what it reads: see toolchain.py. */
#ifndef STREAMS
#define STREAMS
#endif
"""

SCRATCH = """\
/* Memory of the calling thread, 64-byte aligned and kept between calls. The function is that of the native runtime, put
here by who loads the library: see runtime/libraries.py. */
EXPORT char* (*jit_scratch)(int which, int64_t bytes) = 0;
#define scratch jit_scratch
"""

STREAM = """\
#if defined(__AVX512F__)
typedef long long line __attribute__((vector_size(64)));
#define STREAM_LINE(d, s) __builtin_ia32_movntdq512(d, s)
#elif defined(__AVX__)
typedef long long line __attribute__((vector_size(32)));
#define STREAM_LINE(d, s) __builtin_ia32_movntdq256(d, s)
#elif defined(__SSE2__)
typedef long long line __attribute__((vector_size(16)));
#define STREAM_LINE(d, s) __builtin_ia32_movntdq(d, s)
#endif
#ifdef STREAM_LINE
#define STREAM_FENCE() __builtin_ia32_sfence()
#else
#define STREAM_FENCE()
#endif
/* A strip written around the cache when it starts at a cache line. */
template <int BYTES> static inline __attribute__((always_inline)) void stream(void* d, const void* s) {
#ifdef STREAM_LINE
    if (BYTES % 64 == 0 && ((uintptr_t)d & 63) == 0) {
        for (int i = 0; i < BYTES / (int)sizeof(line); i++) STREAM_LINE((line*)d + i, ((const line*)s)[i]);
        return;
    }
#endif
    __builtin_memcpy(d, s, BYTES);
}
"""

PRODUCT = """\
#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX__)
#define LANES 8
#else
#define LANES 4
#endif
typedef float vec __attribute__((vector_size(4 * LANES)));
static inline __attribute__((always_inline)) vec load_vec(const float* p) {
    vec x;
    __builtin_memcpy(&x, p, sizeof(x));
    return x;
}
static inline __attribute__((always_inline)) vec fma_vec(vec a, vec b, vec c) {
#if defined(__AVX512F__)
    return (vec)__builtin_ia32_vfmaddps512_mask(a, b, c, (unsigned short)-1, 4);
#elif defined(__AVX__) && defined(__FMA__)
    return (vec)__builtin_ia32_vfmaddps256(a, b, c);
#else
    for (int i = 0; i < LANES; i++) c[i] = FMA(a[i], b[i], c[i]);
    return c;
#endif
}
/* c[m][n] = sum of a[m][k] * b[k][n], of M rows and N vectors, which are added to c or take its place. */
template <int M, int N> static inline __attribute__((always_inline)) void tile_product(float* c, int64_t c_stride,
        const float* a, int64_t a_stride, const float* b, int64_t b_stride, int64_t depth, bool add) {
    vec s[M][N];
    for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++) s[m][n] = add ? load_vec(c + m * c_stride + n * LANES) : vec{};
    for (int64_t k = 0; k < depth; k++) {
        vec y[N];
        for (int n = 0; n < N; n++) y[n] = load_vec(b + k * b_stride + n * LANES);
        for (int m = 0; m < M; m++) {
            const vec x = a[m * a_stride + k] - vec{};
            for (int n = 0; n < N; n++) s[m][n] = fma_vec(x, y[n], s[m][n]);
        }
    }
    for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++) __builtin_memcpy(c + m * c_stride + n * LANES, &s[m][n], sizeof(vec));
}
template <int N> static inline __attribute__((always_inline)) void panel_product(float* c, int64_t c_stride,
        const float* a, int64_t a_stride, const float* b, int64_t b_stride, int64_t rows, int64_t depth, bool add) {
    const int M = LANES == 16 ? 8 : 6;
    int64_t m = 0;
    for (; m + M <= rows; m += M)
        tile_product<M, N>(c + m * c_stride, c_stride, a + m * a_stride, a_stride, b, b_stride, depth, add);
    for (; m + 2 <= rows; m += 2)
        tile_product<2, N>(c + m * c_stride, c_stride, a + m * a_stride, a_stride, b, b_stride, depth, add);
    for (; m < rows; m++)
        tile_product<1, N>(c + m * c_stride, c_stride, a + m * a_stride, a_stride, b, b_stride, depth, add);
}
/* The same of any number of rows, with whole vectors of columns. */
PART block_product(float* c, int64_t c_stride, const float* a, int64_t a_stride, const float* b, int64_t b_stride,
                   int64_t rows, int64_t columns, int64_t depth, bool add) {
    int64_t n = 0;
    for (; n + 2 * LANES <= columns; n += 2 * LANES)
        panel_product<2>(c + n, c_stride, a, a_stride, b + n, b_stride, rows, depth, add);
    for (; n < columns; n += LANES)
        panel_product<1>(c + n, c_stride, a, a_stride, b + n, b_stride, rows, depth, add);
}
/* The exponentials of a row of scores less the largest so far, in their place: the sum of those before, and what they
   have added up, are scaled where it has grown. A NaN stays in the total. */
static inline __attribute__((always_inline)) void row_weights(float* row, int64_t count, float* top, float* total,
                                                              float* out, int64_t width) {
    vec most = load_vec(row);
    for (int64_t j = LANES; j < count; j += LANES) {
        const vec x = load_vec(row + j);
        most = x > most ? x : most;
    }
    typedef int32_t lanes __attribute__((vector_size(4 * LANES)));
    lanes number;
    for (int l = 0; l < LANES; l++) number[l] = l;
    for (int step = LANES / 2; step; step /= 2) {
        const vec x = __builtin_shuffle(most, number ^ step);
        most = x > most ? x : most;
    }
    const float largest = most[0] > *top ? most[0] : *top;
    const float base = largest == -__builtin_inff() ? 0 : largest;
    float sum = 0;
    #pragma omp simd reduction(+: sum)
    for (int64_t j = 0; j < count; j++) {
        const float x = row[j] - base;
        /* No weight is subnormal: beside one that is 1 it adds nothing, and Intel's processors take a hundred cycles
           and more for each operation with such a number. */
        const float weight = x < -0x1.5d589ep+6f ? 0.0f : exp_f32(x < -0x1.5d589ep+6f ? -0x1.5d589ep+6f : x);
        row[j] = weight;
        sum += weight;
    }
    if (largest != *top && *total != 0) {
        const float scale = exp_f32(*top - base);
        *total *= scale;
        for (int64_t c = 0; c < width; c++) out[c] *= scale;
    }
    *top = largest;
    *total += sum;
}
"""

TRANSPOSE = """\
typedef int32_t eight __attribute__((vector_size(32)));
static inline __attribute__((always_inline)) void transpose_8x8(int32_t* out, const int32_t* in, int64_t stride) {
    eight r[8], t[8];
    for (int i = 0; i < 8; i++) __builtin_memcpy(&r[i], in + i * stride, 32);
    for (int i = 0; i < 8; i += 2) {
        t[i] = __builtin_shuffle(r[i], r[i + 1], (eight){0, 8, 1, 9, 4, 12, 5, 13});
        t[i + 1] = __builtin_shuffle(r[i], r[i + 1], (eight){2, 10, 3, 11, 6, 14, 7, 15});
    }
    for (int i = 0; i < 8; i += 4)
        for (int k = 0; k < 2; k++) {
            r[i + 2 * k] = __builtin_shuffle(t[i + k], t[i + k + 2], (eight){0, 1, 8, 9, 4, 5, 12, 13});
            r[i + 2 * k + 1] = __builtin_shuffle(t[i + k], t[i + k + 2], (eight){2, 3, 10, 11, 6, 7, 14, 15});
        }
    for (int i = 0; i < 4; i++) {
        t[i] = __builtin_shuffle(r[i], r[i + 4], (eight){0, 1, 2, 3, 8, 9, 10, 11});
        t[i + 4] = __builtin_shuffle(r[i], r[i + 4], (eight){4, 5, 6, 7, 12, 13, 14, 15});
    }
    for (int i = 0; i < 8; i++) __builtin_memcpy(out + i * %(tile)d, &t[i], 32);
}
/* out[u][v] = in[v * stride + u * step] for u < rows, v < columns; out has rows of %(tile)d. */
template <class T> static inline void transpose_tile(T* out, const T* in, int64_t stride, int rows, int columns,
                                                         int step = 1) {
    int done = 0;
    if (step == 1 && sizeof(T) == 4 && rows %% 8 == 0) {
        for (; done + 8 <= columns; done += 8) {
            /* the hardware does not foresee the next eight lines: they lie a stride apart */
            for (int i = 0; i < 8; i++)
                for (int u = 0; u < rows; u += 16) __builtin_prefetch(in + (done + 8 + i) * stride + u);
            for (int u = 0; u < rows; u += 8) transpose_8x8((int32_t*)out + u * %(tile)d + done,
                (const int32_t*)in + done * stride + u, stride);
        }
    }
    for (int v = done; v < columns; v++)
        for (int u = 0; u < rows; u++) out[u * %(tile)d + v] = in[v * stride + u * step];
}
""" % {"tile": TILE}

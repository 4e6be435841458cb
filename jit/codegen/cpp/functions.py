"""Functions such as ``exp`` and ``log`` as C++ text: straight-line code that g++ vectorises where it is inlined.

libmvec's forms of these are allowed four units in the last place, and some lie on one side of the truth on average: in
sums over many elements such a bias adds up. The forms here are within two units, most within one, and without a bias
that shows. An argument is taken apart so that no rounding is lost on the way (W. Cody, W. Waite, Software Manual for
the Elementary Functions, 1980): constants like log(2) are the sum of a short one, whose product with an exponent is
exact, and a rest. What remains is a polynomial, fitted here by the Remez algorithm with the weight of the relative
error, below the leading terms, which are exact. Without fused multiply-adds the results are a little less exact.

Each text is written once for both types; the numbers that differ are in ``FORMATS``. Results at infinities, NaN, zeros,
and where they over- or underflow (to denormals) are those of C's functions.
"""

from __future__ import annotations

import math
import re

from jit.graph.prims import POINTWISE

FORMATS = {
    "f32": {
        "T": "float", "U": "uint32_t", "I": "int32_t", "F": "f", "FMA": "FMA", "MANTISSA": "23", "BIAS": "127u",
        "MAGIC": "0x1.8p23f", "MAGIC_BITS": "0x4b400000u", "INTEGER": "0x1p23f", "INTEGER_BITS": "0x4b000000u",
        "EXPONENT_BITS": "0xff800000u", "MANTISSA_BITS": "0x7fffffu", "ROOT": "0x3f3504f3u", "TO_ROOT": "0x4afb0du",
        "TWICE": "0x80000000u", "SMALLEST": "0x1p-126f", "HALF_EPS": "0x1p-24f",
        "EXP_MAX": "89.0f", "EXP_MIN": "-104.0f", "EXP2_MAX": "129.0f", "EXP2_MIN": "-151.0f", "EXPM1_MIN": "-20.0f",
        "LOG2_E": "0x1.715476p+0f", "LOG2_E_REST": "0x1.4ae0cp-26f", "LN_2": "0x1.62e4p-1f",
        "LN_2_REST": "0x1.7f7d1cp-20f", "LN_2_FULL": "0x1.62e43p-1f", "LN_2_FULL_REST": "-0x1.05c61p-29f",
        "LOG10_E": "0x1.bcb7b2p-2f", "LOG10_E_REST": "-0x1.5b235ep-27f", "LOG10_2": "0x1.344p-2f",
        "LOG10_2_REST": "0x1.3509f8p-18f",
        "LARGE": "0x1p120f", "DOWN": "0x1p-24f", "SMALL": "0x1p-80f", "UP": "0x1p64f",
        "HALF_PI": "0x1.921fb6p+0f", "HALF_PI_REST": "-0x1.777a5cp-25f",
        # (exp(x) - 1 - x) / x**2 for |x| <= log(2) / 2; relative error of exp 3.1e-9
        "EXP": (0.49999994, 0.16666521, 0.04166839, 0.008368717, 0.0013814627),
        # the same with the weight of expm1; relative error of expm1 2.4e-10
        "EXPM1": (0.5, 0.16666667, 0.041666355, 0.008333273, 0.0013941008, 0.00019914203),
        # (log(1 + x) - x + x**2 / 2) / x**3 for sqrt(1/2) <= 1 + x <= sqrt(2); relative error of log 5.8e-9
        "LOG": (0.3333333, -0.25000823, 0.20001228, -0.16623357, 0.14201729, -0.13160156, 0.12761754, -0.07634777),
        # (tanh(x) - x) / x**3 in z = x**2 for |x| <= 0.55; relative error of tanh 1e-9
        "TANH": (-0.3333332, 0.13332601, -0.053853747, 0.021077259, -0.00628172),
        # (asin(x) - x) / x**3 in z = x**2 for |x| <= 1/2; relative error of asin 4.3e-10
        "ASIN": (0.1666666, 0.07500511, 0.04451573, 0.031817548, 0.01440283, 0.037564903),
        # (atan(x) - x) / x**3 in z = x**2 for |x| <= tan(pi/8); relative error of atan 6.6e-10
        "ATAN": (-0.33333316, 0.19998488, -0.14243828, 0.10595833, -0.060830012),
        # exp(-x) I0(x) in x/4 - 1 for 0 <= x <= 8, in 16/x - 1 and with the factor sqrt(x) above; errors 3e-9 and 1e-8
        "I0_NEAR": (0.20700192, -0.113004334, 0.094515644, -0.08904287, 0.087342806, -0.084973246, 0.07928297,
                    -0.06946329, 0.05672729, -0.04331789, 0.030360637, -0.018857354, 0.011554065, -0.008018237,
                    0.0041692737, -0.000754895, 0.00041265145, -0.00085198437, 0.0003486284),
        "I0_FAR": (0.4021765, 0.0033605557, 0.00013615603, 1.1112148e-05, 1.6391349e-06, 3.6266704e-07),
    },
    "f64": {
        "T": "double", "U": "uint64_t", "I": "int64_t", "F": "", "FMA": "FMA_DOUBLE", "MANTISSA": "52",
        "BIAS": "1023u", "MAGIC": "0x1.8p52", "MAGIC_BITS": "0x4338000000000000u", "INTEGER": "0x1p52",
        "INTEGER_BITS": "0x4330000000000000u",
        "EXPONENT_BITS": "0xfff0000000000000u", "MANTISSA_BITS": "0xfffffffffffffu", "ROOT": "0x3fe6a09e667f3bcdu",
        "TO_ROOT": "0x95f619980c433u", "TWICE": "0x8000000000000000u", "SMALLEST": "0x1p-1022", "HALF_EPS": "0x1p-53",
        "EXP_MAX": "710.0", "EXP_MIN": "-746.0", "EXP2_MAX": "1025.0", "EXP2_MIN": "-1076.0", "EXPM1_MIN": "-40.0",
        "LOG2_E": "0x1.71547652b82fep+0", "LOG2_E_REST": "0x1.777d0ffda0d24p-56", "LN_2": "0x1.62e42fefa3p-1",
        "LN_2_REST": "0x1.3de6af278ece6p-42", "LN_2_FULL": "0x1.62e42fefa39efp-1",
        "LN_2_FULL_REST": "0x1.abc9e3b39803fp-56",
        "LOG10_E": "0x1.bcb7b1526e50ep-2", "LOG10_E_REST": "0x1.95355baaafad3p-57", "LOG10_2": "0x1.34413509f7p-2",
        "LOG10_2_REST": "0x1.3fde623e2566bp-43",
        "LARGE": "0x1p1000", "DOWN": "0x1p-100", "SMALL": "0x1p-900", "UP": "0x1p200",
        "HALF_PI": "0x1.921fb54442d18p+0", "HALF_PI_REST": "0x1.1a62633145c07p-54",
        "EXP": (0.5000000000000011, 0.16666666666666413, 0.041666666666530155, 0.008333333333494399,
                0.0013888888943631085, 0.00019841269506688846, 2.4801493097828538e-05, 2.755758629088442e-06,
                2.763024879588082e-07, 2.500008442577437e-08),  # 3.6e-18
        "EXPM1": (0.5, 0.16666666666666677, 0.0416666666666667, 0.008333333333321615, 0.0013888888888866728,
                  0.00019841269886158402, 2.480158736073158e-05, 2.7557244181991125e-06,
                  2.755724263258723e-07, 2.510904488834267e-08, 2.092447773114515e-09),  # 2.6e-19
        "LOG": (0.3333333333333314, -0.24999999999987976, 0.20000000000066603, -0.16666666669825778,
                0.1428571428009353, -0.12499999691450783, 0.1111111114745731, -0.1000001520599996,
                0.09090923932041237,
                -0.0833291354496695, 0.07691529813221176, -0.0714943947091259, 0.0668458925183184,
                -0.0619667878378192, 0.05668376308925573, -0.056777807852523114, 0.06503494730385047,
                -0.05981718369398325,
                0.026151047592103037),  # 9.1e-18
        "TANH": (-0.333333333333333, 0.1333333333332681, -0.05396825396386521, 0.021869488388707916,
                 -0.008863232646109203, 0.003592092463004751, -0.0014555455229510958, 0.000588455096848087,
                 -0.000233407621995126, 8.33525520342125e-05, -1.9516265655582233e-05),  # 5.5e-19
        "ASIN": (0.16666666666666763, 0.07499999999970264, 0.04464285717512015, 0.03038194268363769,
                 0.02237221565990691, 0.017351600097087843, 0.013980961400287444, 0.011397776363663827,
                 0.010786526988517826,
                 0.003683050116985621, 0.02176347764717837, -0.021077258433876724, 0.03267686608143648),  # 9.8e-19
        "ATAN": (-0.333333333333332, 0.19999999999953996, -0.1428571428023952, 0.11111110785671437,
                 -0.09090897822569427, 0.07692061382344582, -0.06663117403472484, 0.05847986651944211,
                 -0.050397427397404645, 0.03807565106416502, -0.01791929460016129),  # 1.2e-18
        # exp(-x) I0(x) in x/4 - 1 for 0 <= x <= 8, in 16/x - 1 and with the factor sqrt(x) above;
        # errors 3.5e-18 and 5.1e-18
        "I0_NEAR": (0.2070019212239867, -0.11300432688620549, 0.09451562853995103, -0.08904344136075962,
                    0.08734341617552313, -0.08496338091616305, 0.07927522590716347, -0.06954119561719381,
                    0.05677703201991695, -0.04298594945479612, 0.030177912022978357, -0.01968265469059234,
                    0.011960077907026221, -0.0067923998730731695, 0.003617126448897043, -0.001811886793937724,
                    0.0008563152748272306, -0.00038290209550065975, 0.00016240542162878106, -6.550861389620851e-05,
                    2.520232727107692e-05, -9.251680584432654e-06, 3.2293390826404927e-06, -1.0883393970072518e-06,
                    3.675842926555429e-07, -1.1384114641747256e-07, 2.6265363151970112e-08, -7.723094556846333e-09,
                    4.470516727511741e-09, -1.1852342482684723e-09),
        "I0_FAR": (0.4021765094450081, 0.0033605519836678614, 0.0001362160743919305, 1.1143033790932038e-05,
                   1.4838475658279249e-06, 2.9735985885673923e-07, 8.872219737904054e-08, 3.932584334552952e-08,
                   2.1548377974791598e-08, 7.554691881248808e-09, -6.747657956107524e-09, -1.340891754008974e-08,
                   -5.404771567579958e-09, 7.552583062123384e-09, 7.430464650325426e-09, -3.505966530879332e-09,
                   -5.95356943826489e-09, 1.5200816953924232e-09, 3.6379546359011143e-09, -5.715843864202709e-10,
                   -1.618980683624682e-09, 1.5279202694981569e-10, 4.577087631643623e-10, -2.0260604287413626e-11,
                   -6.067631570603006e-11),
    },
}  # fmt: skip

# name -> (what it needs, text). ``_X`` at the end of a name stands for the format, names in capitals for its numbers,
# and POLYNOMIAL(NAME, x) for Horner's scheme.
TEXTS = {
    "words_X": (("bits",), """\
static inline U words_X(T x) { return (U)bits(x); }
static inline T number_X(U u) { T x; __builtin_memcpy(&x, &u, sizeof(x)); return x; }
"""),
    # x = n * log(2) + r + rest with |r| <= log(2) / 2, for t = n + MAGIC; n + twice the bias in m.
    "exponent_X": (("words_X",), """\
struct Exponent_X { T r, rest; U m; };
static inline Exponent_X exponent_X(T x, T t) {
    const T n = t - MAGIC, s = FMA(n, -LN_2, x), r = FMA(n, -LN_2_REST, s);
    return Exponent_X{r, FMA(n, -LN_2_REST, s - r), words_X(t) - (MAGIC_BITS - 2 * BIAS)};
}
static inline Exponent_X exponent_X(T x) { return exponent_X(x, FMA(x, LOG2_E, MAGIC)); }
/* n + MAGIC for an n no larger than what makes everything infinite: the order of such words is that of integers */
static inline T capped_X(T t) {
    const I u = (I)words_X(t), top = (I)(MAGIC_BITS + BIAS + 2);
    return number_X((U)(u < top ? u : top));
}
/* exp(r) - 1 - r */
static inline T exp_tail_X(T r, T rest) { return FMA(r * r, POLYNOMIAL(EXP, r), rest); }
/* x * 2**n for m as above: in two steps, of which the second rounds, to infinity or a denormal where need be */
static inline T scaled_X(T x, U m) { return x * number_X((m >> 1) << MANTISSA) * number_X((m - (m >> 1)) << MANTISSA); }
"""),
    "exp_X": (("exponent_X",), """\
static inline T exp_X(T x) {
    x = x < EXP_MIN ? EXP_MIN : x;
    const Exponent_X e = exponent_X(x, capped_X(FMA(x, LOG2_E, MAGIC)));
    return scaled_X(1.0F + (e.r + exp_tail_X(e.r, 0)), e.m);
}
"""),
    "exp2_X": (("exponent_X",), """\
static inline T exp2_X(T x) {
    x = x > EXP2_MAX ? EXP2_MAX : x;
    x = x < EXP2_MIN ? EXP2_MIN : x;
    const T t = x + MAGIC, f = x - (t - MAGIC), r = f * LN_2_FULL;
    return scaled_X(1.0F + (r + exp_tail_X(r, f * LN_2_FULL_REST)), words_X(t) - (MAGIC_BITS - 2 * BIAS));
}
"""),
    # 2**n * (1 + r + tail) - 1, of which r * 2**n / 2 + (2**n - 1) / 2 is added up without loss.
    "expm1_X": (("exponent_X",), """\
static inline T expm1_X(T a) {
    T x = a > EXP_MAX ? EXP_MAX : a;
    x = x < EXPM1_MIN ? EXPM1_MIN : x;
    const Exponent_X e = exponent_X(x);
    const T h = number_X((e.m - BIAS - 1) << MANTISSA), c = h - 0.5F, y = FMA(h, e.r, c);
    const T tail = FMA(e.r * e.r, POLYNOMIAL(EXPM1, e.r), e.rest), z = 2.0F * (y + FMA(h, tail, FMA(h, e.r, c - y)));
    return __builtin_fabsF(a) < HALF_EPS ? a : z;
}
"""),
    # A polynomial near 0, elsewhere 1 - 2 * u / (1 + u) with u = exp(-2 * a).
    "tanh_X": (("exponent_X",), """\
static inline T tanh_X(T x) {
    const T a = __builtin_fabsF(x), z = a * a, near = FMA(a * z, POLYNOMIAL(TANH, z), a), b = -2.0F * a;
    const Exponent_X e = exponent_X(b < EXPM1_MIN ? EXPM1_MIN : b);
    const T u = (1.0F + (e.r + exp_tail_X(e.r, 0))) * number_X((e.m - BIAS) << MANTISSA);
    return __builtin_copysignF(a < 0.55F ? near : 1.0F - 2.0F * u / (1.0F + u), x);
}
"""),
    "cosh_X": (("exponent_X",), """\
static inline T cosh_X(T x) {
    x = __builtin_fabsF(x);
    const Exponent_X e = exponent_X(x, capped_X(FMA(x, LOG2_E, MAGIC)));
    const T h = scaled_X(1.0F + (e.r + exp_tail_X(e.r, 0)), e.m - 1); /* exp(x) / 2 */
    return h + 0.25F / h;
}
"""),
    # x = 2**e * (1 + f) with sqrt(1/2) <= 1 + f <= sqrt(2); of what has no logarithm, anything.
    "logarithm_X": (("words_X",), """\
struct Logarithm_X { T e, f; };
static inline Logarithm_X logarithm_X(T x) {
    const bool small = x < SMALLEST;
    const U v = words_X(small ? x * INTEGER : x) + TO_ROOT;
    const T e = number_X((v >> MANTISSA) | INTEGER_BITS) - (INTEGER + (T)BIAS);
    return Logarithm_X{small ? e - MANTISSA : e, number_X((v & MANTISSA_BITS) + ROOT) - 1.0F};
}
/* log(1 + f) - f */
static inline T log_tail_X(T f) { return (f * f) * FMA(POLYNOMIAL(LOG, f), f, -0.5F); }
static inline T log_ends_X(T x, T y) {
    y = x < __builtin_infF() ? y : x;
    const T end = x == 0 ? -__builtin_infF() : __builtin_nanF("");
    return !(x <= 0) ? y : end;
}
"""),
    "log_X": (("logarithm_X",), """\
static inline T log_X(T x) {
    const Logarithm_X l = logarithm_X(x);
    return log_ends_X(x, FMA(l.e, LN_2, l.f + FMA(l.e, LN_2_REST, log_tail_X(l.f))));
}
"""),
    # Only of one format.
    "log10_f32": (("logarithm_X",), """\
static inline T log10_X(T x) {
    const Logarithm_X l = logarithm_X(x);
    const T t = log_tail_X(l.f), s = l.f + t, rest = t - (s - l.f), y = s * LOG10_E, back = FMA(s, LOG10_E, -y);
    return log_ends_X(x, FMA(l.e, LOG10_2, y + FMA(l.e, LOG10_2_REST, FMA(s, LOG10_E_REST, FMA(rest, LOG10_E, back)))));
}
"""),
    # 1 + x = 2**e * (1 + f) for the e of the rounded sum; f is made from x itself.
    "log1p_X": (("logarithm_X",), """\
static inline T log1p_X(T x) {
    const U v = words_X(1.0F + x) + TO_ROOT;
    const T e = number_X((v >> MANTISSA) | INTEGER_BITS) - (INTEGER + (T)BIAS),
        s = number_X(TWICE - (v & EXPONENT_BITS)); /* s = 4 / 2**e */
    const T f = FMA(0.25F * x, s, FMA(0.25F, s, -1.0F));
    const T y = FMA(e, LN_2, f + FMA(e, LN_2_REST, log_tail_X(f)));
    return __builtin_fabsF(x) < HALF_EPS ? x : log_ends_X(1.0F + x, y);
}
"""),
    # asin(a) for 0 <= a <= 1 is p + y or, above 1/2, pi/2 - 2 * (p + y), p + y being asin(sqrt((1 - a) / 2)).
    "asin_parts_X": (("words_X",), """\
struct AsinParts_X { bool far; T p, y; };
static inline AsinParts_X asin_parts_X(T a) {
    const bool far = a > 0.5F;
    const T z = far ? (1.0F - a) * 0.5F : a * a, p = far ? __builtin_sqrtF(z) : a;
    return AsinParts_X{far, p, p * z * POLYNOMIAL(ASIN, z)};
}
"""),
    # Of arguments above tan(pi/8) that of the angle less pi/4, and above tan(3 * pi/8) less pi/2, is taken.
    "atan_X": (("words_X",), """\
static inline T atan_X(T x) {
    const T a = __builtin_fabsF(x);
    const bool middle = a > 0.4142135F, high = a > 2.4142135F;
    const T t = (high ? -1.0F : middle ? a - 1.0F : a) / (high ? a : middle ? a + 1.0F : 1.0F), z = t * t;
    const T base = high ? HALF_PI : middle ? 0.5F * HALF_PI : 0,
        rest = high ? HALF_PI_REST : middle ? 0.5F * HALF_PI_REST : 0;
    return __builtin_copysignF(base + (t + FMA(t * z, POLYNOMIAL(ATAN, z), rest)), x);
}
"""),
    # The angle of the smaller magnitude to the larger one, as in atan, with what its quotient lacks; then that of the
    # octant, turns * pi/4 +- it.
    "atan2_X": (("words_X",), """\
static inline T atan2_X(T y, T x) {
    const T p = __builtin_fabsF(x), q = __builtin_fabsF(y), top = __builtin_infF();
    const bool steep = q > p, left = (I)words_X(x) < 0;
    T b = steep ? q : p, a = steep ? p : q;
    a = b == top ? a == top ? 1.0F : 0 : a;
    b = b == top || b == 0 ? 1.0F : b;
    const T scale = b > LARGE ? DOWN : b < SMALL ? UP : 1.0F;
    a *= scale; b *= scale;
    const bool middle = a > 0.4142135F * b;
    const T n = middle ? a - b : a, d = middle ? a + b : b, t = n / d;
    /* a - b and a + b without loss: a <= b */
    const T n_rest = middle ? (a - (n + b)) : 0, d_rest = middle ? a - (d - b) : 0;
    const T rest = (FMA(-t, d, n) + FMA(-t, d_rest, n_rest)) / d, z = t * t, tail = FMA(t * z, POLYNOMIAL(ATAN, z),
        rest);
    T turns = middle ? 1.0F : 0, sign = 1.0F;
    turns = steep ? 2.0F - turns : turns; sign = steep ? -sign : sign;
    turns = left ? 4.0F - turns : turns; sign = left ? -sign : sign;
    const T base = turns * (0.5F * HALF_PI), base_rest = FMA(turns, 0.5F * HALF_PI,
        -base) + turns * (0.5F * HALF_PI_REST);
    const T angle = base + FMA(sign, t, FMA(sign, tail, base_rest));
    return x != x || y != y ? x + y : __builtin_copysignF(angle, y);
}
"""),
    "asin_X": (("asin_parts_X",), """\
static inline T asin_X(T x) {
    const AsinParts_X q = asin_parts_X(__builtin_fabsF(x));
    return __builtin_copysignF(q.far ? HALF_PI - (2.0F * q.p + (2.0F * q.y - HALF_PI_REST)) : q.p + q.y, x);
}
"""),
    "acos_X": (("asin_parts_X",), """\
static inline T acos_X(T x) {
    const AsinParts_X q = asin_parts_X(__builtin_fabsF(x));
    const T p = x < 0 ? -q.p : q.p, y = x < 0 ? -q.y : q.y, near = HALF_PI - (p + (y - HALF_PI_REST));
    const T far = x < 0 ? 2.0F * (HALF_PI + (p + (y + HALF_PI_REST))) : 2.0F * (p + y);
    return q.far ? far : near;
}
"""),
    # exp(x) times a polynomial, in the order in which eager's kernels multiply: the same results where it overflows.
    "i0_X": (("exp_X",), """\
static inline T i0_X(T x) {
    const T a = __builtin_fabsF(x), e = exp_X(a), t = FMA(a, 0.25F, -1.0F), u = 16.0F / a - 1.0F;
    return a <= 8.0F ? e * POLYNOMIAL(I0_NEAR, t) : e * POLYNOMIAL(I0_FAR, u) / __builtin_sqrtF(a);
}
"""),
}  # fmt: skip


def _horner(fma: str, coefficients: tuple[float, ...], x: str, suffix: str) -> str:
    out = f"{coefficients[-1]!r}{suffix}"
    for c in reversed(coefficients[:-1]):
        out = f"{fma}({out}, {x}, {c!r}{suffix})"
    return out


def _less_a_tail(log2: tuple[float, ...], end: float, share: float) -> str:
    """Statements for ``y``, which is share - share * 2**l for l = a * (polynomial in a), a = min(|x|, end).

    The chain of operations, and not their number, is what it takes: the eight coefficients are summed by pairs.
    """
    c = [f"{v!r}f" for v in log2]
    pair = [f"FMA({c[k + 1]}, a, {c[k]})" for k in (0, 2, 4, 6)]
    shift = f"(0x1.8p23f + {127 + math.log2(share)}f)"
    return f"""\
float a = __builtin_fabsf(x);
    a = a > {end}f ? {end}f : a;
    const float s = a * a;
    const float l = FMA(FMA({pair[3]}, s, {pair[2]}), s * s, FMA({pair[1]}, s, {pair[0]}));
    const float t = FMA(a, l, {shift}), f = FMA(a, l, {shift} - t);
    const float y = FMA(-{_horner("FMA", _EXP2_FROM_1, "f", "f")}, from_bits(bits(t) << 23), {share}f);"""


def _written(text: str, kind: str) -> str:
    """A text of ``TEXTS`` for one format."""
    numbers = FORMATS[kind]
    text = re.sub(r"POLYNOMIAL\((\w+), ([\w.]+)\)", lambda m: _horner(numbers["FMA"],
                                                                      numbers[m[1]], m[2], numbers["F"]), text)
    text = re.sub(r"(?<=\d)F\b|(?<=[a-z])F(?=\()", numbers["F"], text)
    return re.sub(r"\b[A-Z][A-Z_0-9]*\b", lambda m: numbers.get(m[0], m[0]), text).replace("_X", "_" + kind)


def _all() -> dict:
    out = dict(_of_one_format())
    for kind in FORMATS:
        for name, (needs, text) in TEXTS.items():
            if not name.endswith(("_X", kind)):
                continue
            out[name.replace("_X", "_" + kind)] = tuple(n.replace("_X", "_" + kind)
                                                        for n in needs), _written(text, kind)
    return out


# Polynomials in t = x**2 of sin and cos below their first terms for |x| <= pi/4 (relative errors 3.4e-18 and 4.7e-20).
_SIN = (-0.16666666666666632, 0.00833333333332242, -0.00019841269829812378, 2.755731369354652e-06,
        -2.5050758377945793e-08, 1.5896811335168216e-10)
_COS = (0.0416666666666666, -0.0013888888888874131, 2.4801587289487104e-05, -2.7557314353808646e-07,
        2.087572348072376e-09, -1.1359658884870744e-11)
# erf(x) / x - 1.125 in t = x**2 for |x| <= 1 (relative error of erf 1.2e-9); log2(erfc(x)) for 1 <= x <= 4 and 2**x
# for |x| <= 1/2, which make erf with an error of 1e-8.
_ERF = (0.0033791657, -0.37612626, 0.112835854, -0.026853811, 0.0051883273, -0.0008010189, 7.853844e-05)
_LOG2_ERFC = (-0.00051030674, -1.6259751, -0.92076504, -0.1486515, 0.031458415, -0.0042409524, 0.0002677261)
# log2(erfc(x)) / x for 0 <= x <= 4 and log2(erfc(x / sqrt(2))) / x for 0 <= x <= 5.65, with an absolute error of 1.6e-8
# in erfc; 2**x for |x| <= 1/2.
_LOG2_ERFC_FROM_0 = (-1.6279086, -0.9184164, -0.1484816, 0.02825368, -0.00077462924, -0.0014894418, 0.0004455077,
                     -4.5358604e-05)
_LOG2_NORMAL = (-1.1511052, -0.45920852, -0.052495252, 0.0070621413, -0.00013599845, -0.00018655212, 3.9452472e-05,
                -2.840857e-06)
_EXP2_FROM_1 = (1.0, 0.6931472, 0.24022648, 0.055503324, 0.009618438, 0.0013398861, 0.00015353296)
_EXP2 = (1.0000001, 0.69314694, 0.2402212, 0.05550713, 0.009675543, 0.0013276547)


def _of_one_format() -> dict:
    """Helpers for float or for double alone."""
    return {
        "erf_f32": (("bits",), f"""\
static inline float erf_f32(float x) {{
    const float s = x * x, near = FMA(x, 1.125f, x * {_horner("FMA", _ERF, "s", "f")});
    float a = __builtin_fabsf(x);
    a = a > 4.0f ? 4.0f : a;
    const float l = {_horner("FMA", _LOG2_ERFC, "a", "f")}, t = l + (0x1.8p23f + 127.0f),
        f = l - (t - (0x1.8p23f + 127.0f));
    const float far = FMA(-{_horner("FMA", _EXP2, "f", "f")}, from_bits(bits(t) << 23), 1.0f);
    return a < 1.0f ? near : __builtin_copysignf(far, x);
}}
"""),
        "erf_absolute_f32": (("bits",), f"""\
static inline float erf_absolute_f32(float x) {{
    {_less_a_tail(_LOG2_ERFC_FROM_0, 4.0, 1.0)}
    return __builtin_copysignf(y, x);
}}
"""),
        "normal_cdf_f32": (("bits",), f"""\
static inline float normal_cdf_f32(float x) {{
    {_less_a_tail(_LOG2_NORMAL, 5.65, 0.5)}
    return 0.5f + __builtin_copysignf(y, x);
}}
"""),
        # x = n * pi/2 + r + rest with |r| <= pi/4, for what is small enough that n times the first two parts
        # of pi/2 is exact.
        "quadrant_f64": (("bits",), f"""\
struct Quadrant {{ double r, rest; uint64_t n; }};
static inline Quadrant quadrant_f64(double x) {{
    const double t = FMA_DOUBLE(x, 0x1.45f306dc9c883p-1, 0x1.8p52), n = t - 0x1.8p52, high = x - n * 0x1.921fb544p+0,
        w = n * 0x1.0b4611a6p-34, r = high - w;
    const double rest = FMA_DOUBLE(n, -0x1.3198a2e037073p-69, (high - r) - w), y = r + rest;
    return Quadrant{{y, (r - y) + rest, (uint64_t)bits(t)}};
}}
struct SineCosine {{ double sine, cosine; }};
static inline SineCosine sine_cosine_f64(Quadrant q) {{
    const double s = q.r * q.r, h = 0.5 * s, w = 1.0 - h;
    return SineCosine{{q.r + FMA_DOUBLE(q.r * s, {_horner("FMA_DOUBLE", _SIN, "s", "")}, q.rest),
                      w + (((1.0 - w) - h) + FMA_DOUBLE(s * s, {_horner("FMA_DOUBLE", _COS, "s", "")},
                          -q.r * q.rest))}};
}}
/* sin(x + k * pi/2) */
static inline double sine_f64(double x, uint64_t k) {{
    const Quadrant q = quadrant_f64(x);
    const SineCosine v = sine_cosine_f64(q);
    const double y = (q.n + k) & 1 ? v.cosine : v.sine;
    return (q.n + k) & 2 ? -y : y;
}}
"""),
        "sin_f64": (("quadrant_f64", "sin"), """\
static inline double sin_f64(double x) { return __builtin_fabs(x) < 1e6 ? x == 0 ? x : sine_f64(x, 0) : sin(x); }
"""),
        "cos_f64": (("quadrant_f64", "cos"), """\
static inline double cos_f64(double x) { return __builtin_fabs(x) < 1e6 ? sine_f64(x, 1) : cos(x); }
"""),
        "tan_f64": (("quadrant_f64", "tan"), """\
static inline double tan_f64(double x) {
    const Quadrant q = quadrant_f64(x);
    const SineCosine v = sine_cosine_f64(q);
    const double y = q.n & 1 ? -v.cosine / v.sine : v.sine / v.cosine;
    return __builtin_fabs(x) < 1e6 ? x == 0 ? x : y : tan(x);
}
"""),
    }  # fmt: skip


HELPERS = _all()
# What has a form here; of the others libmvec's are as exact as PyTorch's, or nearly. ``NAME_absolute``: one whose error
# near zero is only small beside 1, see ``codegen.absolute``.
FUNCTIONS = {kind: frozenset(name for name in POINTWISE if f"{name}_{kind}" in HELPERS) for kind in FORMATS}

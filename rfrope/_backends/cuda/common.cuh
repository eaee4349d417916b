// What the CUDA kernels share: numbers, feature types, Philox, and phases that become cos and sin. The way to CUDA
// (cuda.py) pastes this text in place of its #include. No other header is needed, so NVRTC alone compiles all of it.
//
// Compiled with --fmad=false: error-free transforms must not be contracted; where a fused product is meant, fma() says
// so. CuPy compiles with -ftz=true, so what is done to features in float32 is written out: a subnormal one is not zero.

typedef unsigned int uint32;
typedef long long int64;
typedef unsigned long long uint64;

#define INLINE __device__ __forceinline__

// -- memory ---------------------------------------------------------------------------------------------------------

struct alignas(16) Chunk {  // 16 bytes, read and written at once
    uint32 words[4];
};

// Addresses come as pointers inside a kernel's argument: so the compiler knows that they are of global memory.
typedef char* Place;

template <class T>
INLINE T get(const char* place) {
    return *reinterpret_cast<const T*>(place);
}

template <class T>
INLINE void put(Place place, T value) {
    *reinterpret_cast<T*>(place) = value;
}

// -- feature types -----------------------------------------------------------------------------------------------------

struct Half {
    unsigned short bits;
};

struct Bfloat {
    unsigned short bits;
};

INLINE double widen(double x) { return x; }

INLINE double widen(float x) {
#ifdef __CUDA_ARCH__
    double y;
    asm("cvt.f64.f32 %0, %1;" : "=d"(y) : "f"(x));
    return y;
#else
    return x;
#endif
}

INLINE float widen(Half x) {
#ifdef __CUDA_ARCH__
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
#else
    return half_to_float(x.bits);
#endif
}

INLINE float widen(Bfloat x) { return __uint_as_float(static_cast<uint32>(x.bits) << 16); }

// Rounding to the nearest feature, ties to even
INLINE void narrow(double x, double& y) { y = x; }

INLINE void narrow(double x, float& y) {
#ifdef __CUDA_ARCH__
    asm("cvt.rn.f32.f64 %0, %1;" : "=f"(y) : "d"(x));
#else
    y = static_cast<float>(x);
#endif
}

INLINE void narrow(float x, Half& y) {
#ifdef __CUDA_ARCH__
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
#else
    y.bits = float_to_half(x);
#endif
}

INLINE void narrow(float x, Bfloat& y) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
#else
    const uint32 bits = __float_as_uint(x);
    const uint32 rounded = x != x ? bits | 0x400000u : bits + 0x7FFFu + ((bits >> 16) & 1u);
    y.bits = static_cast<unsigned short>(rounded >> 16);
#endif
}

// Products and sums of floats, subnormal ones too
#ifdef __CUDA_ARCH__
INLINE float times(float a, float b) {
    float c;
    asm("mul.rn.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
    return c;
}
INLINE float plus(float a, float b) {
    float c;
    asm("add.rn.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
    return c;
}
INLINE float minus(float a, float b) {
    float c;
    asm("sub.rn.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
    return c;
}
INLINE float fused(float a, float b, float c) {
    float d;
    asm("fma.rn.f32 %0, %1, %2, %3;" : "=f"(d) : "f"(a), "f"(b), "f"(c));
    return d;
}
#else
INLINE float times(float a, float b) { return a * b; }
INLINE float plus(float a, float b) { return a + b; }
INLINE float minus(float a, float b) { return a - b; }
INLINE float fused(float a, float b, float c) { return fmaf(a, b, c); }
#endif

// -- phases: turns in two floats, as in the loops for the CPU ----------------------------------------------------------

// 1/(2 pi) as the sum of two floats
#define TURN_1 0.15915494309189535
#define TURN_2 -9.839338337591243e-18
#define LARGEST_EXACT 9007199254740992.0  // 2^53

struct Turns {  // an unevaluated sum
    double high, low;
};

INLINE Turns turns_of(double frequency) {
    const double product = frequency * TURN_1;
    return {product, fma(frequency, TURN_1, -product) + frequency * TURN_2};
}

// Add factor * turns, less whole turns, to a sum (Knuth).
INLINE Turns add_turns(Turns sum, double factor, Turns turns) {
    const double product = factor * turns.high;
    const double term = product - rint(product);
    const double rest = fma(factor, turns.low, fma(factor, turns.high, -product));
    const double both = sum.high + term, shadow = both - sum.high;
    return {both, sum.low + (((sum.high - (both - shadow)) + (term - shadow)) + rest)};
}

INLINE Turns add_radians(Turns sum, double radians) { return add_turns(sum, radians, {TURN_1, TURN_2}); }

#define SHIFT 6755399441055744.0  // 1.5 * 2^52 moves a number's whole part to the end of its mantissa

// Cos and sin of some quarter turns, at most a half and a whole number plus SHIFT, to 1.3e-16: sin(pi r/2)/r and
// cos(pi r/2) as polynomials in r^2, those of the loops for the CPU
INLINE void cos_sin_of_quarters(double rest, double whole, double& cos, double& sin) {
    const double square = rest * rest;
    double s = fma(square, 5.633933781537854e-08, -3.59864335298231e-06);
    s = fma(square, s, 0.0001604411507421909);
    s = fma(square, s, -0.004681754132340976);
    s = fma(square, s, 0.07969262624604301);
    s = fma(square, s, -0.6459640975062443);
    s = fma(square, s, 1.5707963267948966) * rest;
    double c = fma(square, -6.321256869628588e-09, 4.710609726757823e-07);
    c = fma(square, c, -2.520203677046026e-05);
    c = fma(square, c, 0.0009192602741831558);
    c = fma(square, c, -0.02086348076331121);
    c = fma(square, c, 0.2536695079010467);
    c = fma(square, c, -1.2337005501361697);
    c = fma(square, c, 1.0);
    const uint64 count = static_cast<uint64>(__double_as_longlong(whole)), sign = 0x8000000000000000ull;
    const bool odd = count & 1;  // its last two bits say which quarter
    const uint64 cos_bits = static_cast<uint64>(__double_as_longlong(odd ? s : c)) ^ ((count + 1) << 62 & sign);
    const uint64 sin_bits = static_cast<uint64>(__double_as_longlong(odd ? c : s)) ^ (count << 62 & sign);
    cos = __longlong_as_double(static_cast<int64>(cos_bits));
    sin = __longlong_as_double(static_cast<int64>(sin_bits));
}

// Cos and sin of 2 pi (high + low)
INLINE void cos_sin(Turns phase, double& cos, double& sin) {
    const double quarters = 4.0 * phase.high, more = 4.0 * phase.low, whole = (quarters + more) + SHIFT;
    cos_sin_of_quarters((quarters - (whole - SHIFT)) + more, whole, cos, sin);
}

// -- Philox4x32-10, the uniforms of rfrope/_philox.py bit for bit -------------------------------------------------------

struct Pair {
    double even, odd;
};

// Upper 52 of 64 bits as the middle of one of 2^52 cells: they become the mantissa of a number in [1, 2)
INLINE double unit_interval(uint32 low, uint32 high) {
    const uint64 bits = (static_cast<uint64>(high) << 32 | low) >> 12;
    return __longlong_as_double(static_cast<int64>(bits | 0x3FF0000000000000ull)) - 0.99999999999999988898;
}

// A product of 32-bit words in 64 bits. The plain product compiles to a multiply-and-add, and an add of nothing; without
// those adds the score sums have an eighth fewer instructions. From Blackwell on they then no longer fit their registers.
INLINE uint64 wide_product(uint32 a, uint32 b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 1000
    uint64 product;
    asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(a), "r"(b));
    return product;
#else
    return static_cast<uint64>(a) * b;
#endif
}

// Draws 2 pair and 2 pair + 1 of a column of a stream
INLINE Pair uniform_pair(uint64 pair, uint32 column, uint32 stream, uint32 key_0, uint32 key_1) {
    uint32 w0 = static_cast<uint32>(pair), w1 = static_cast<uint32>(pair >> 32), w2 = column, w3 = stream;
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        const uint64 p0 = wide_product(w0, 0xD2511F53u), p1 = wide_product(w2, 0xCD9E8D57u);
        w0 = static_cast<uint32>(p1 >> 32) ^ w1 ^ key_0;
        w1 = static_cast<uint32>(p1);
        w2 = static_cast<uint32>(p0 >> 32) ^ w3 ^ key_1;
        w3 = static_cast<uint32>(p0);
        key_0 += 0x9E3779B9u;
        key_1 += 0xBB67AE85u;
    }
    return {unit_interval(w0, w1), unit_interval(w2, w3)};
}

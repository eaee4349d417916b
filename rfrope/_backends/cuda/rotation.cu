// Rotation on a CUDA device, for any shapes and strides: one text for all features, phases and pairings.
//
// A thread forms cos and sin of WIDTH blocks of one row of phases, and turns these blocks in a group of the rows of x
// that share the phases (the heads of one token, say). WIDTH blocks are 16 bytes where rows lie suitably in memory, and
// one block elsewhere; ROWS rows are read before the first of them is written. Steps and addresses are in bytes. The
// plan is made by rotation.py.
//
// Integer positions meet frequencies as whole numbers: turns in units of 2^-64, whose products drop whole turns by
// themselves. Features of 16 bits are turned in float32. Those of 32 bits are, too, with cos and sin as sums of two
// floats and every rounding made good, so that the result is the exact one rounded once: float64 is slow on most cards.

#include "common.cuh"

enum { AXES = 12 };
enum Source { POSITIONS, PHASES, TABLES };          // what cos and sin come from
enum Number { FLOAT64, FLOAT32, INT64, INT32 };     // types of positions and tables

struct Axis {
    int64 length, x, y, a, b, c, e;
};

struct Rotation {
    // Operands a, b, c and e: positions, frequencies, shift and scale; phases in a; cosines in a and sines in b
    Place x, y, a, b, c, e;                         // null for none
    int64 a_block, b_block, c_block, e_block;       // steps from a block to the next
    int64 a_axis, b_axis;                           // steps from a position axis to the next
    int64 x_feature, y_feature;                     // steps from a feature to the next
    int64 x_block, y_block, x_second, y_second;     // steps from a block to the next, and to its second feature
    double scale;                                   // of cos and sin, unless e has one for each block
    int64 position;                                 // of all rows, where a is null
    int64 inverse, position_axes, blocks, features;
    int64 threads, turning, units, rows, group, shared;  // units of a row: the turning ones, then those that are copied
    int64 copied_whole;                             // whether features beyond the blocks may be copied 16 bytes at a time
    int64 x_member, y_member;                       // steps from a row to the next that shares its phases
    int64 row_axes;
    Axis axes[AXES];                                // of the rows; the last varies fastest
};

// A number of which the compiler does not see that it is the same each time: it would write a loop twice otherwise, for
// either value of a flag.
INLINE bool at_run_time(bool flag) {
#ifdef __CUDA_ARCH__
    int number = flag;
    asm volatile("" : "+r"(number));
    return number;
#else
    return flag;
#endif
}

// -- cos and sin as features want them ---------------------------------------------------------------------------------

struct Sum {  // an unevaluated sum
    float high, low;
};

template <class Feature>
struct Wide {
    typedef float type;
};
template <>
struct Wide<float> {
    typedef Sum type;
};
template <>
struct Wide<double> {
    typedef double type;
};

INLINE void hold(double x, double& y) { y = x; }
INLINE void hold(double x, float& y) { narrow(x, y); }
INLINE void hold(double x, Sum& y) {
    narrow(x, y.high);
    narrow(x - widen(y.high), y.low);
}

INLINE void hold(float x, double& y) { y = widen(x); }
INLINE void hold(float x, float& y) { y = x; }
INLINE void hold(float x, Sum& y) { y = {x, 0.0f}; }

INLINE double negative(double x) { return -x; }
INLINE float negative(float x) { return -x; }
INLINE Sum negative(Sum x) { return {-x.high, -x.low}; }

INLINE double product(double x, double y) { return x * y; }
INLINE float product(float x, float y) { return x * y; }
INLINE Sum product(Sum x, Sum y) {
    const float high = x.high * y.high;
    return {high, fmaf(x.high, y.low, fmaf(x.low, y.high, fmaf(x.high, y.high, -high)))};
}

INLINE float quick_reciprocal(float x) {
#ifdef __CUDA_ARCH__
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return 1.0f / x;
#endif
}

INLINE double reciprocal(double x) { return 1.0 / x; }
INLINE float reciprocal(float x) { return quick_reciprocal(x); }
INLINE Sum reciprocal(Sum x) {
    const float high = quick_reciprocal(x.high), left = fmaf(-x.low, high, fmaf(-x.high, high, 1.0f));
    return {high, left * high};
}

// -- turns in units of 2^-64 -------------------------------------------------------------------------------------------

struct Units {
    int64 word;
    float rest;  // at most half a unit, but a NaN for what is no number
};

#define UPPER 4294967296.0  // 2^32

// The nearest whole number to a float below 2^51
INLINE int64 whole_of(double shifted) {
    return __double_as_longlong(shifted) - 0x4338000000000000ll;
}

// Turns of radians below 2^53, modulo 1
INLINE Units units_of(double radians) {
    double high = radians * (TURN_1 * UPPER);  // in units of 2^-32
    const double low = fma(radians, TURN_2 * UPPER, fma(radians, TURN_1 * UPPER, -high));
    high -= (high + SHIFT * UPPER) - SHIFT * UPPER;
    const double upper = (high + low) + SHIFT;
    high -= upper - SHIFT;
    const double left = fma(high, UPPER, UPPER * low), lower = left + SHIFT;  // in units of 2^-64
    float rest;
    narrow((left - (lower - SHIFT)) + (fma(high, UPPER, -left) + UPPER * low), rest);
    return {static_cast<int64>(static_cast<uint64>(whole_of(upper)) << 32) + whole_of(lower), rest};
}

INLINE void add_units(Units& sum, int64 factor, Units units) {
    sum.word = static_cast<int64>(static_cast<uint64>(sum.word)
                                  + static_cast<uint64>(factor) * static_cast<uint64>(units.word));
    sum.rest = fmaf(static_cast<float>(factor), units.rest, sum.rest);
}

// Exchange cos and sin, and give them their signs, after some quarter turns: the last two bits of a count
template <class Real>
INLINE void turn_quarters(uint32 count, Real& cos, Real& sin) {
    const Real c = count & 1 ? sin : cos, s = count & 1 ? cos : sin;
    cos = (count + 1) & 2 ? negative(c) : c;
    sin = count & 2 ? negative(s) : s;
}

// Cos and sin of at most half a quarter turn, and a count of quarter turns, to 1e-7
INLINE void cos_sin_of_quarters(float rest, uint32 count, float& cos, float& sin) {
    const float square = rest * rest;
    cos = fmaf(square, fmaf(square, fmaf(square, -0.0205067452f, 0.2536346316f), -1.233700037f), 1.0f);
    sin = rest * fmaf(square, fmaf(square, fmaf(square, -0.00467649661f, 0.07971011102f), -0.6459665298f), 1.570796371f);
    turn_quarters(count, cos, sin);
}

// constant + square * factor, where the factor is one float and the constant two
INLINE Sum next_term(Sum constant, Sum square, Sum factor) {
    const float term = square.high * factor.high, high = constant.high + term;
    float low = fmaf(square.high, factor.high, -term) + fmaf(square.high, factor.low, square.low * factor.high);
    low += (constant.high - high) + term;
    return {high, low + constant.low};
}

// As above, to 5e-10
INLINE void cos_sin_of_quarters(Sum rest, uint32 count, Sum& cos, Sum& sin) {
    const float high = rest.high * rest.high;
    const Sum square = {high, fmaf(rest.high + rest.high, rest.low, fmaf(rest.high, rest.high, -high))};
    const float c = fmaf(high, fmaf(high, fmaf(high, -2.25957192e-05f, 0.0009180441266f), -0.02086330205f), 0.2536695004f);
    cos = next_term({1.0f, 0.0f}, square, next_term({-1.233700514f, -3.629536494e-08f}, square, {c, 0.0f}));
    const float s = fmaf(high, fmaf(high, 0.0001581714751f, -0.00468125008f), 0.07969257981f);
    sin = product(rest, next_term({1.570796371f, -4.371963769e-08f}, square, next_term({-0.6459640861f, -9.862904271e-09f}, square, {s, 0.0f})));
    turn_quarters(count, cos, sin);
}

// Cos and sin of turns: the nearest quarter from the first two bits, and what is left as a part of one
INLINE void cos_sin(Units turns, float& cos, float& sin) {
    const uint32 upper = static_cast<uint64>(turns.word) >> 32, count = (upper + 0x20000000u) >> 30;
    const float rest = static_cast<float>(static_cast<int>(upper - (count << 30))) * 0x1p-30f;
    cos_sin_of_quarters(fmaf(turns.rest, 0x1p-62f, rest), count, cos, sin);
}

INLINE void cos_sin(Units turns, Sum& cos, Sum& sin) {
    const uint32 upper = static_cast<uint64>(turns.word) >> 32, count = (upper + 0x20000000u) >> 30;
    const int left = static_cast<int>(upper - (count << 30));  // 24 bits of it are exact, and 32 more behind them
    const uint32 lower = static_cast<uint32>(left) << 26 | static_cast<uint32>(turns.word) >> 6;
    const float first = static_cast<float>(left >> 6) * 0x1p-24f;
    const float second = fmaf(turns.rest, 0x1p-62f, static_cast<float>(lower) * 0x1p-56f), high = first + second;
    cos_sin_of_quarters({high, second - (high - first)}, count, cos, sin);
}

// Cos and sin of turns as two float64
INLINE void cos_sin(Turns turns, float& cos, float& sin) {
    const double quarters = 4.0 * turns.high, more = 4.0 * turns.low, whole = (quarters + more) + SHIFT;
    float rest;
    narrow((quarters - (whole - SHIFT)) + more, rest);
    cos_sin_of_quarters(rest, static_cast<uint32>(__double_as_longlong(whole)), cos, sin);
}

INLINE void cos_sin(Turns turns, Sum& cos, Sum& sin) {
    double c, s;
    cos_sin(turns, c, s);
    hold(c, cos);
    hold(s, sin);
}

struct CosSin {
    double cos, sin;
};

// By the library's long reduction, once in the text
__device__ __attribute__((noinline)) CosSin cos_sin_of_large(double radians) {
    CosSin found;
    sincos(radians, &found.sin, &found.cos);
    return found;
}

// -- angles of WIDTH blocks from an open row of operands, whose places are those of the first block --------------------

template <int NUMBER>
INLINE int64 whole_number(const char* place) {
    return NUMBER == INT32 ? get<int>(place) : get<int64>(place);
}

// A position, which is in the plan itself where it is a number of the host
template <int NUMBER>
INLINE int64 whole_position(const Rotation& plan, const char* place) {
    return NUMBER == INT64 && !at_run_time(plan.a) ? plan.position : whole_number<NUMBER>(place);
}

template <int NUMBER>
INLINE double number(const char* place) {
    if (NUMBER == FLOAT64) return get<double>(place);
    if (NUMBER == FLOAT32) return widen(get<float>(place));
    return static_cast<double>(whole_number<NUMBER>(place));
}

template <int NUMBER>
INLINE double float_position(const Rotation& plan, const char* place) {
    const bool is_whole = NUMBER == INT64 || NUMBER == INT32;
    return is_whole ? static_cast<double>(whole_position<NUMBER>(plan, place)) : number<NUMBER>(place);
}

template <int NUMBER, int WIDTH, class Real>
INLINE void from_integers(const Rotation& plan, const char* a, const char* b, const char* c, Real* cosines, Real* sines) {
    Units sums[WIDTH] = {};
#pragma unroll 1
    for (int64 axis = plan.c ? -1 : 0; axis < plan.position_axes; ++axis) {  // a shift comes first, at position 1
        const int64 position = axis < 0 ? 1 : whole_position<NUMBER>(plan, a + axis * plan.a_axis);
        const int64 step = axis < 0 ? plan.c_block : plan.b_block;
        const char* place = axis < 0 ? c : b + axis * plan.b_axis;
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) add_units(sums[i], position, units_of(get<double>(place + i * step)));
    }
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) cos_sin(sums[i], cosines[i], sines[i]);
}

template <int NUMBER, int WIDTH, class Real>
INLINE void from_floats(const Rotation& plan, const char* a, const char* b, const char* c, Real* cosines, Real* sines) {
    Turns sums[WIDTH] = {};
#pragma unroll 1
    for (int64 axis = plan.c ? -1 : 0; axis < plan.position_axes; ++axis) {
        const double position = axis < 0 ? 1.0 : float_position<NUMBER>(plan, a + axis * plan.a_axis);
        const int64 step = axis < 0 ? plan.c_block : plan.b_block;
        const char* place = axis < 0 ? c : b + axis * plan.b_axis;
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) sums[i] = add_turns(sums[i], position, turns_of(get<double>(place + i * step)));
    }
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) cos_sin(sums[i], cosines[i], sines[i]);
}

template <class Feature, int SOURCE, int NUMBER, int WIDTH, class Real>
INLINE void angles(const Rotation& plan, const char* a, const char* b, const char* c, Real* cosines, Real* sines) {
    if constexpr (SOURCE == POSITIONS && (NUMBER == INT64 || NUMBER == INT32) && sizeof(Feature) < 8) {
        from_integers<NUMBER, WIDTH>(plan, a, b, c, cosines, sines);
    } else if (SOURCE == POSITIONS) {
        from_floats<NUMBER, WIDTH>(plan, a, b, c, cosines, sines);
    } else {
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) {
            const double first = number<NUMBER>(a + i * plan.a_block);
            if (SOURCE == TABLES && NUMBER == FLOAT32) {
                hold(get<float>(a + i * plan.a_block), cosines[i]);
                hold(get<float>(b + i * plan.b_block), sines[i]);
            } else if (SOURCE == TABLES) {
                hold(first, cosines[i]);
                hold(number<NUMBER>(b + i * plan.b_block), sines[i]);
            } else if (fabs(first) <= LARGEST_EXACT) {
                cos_sin(add_radians({0.0, 0.0}, first), cosines[i], sines[i]);
            } else {  // NaN and infinity too
                const CosSin found = cos_sin_of_large(first);
                hold(found.cos, cosines[i]);
                hold(found.sin, sines[i]);
            }
        }
    }
}

// Multiply by the scale, or undo all: the plan then holds the inverse of a number.
template <int WIDTH, class Real>
INLINE void scale_all(const Rotation& plan, const char* e, Real* cosines, Real* sines) {
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
        const bool each = at_run_time(plan.e), inverse = at_run_time(plan.inverse);
        Real factor;
        hold(each ? get<double>(e + i * plan.e_block) : plan.scale, factor);
        if (each && inverse) factor = reciprocal(factor);
        cosines[i] = product(cosines[i], factor);
        sines[i] = product(sines[i], inverse ? negative(factor) : factor);
    }
}

// -- rows --------------------------------------------------------------------------------------------------------------

// a cos - b sin, rounded once
INLINE double turned(double a, double b, double cos, double sin) { return a * cos - b * sin; }
INLINE float turned(float a, float b, float cos, float sin) { return minus(times(a, cos), times(b, sin)); }
INLINE float turned(float a, float b, Sum cos, Sum sin) {
    const float one = times(a, cos.high), two = times(b, sin.high), both = minus(one, two), shadow = minus(both, one);
    float rest = minus(minus(one, minus(both, shadow)), plus(two, shadow));
    rest = plus(rest, minus(fused(a, cos.high, -one), fused(b, sin.high, -two)));
    rest = fused(a, cos.low, fused(-b, sin.low, rest));
    return rest == rest ? plus(both, rest) : both;  // nothing makes infinity good
}

INLINE float opened(Half x) { return widen(x); }
INLINE float opened(Bfloat x) { return widen(x); }
INLINE float opened(float x) { return x; }
INLINE double opened(double x) { return x; }
INLINE void closed(float x, Half& y) { narrow(x, y); }
INLINE void closed(float x, Bfloat& y) { narrow(x, y); }
INLINE void closed(float x, float& y) { y = x; }
INLINE void closed(double x, double& y) { y = x; }

// Features of WIDTH blocks of a row as they lie in memory: 32 bytes, or one block
template <class Feature, int WIDTH>
union Features {
    Chunk chunks[2];
    Feature values[2 * WIDTH];
};

template <class Feature, int WIDTH>
INLINE void load(Features<Feature, WIDTH>& row, const char* x, int64 second) {
    if (WIDTH == 1) {
        row.values[0] = get<Feature>(x);
        row.values[1] = get<Feature>(x + second);
    } else {
        row.chunks[0] = get<Chunk>(x);
        row.chunks[1] = get<Chunk>(x + second);
    }
}

template <class Feature, int WIDTH>
INLINE void store(const Features<Feature, WIDTH>& row, Place y, int64 second) {
    if (WIDTH == 1) {
        put(y, row.values[0]);
        put(y + second, row.values[1]);
    } else {
        put(y, row.chunks[0]);
        put(y + second, row.chunks[1]);
    }
}

template <class Feature, int WIDTH, class Real>
INLINE void turn(Features<Feature, WIDTH>& row, bool x_paired, bool y_paired, const Real* cosines, const Real* sines) {
    Feature first[WIDTH], second[WIDTH];
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
        const auto one = opened(x_paired ? row.values[2 * i] : row.values[i]);
        const auto two = opened(x_paired ? row.values[2 * i + 1] : row.values[WIDTH + i]);
        closed(turned(one, two, cosines[i], sines[i]), first[i]);
        closed(turned(two, -one, cosines[i], sines[i]), second[i]);
    }
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
        row.values[i] = !y_paired ? first[i] : i % 2 ? second[i / 2] : first[i / 2];
        const int j = WIDTH + i;
        row.values[j] = !y_paired ? second[i] : j % 2 ? second[j / 2] : first[j / 2];
    }
}

// Pass up to 2 WIDTH features through, from feature `start` on.
template <class Feature, int WIDTH>
INLINE void pass(const Rotation& plan, const char* x, Place y, int64 start) {
    const int64 left = plan.features - start, count = left < 2 * WIDTH ? left : 2 * WIDTH;
    x += start * plan.x_feature;
    y += start * plan.y_feature;
    if (WIDTH > 1 && plan.copied_whole && count == 2 * WIDTH) {
        const Chunk one = get<Chunk>(x), two = get<Chunk>(x + 16);
        put(y, one);
        put(y + 16, two);
        return;
    }
#pragma unroll 1
    for (int64 i = 0; i < count; ++i) put(y + i * plan.y_feature, get<Feature>(x + i * plan.x_feature));
}

template <class Feature, int WIDTH, int SOURCE, int NUMBER>
__global__ void __launch_bounds__(256, WIDTH == 1 ? 4 : 3) rotate(const __grid_constant__ Rotation plan) {
    typedef typename Wide<Feature>::type Real;
    enum { LONG = SOURCE == PHASES, ROWS = LONG || sizeof(Feature) == 4 ? 2 : 4, SOME = LONG ? 1 : 2 };
    const uint32 index = blockIdx.x * 256u + threadIdx.x;
    if (index >= plan.threads) return;
    const uint32 units = static_cast<uint32>(plan.units), rows = static_cast<uint32>(plan.rows);
    const uint32 unit = index % units, group = index / units / rows;
    uint32 row = index / units % rows;
    Place x = plan.x, y = plan.y, a = plan.a, b = plan.b, c = plan.c, e = plan.e;
#pragma unroll 1
    for (int axis = static_cast<int>(plan.row_axes) - 1; axis >= 0; --axis) {
        const Axis& here = plan.axes[axis];
        const uint32 length = static_cast<uint32>(here.length), whole = row / length;
        const int64 along = row - whole * length;
        x += along * here.x;
        y += along * here.y;
        a += along * here.a;
        b += along * here.b;
        c += along * here.c;
        e += along * here.e;
        row = whole;
    }
    const int64 begin = group * plan.group;
    int64 left = plan.shared - begin < plan.group ? plan.shared - begin : plan.group;
    x += begin * plan.x_member;
    y += begin * plan.y_member;
    if (unit >= plan.turning) {
        const int64 start = 2 * plan.blocks + 2 * WIDTH * (unit - plan.turning);
#pragma unroll 1
        for (; left > 0; --left, x += plan.x_member, y += plan.y_member) pass<Feature, WIDTH>(plan, x, y, start);
        return;
    }
    const int64 first = static_cast<int64>(unit) * WIDTH;
    x += first * plan.x_block;
    y += first * plan.y_block;
    a += SOURCE == POSITIONS ? 0 : first * plan.a_block;
    b += first * plan.b_block;
    c += first * plan.c_block;
    e += first * plan.e_block;
    Real cosines[WIDTH], sines[WIDTH];
    if (WIDTH <= SOME) {
        angles<Feature, SOURCE, NUMBER, WIDTH>(plan, a, b, c, cosines, sines);
        scale_all<WIDTH>(plan, e, cosines, sines);
    } else {  // some at a time, by one text for all: they wait in memory that a loop can index
        __shared__ Real waiting[2 * WIDTH][256];
#pragma unroll 1
        for (int i = 0; i < WIDTH; i += SOME) {
            angles<Feature, SOURCE, NUMBER, SOME>(plan, a, b, c, cosines, sines);
            scale_all<SOME>(plan, e, cosines, sines);
#pragma unroll
            for (int j = 0; j < SOME; ++j) {
                waiting[i + j][threadIdx.x] = cosines[j];
                waiting[WIDTH + i + j][threadIdx.x] = sines[j];
            }
            a += SOURCE == POSITIONS ? 0 : SOME * plan.a_block;
            b += SOME * plan.b_block;
            c += SOME * plan.c_block;
            e += SOME * plan.e_block;
        }
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) {
            cosines[i] = waiting[i][threadIdx.x];
            sines[i] = waiting[WIDTH + i][threadIdx.x];
        }
    }

    const bool x_paired = plan.x_second == sizeof(Feature), y_paired = plan.y_second == sizeof(Feature);
    const int64 x_second = WIDTH > 1 && x_paired ? 16 : plan.x_second;
    const int64 y_second = WIDTH > 1 && y_paired ? 16 : plan.y_second;
#pragma unroll 1
    for (; left > 0; left -= ROWS) {
        Features<Feature, WIDTH> read[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; ++i, x += plan.x_member) {
            if (i < left) load<Feature, WIDTH>(read[i], x, x_second);
        }
#pragma unroll
        for (int i = 0; i < ROWS; ++i, y += plan.y_member) {
            if (i >= left) break;
            turn<Feature, WIDTH>(read[i], at_run_time(x_paired), at_run_time(y_paired), cosines, sines);
            store<Feature, WIDTH>(read[i], y, y_second);
        }
    }
}

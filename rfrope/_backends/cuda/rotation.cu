// Rotation on a CUDA device, for any shapes and strides: one text for all features, phases and pairings.
//
// A thread forms cos and sin of WIDTH blocks of one row of phases, and turns these blocks in a group of the rows of x
// that share the phases (the heads of one token, say). WIDTH blocks are 16 bytes where rows lie suitably in memory, and
// one block elsewhere. Steps and addresses are in bytes. The plan is made by cuda_rotation.py.

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
    double scale;
    int64 inverse, number, position_axes, blocks, features;
    int64 threads, turning, units, rows, group, shared;  // units of a row: the turning ones, then those that are copied
    int64 copied_whole;                             // whether features beyond the blocks may be copied 16 bytes at a time
    int64 outer_axes, shared_axes;
    Axis axes[AXES];                                // outer ones, then shared ones; the last varies fastest
};

INLINE double number(const char* place, int64 type) {
    if (type == FLOAT64) return get<double>(place);
    if (type == INT64) return static_cast<double>(get<int64>(place));
    if (type == INT32) return static_cast<double>(get<int>(place));
    return widen(get<float>(place));
}

// Cos and sin of block i, unscaled, from an open row of operands
template <int SOURCE, class Real>
INLINE void angle(const Rotation& plan, const char* a, const char* b, const char* c, int64 i, Real& cos_i, Real& sin_i) {
    if (SOURCE == TABLES) {
        cos_i = static_cast<Real>(number(a + i * plan.a_block, plan.number));
        sin_i = static_cast<Real>(number(b + i * plan.b_block, plan.number));
        return;
    }
    Turns sum = {0.0, 0.0};
    if (SOURCE == PHASES) {
        const double radians = get<double>(a + i * plan.a_block);
        if (!(fabs(radians) <= LARGEST_EXACT)) {  // NaN and infinity too
            cos_i = static_cast<Real>(cos(radians));
            sin_i = static_cast<Real>(sin(radians));
            return;
        }
        sum = add_radians(sum, radians);
    } else {
        for (int axis = 0; axis < plan.position_axes; ++axis) {
            const double position = number(a + axis * plan.a_axis, plan.number);
            sum = add_turns(sum, position, turns_of(get<double>(b + i * plan.b_block + axis * plan.b_axis)));
        }
        if (plan.c) sum = add_radians(sum, get<double>(c + i * plan.c_block));
    }
    cos_sin(sum, cos_i, sin_i);
}

template <class Real>
INLINE void scaled(const Rotation& plan, const char* e, int64 i, Real& cos_i, Real& sin_i) {
    if (plan.inverse) sin_i = -sin_i;
    if (!plan.e && plan.scale == 1.0) return;
    const Real factor = static_cast<Real>(plan.e ? get<double>(e + i * plan.e_block) : plan.scale);
    cos_i = plan.inverse ? cos_i / factor : cos_i * factor;
    sin_i = plan.inverse ? sin_i / factor : sin_i * factor;
}

template <class Feature, class Real>
INLINE void turn(Feature& first, Feature& second, Real cos_i, Real sin_i) {
    const Real one = widen(first), two = widen(second);
    narrow(minus(times(one, cos_i), times(two, sin_i)), first);
    narrow(plus(times(one, sin_i), times(two, cos_i)), second);
}

// 32 bytes of features: as they lie in memory, and as blocks
template <class Feature, int WIDTH>
union Features {
    Chunk chunks[2];
    Feature values[2 * WIDTH];
};

template <class Feature, int WIDTH>
INLINE void turn_whole(const Rotation& plan, const char* x, Place y, const typename Wide<Feature>::type* cosines,
                       const typename Wide<Feature>::type* sines) {
    const bool x_paired = plan.x_second == sizeof(Feature), y_paired = plan.y_second == sizeof(Feature);
    Features<Feature, WIDTH> loaded, stored;
    loaded.chunks[0] = get<Chunk>(x);
    loaded.chunks[1] = get<Chunk>(x + (x_paired ? 16 : plan.x_second));
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
        Feature first = x_paired ? loaded.values[2 * i] : loaded.values[i];
        Feature second = x_paired ? loaded.values[2 * i + 1] : loaded.values[WIDTH + i];
        turn(first, second, cosines[i], sines[i]);
        if (y_paired) {
            stored.values[2 * i] = first;
            stored.values[2 * i + 1] = second;
        } else {
            stored.values[i] = first;
            stored.values[WIDTH + i] = second;
        }
    }
    put(y, stored.chunks[0]);
    put(y + (y_paired ? 16 : plan.y_second), stored.chunks[1]);
}

template <class Feature>
INLINE void turn_one(const Rotation& plan, const char* x, Place y, typename Wide<Feature>::type cos_i,
                     typename Wide<Feature>::type sin_i) {
    Feature first = get<Feature>(x), second = get<Feature>(x + plan.x_second);
    turn(first, second, cos_i, sin_i);
    put(y, first);
    put(y + plan.y_second, second);
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
    for (int64 i = 0; i < count; ++i) put(y + i * plan.y_feature, get<Feature>(x + i * plan.x_feature));
}

// Add the steps of an index, over some of the plan's axes, to places in memory.
INLINE void step(const Rotation& plan, int first, int count, uint32 index, Place& x, Place& y, Place* angles) {
    for (int axis = first + count - 1; axis >= first; --axis) {
        const Axis& here = plan.axes[axis];
        const uint32 length = static_cast<uint32>(here.length), whole = index / length;
        const int64 along = index - whole * length;
        x += along * here.x;
        y += along * here.y;
        if (angles) {
            angles[0] += along * here.a;
            angles[1] += along * here.b;
            angles[2] += along * here.c;
            angles[3] += along * here.e;
        }
        index = whole;
    }
}

template <class Feature, int WIDTH, int SOURCE>
__global__ void __launch_bounds__(256, WIDTH == 1 ? 4 : 3) rotate(const __grid_constant__ Rotation plan) {
    typedef typename Wide<Feature>::type Real;
    const uint32 index = blockIdx.x * 256u + threadIdx.x;
    if (index >= plan.threads) return;
    const uint32 units = static_cast<uint32>(plan.units), rows = static_cast<uint32>(plan.rows);
    const uint32 unit = index % units, row = index / units % rows, group = index / units / rows;
    Place x_row = plan.x, y_row = plan.y, angles[4] = {plan.a, plan.b, plan.c, plan.e};
    step(plan, 0, static_cast<int>(plan.outer_axes), row, x_row, y_row, angles);

    const bool turning = unit < plan.turning;
    const int64 first = static_cast<int64>(unit) * WIDTH, left = plan.blocks - first;
    const int count = turning ? static_cast<int>(left < WIDTH ? left : WIDTH) : 0;
    Real cosines[WIDTH], sines[WIDTH];
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
        if (i >= count) break;
        angle<SOURCE>(plan, angles[0], angles[1], angles[2], first + i, cosines[i], sines[i]);
        scaled(plan, angles[3], first + i, cosines[i], sines[i]);
    }

    const uint32 begin = group * static_cast<uint32>(plan.group), shared = static_cast<uint32>(plan.shared);
    const uint32 end = min(begin + static_cast<uint32>(plan.group), shared);
    for (uint32 member = begin; member < end; ++member) {
        Place x = x_row, y = y_row;
        step(plan, static_cast<int>(plan.outer_axes), static_cast<int>(plan.shared_axes), member, x, y, nullptr);
        if (!turning) {
            pass<Feature, WIDTH>(plan, x, y, 2 * plan.blocks + 2 * WIDTH * (unit - plan.turning));
            continue;
        }
        x += first * plan.x_block;
        y += first * plan.y_block;
        if (WIDTH > 1 && count == WIDTH) {
            turn_whole<Feature, WIDTH>(plan, x, y, cosines, sines);
            continue;
        }
#pragma unroll
        for (int i = 0; i < WIDTH; ++i) {
            if (i >= count) break;
            turn_one<Feature>(plan, x + i * plan.x_block, y + i * plan.y_block, cosines[i], sines[i]);
        }
    }
}

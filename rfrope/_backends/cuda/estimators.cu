// The estimators on a CUDA device: frequencies, and the moments of scores over random frequencies.
//
// A thread works on whole trials, one after the other: it draws the frequencies of two blocks at a time, for both are
// of one call of Philox, and adds what they give to the scores of a tile of rows, which are LAGS lags at PAIRS pairs of
// vectors each. Moments are merged in an order that the plan alone decides, so they are the same bits on every device.
// Frequencies, cos, sin and scores are those of estimator_loops.py, operation by operation. Steps and addresses are in
// bytes. The plans are made by cuda_estimators.py.

#include "common.cuh"

enum { THREADS = 256, MERGING_THREADS = 32, ROW_AXES = 32 };  // threads in a block
enum Law { UNIFORM, LOG_UNIFORM, TABLE, GIVEN };  // what a component comes from; GIVEN: from memory

// A table of a quantile has a row of six coefficients of a polynomial for each of PIECES parts of each octave. NEAR
// rows, those of v >= 1/32, are kept in shared memory: fifteen lookups of sixteen are there, and the 32 of a warp wait
// less for one another than they would for lines of the cache.
enum { PIECES = 128, SIDE = 52 * PIECES, NEAR = 4 * PIECES, FIRST_PIECE = (1023 - 53) * PIECES };
#define ROW_BYTES 48

struct alignas(16) Two {
    double first, second;
};

struct Transport {
    Place factors, table, radius;  // null for no table
    double parameter;
    uint64 key_0, key_1;
    int64 axes;
};

// -- quantiles --------------------------------------------------------------------------------------------------------

INLINE double exponential(double x) {
    const double n = rint(x * 1.4426950408889634);
    const double r = fma(-n, 1.9082149292705877e-10, fma(-n, 0.6931471803691238, x));
    double y = fma(2.09215799649503e-09, r, 2.5114869528657765e-08);
    y = fma(y, r, 2.7557251904174915e-07);
    y = fma(y, r, 2.7557224958392624e-06);
    y = fma(y, r, 2.4801587350110797e-05);
    y = fma(y, r, 0.000198412699092171);
    y = fma(y, r, 0.001388888888887189);
    y = fma(y, r, 0.008333333333309528);
    y = fma(y, r, 0.04166666666666669);
    y = fma(y, r, 0.16666666666666702);
    y = fma(y, r, 0.5);
    y = fma(y, r, 1.0);
    y = fma(y, r, 1.0);
    return y * __longlong_as_double((static_cast<int64>(n) + 1023) << 52);
}

// Where v = min(u, 1 - u) falls: in which piece, and -1/2 to 1/2 inside it, both read off the bits of v
struct Spot {
    double inside;
    int piece;
    bool upper;
};

INLINE Spot spot_of(double u) {
    const bool upper = static_cast<int>(__double_as_longlong(u) >> 32) >= 0x3FE00000;  // u > 1/2, asked of integers
    const int64 bits = __double_as_longlong(upper ? 1.0 - u : u);
    const int64 inside = (bits & 0x1FFFFFFFFFFFll) << 7 | 0x3FF0000000000000ll;
    return {__longlong_as_double(inside) - 1.5, static_cast<int>(bits >> 45) - FIRST_PIECE, upper};
}

struct Row {  // coefficients of a polynomial
    Two low, middle, high;
};

struct Far {  // a table in global memory
    const char* rows;
    INLINE Row at(int piece) const {
        const char* place = rows + static_cast<int64>(piece) * ROW_BYTES;
        return {get<Two>(place), get<Two>(place + 16), get<Two>(place + 32)};
    }
};

struct Near {  // one whose last rows are in shared memory as well
    Far far;
    const Two* rows;
    INLINE Row at(int piece) const {
        const int nearby = piece - (SIDE - NEAR);
        if (nearby < 0) return far.at(piece);
        return {rows[3 * nearby], rows[3 * nearby + 1], rows[3 * nearby + 2]};
    }
};

template <class Table>
INLINE double look_up(const Table& table, const Spot& spot) {
    const Row row = table.at(spot.piece);
    double y = fma(row.high.second, spot.inside, row.high.first);
    y = fma(y, spot.inside, row.middle.second);
    y = fma(y, spot.inside, row.middle.first);
    y = fma(y, spot.inside, row.low.second);
    return fma(y, spot.inside, row.low.first);
}

// Quantile, odd about 1/2 and times a factor; a table holds it over 2u - 1.
template <int LAW, class Table>
INLINE double component(const Transport& from, const Table& table, double factor, double u) {
    const double x = 2.0 * u - 1.0;
    if (LAW == UNIFORM) return factor * x;
    if (LAW == LOG_UNIFORM) return copysign(factor * exponential(from.parameter * fabs(x)), x);
    return look_up(table, spot_of(u)) * (factor * x);
}

// Quantile of a positive law: half of the table for each side of 1/2
INLINE double radius(const Transport& from, double u) {
    const Spot spot = spot_of(u);
    return look_up(Far{from.radius + (spot.upper ? SIDE * ROW_BYTES : 0)}, spot);
}

INLINE Pair drawn(const Transport& from, uint64 pair, int column, uint32 stream) {
    return uniform_pair(pair, static_cast<uint32>(column), stream, static_cast<uint32>(from.key_0),
                        static_cast<uint32>(from.key_1));
}

INLINE Pair drawn_radius(const Transport& from, uint64 pair, uint32 stream) {
    if (!from.radius) return {1.0, 1.0};
    const Pair u = drawn(from, pair, 0, stream);
    return {radius(from, u.even), radius(from, u.odd)};
}

// One component of the frequencies of draws 2 pair and 2 pair + 1, whose radii are given
template <int LAW, class Table>
INLINE Pair frequency(const Transport& from, const Table& table, uint64 pair, int axis, uint32 stream, Pair radii) {
    const double factor = get<double>(from.factors + 8 * axis);
    const Pair u = drawn(from, pair, from.radius ? axis + 1 : axis, stream);
    const Pair w = {component<LAW>(from, table, factor, u.even), component<LAW>(from, table, factor, u.odd)};
    if (!from.radius) return w;
    return {w.even * radii.even, w.odd * radii.odd};
}

// -- draws in memory --------------------------------------------------------------------------------------------------

struct Draws {
    Transport from;
    Place out;  // (count, axes)
    uint64 start;
    int64 count, pairs;
};

// Two numbers of a pair of draws, one or both of which were asked for
INLINE void put_pair(const Draws& plan, int64 pair, int axis, Pair values) {
    const int64 at = 2 * pair - static_cast<int64>(plan.start & 1);
    Place out = plan.out + 8 * (at * plan.from.axes + axis);
    if (at >= 0) put(out, values.even);
    if (at + 1 < plan.count) put(out + 8 * plan.from.axes, values.odd);
}

template <int LAW>
__global__ void __launch_bounds__(THREADS) frequencies(const __grid_constant__ Draws plan) {
    const int64 pair = static_cast<int64>(blockIdx.x) * THREADS + threadIdx.x;
    if (pair >= plan.pairs) return;
    const uint64 number = (plan.start >> 1) + static_cast<uint64>(pair);
    const Pair radii = drawn_radius(plan.from, number, 0);
    for (int axis = 0; axis < static_cast<int>(plan.from.axes); ++axis) {
        put_pair(plan, pair, axis, frequency<LAW>(plan.from, Far{plan.from.table}, number, axis, 0, radii));
    }
}

// -- moments ----------------------------------------------------------------------------------------------------------

struct Moments {  // count, mean, central power sums
    double n, mean, m2, m3, m4;
};

// Merge one more value, the n-th, into the moments (Pebay 2008); the count is kept by the caller, for all rows.
INLINE void add(Moments& sums, double value, double n, double inverse) {
    const double step = value - sums.mean, share = step * inverse, square = share * share;
    const double term = step * share * (n - 1.0);
    sums.mean += share;
    sums.m4 += term * square * (n * n - 3.0 * n + 3.0) + 6.0 * square * sums.m2 - 4.0 * share * sums.m3;
    sums.m3 += term * share * (n - 2.0) - 3.0 * share * sums.m2;
    sums.m2 += term;
}

// As montecarlo._Sums.merge
INLINE Moments merged(const Moments& one, const Moments& other) {
    if (other.n == 0.0) return one;
    if (one.n == 0.0) return other;
    const double a = one.n, b = other.n, n = a + b, step = (other.mean - one.mean) / n, square = step * step;
    Moments sums;
    sums.n = n;
    sums.mean = one.mean + step * b;
    sums.m2 = one.m2 + other.m2 + square * (a * b * n);
    sums.m3 = one.m3 + other.m3 + square * step * (a * b * (a - b) * n) + 3.0 * step * (a * other.m2 - b * one.m2);
    sums.m4 = one.m4 + other.m4 + square * square * (a * b * (a * a - a * b + b * b) * n)
        + 6.0 * square * (a * a * other.m2 + b * b * one.m2) + 4.0 * step * (a * other.m3 - b * one.m3);
    return sums;
}

template <int COUNT>
struct Shelf {  // moments of all threads of a block
    double n[COUNT], mean[COUNT], m2[COUNT], m3[COUNT], m4[COUNT];
};

template <int COUNT>
INLINE Moments taken(const Shelf<COUNT>& shelf, uint32 i) {
    return {shelf.n[i], shelf.mean[i], shelf.m2[i], shelf.m3[i], shelf.m4[i]};
}

template <int COUNT>
INLINE void laid(Shelf<COUNT>& shelf, uint32 i, const Moments& sums) {
    shelf.n[i] = sums.n, shelf.mean[i] = sums.mean, shelf.m2[i] = sums.m2, shelf.m3[i] = sums.m3, shelf.m4[i] = sums.m4;
}

// Merge the moments of all threads by halving: in order, whatever the hardware does. The first thread gets them.
template <int COUNT>
INLINE Moments folded(Shelf<COUNT>& shelf, const Moments& mine) {
    __syncthreads();  // what was there has been read
    laid(shelf, threadIdx.x, mine);
#pragma unroll 1
    for (uint32 half = COUNT / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) {
            laid(shelf, threadIdx.x, merged(taken(shelf, threadIdx.x), taken(shelf, threadIdx.x + half)));
        }
    }
    return taken(shelf, threadIdx.x);
}

// -- rows -------------------------------------------------------------------------------------------------------------

struct RowAxis {
    int64 length, out, delta, a, b;
};

// Row (lag, member): lags run over the axes along which delta changes, members over the others, and share the lag. A
// tile is tile_lags by tile_pairs rows; what lies beyond the last lag or member is worked on as if it were the last.
struct Rows {
    Place out, delta, a, b;                    // out: mean, m2, m3 and m4, each out_part after the one before
    Place pairs, lags, partial;                // by tile: (blocks, rows) of {A, B}; (axes, lags); see `score_sums`
    int64 out_part, delta_axis, a_block, b_block;
    int64 n_lags, n_members, member_tiles, tile_lags, tile_pairs, first_tile, tiles;
    int64 axes, blocks, even_blocks;
    int64 length, span, parts;
    int64 lag_axes, row_axes;
    RowAxis axis[ROW_AXES];                    // those of lags, then those of members; the last varies fastest
};

struct Address {
    int64 lag, member;
    int64 out, delta, a, b;  // offsets
};

INLINE void step(const Rows& plan, int64 first, int64 stop, int64 index, Address& row) {
    for (int64 i = stop - 1; i >= first; --i) {
        const RowAxis& here = plan.axis[i];
        const int64 whole = index / here.length, along = index - whole * here.length;
        row.out += along * here.out;
        row.delta += along * here.delta;
        row.a += along * here.a;
        row.b += along * here.b;
        index = whole;
    }
}

// Row of a slot of the tiles that are worked on
INLINE Address row_of(const Rows& plan, int64 tile, int64 slot) {
    tile += plan.first_tile;
    Address row = {tile / plan.member_tiles * plan.tile_lags + slot / plan.tile_pairs,
               tile % plan.member_tiles * plan.tile_pairs + slot % plan.tile_pairs, 0, 0, 0, 0};
    step(plan, 0, plan.lag_axes, min(row.lag, plan.n_lags - 1), row);
    step(plan, plan.lag_axes, plan.row_axes, min(row.member, plan.n_members - 1), row);
    return row;
}

// Lay A, B and lags out in the order in which `score_sums` reads them. An odd number of blocks gets one more, of zeros.
__global__ void __launch_bounds__(THREADS) lay_out(const __grid_constant__ Rows plan) {
    int64 index = static_cast<int64>(blockIdx.x) * THREADS + threadIdx.x;
    const int64 slots = plan.tile_lags * plan.tile_pairs, pairs = plan.tiles * plan.even_blocks * slots;
    if (index < pairs) {
        const int64 block = index / slots % plan.even_blocks;
        const Address row = row_of(plan, index / slots / plan.even_blocks, index % slots);
        Two pair = {0.0, 0.0};
        if (block < plan.blocks) {
            pair.first = get<double>(plan.a + row.a + block * plan.a_block);
            pair.second = get<double>(plan.b + row.b + block * plan.b_block);
        }
        put(plan.pairs + 16 * index, pair);
        return;
    }
    index -= pairs;
    if (index >= plan.tiles * plan.axes * plan.tile_lags) return;
    const int64 lag = index % plan.tile_lags, axis = index / plan.tile_lags % plan.axes;
    const Address row = row_of(plan, index / plan.tile_lags / plan.axes, lag * plan.tile_pairs);
    put(plan.lags + 8 * index, get<double>(plan.delta + row.delta + axis * plan.delta_axis));
}

INLINE Place partial_of(Place partial, int64 slots, int64 part, int64 slot) {
    return partial + 32 * (part * slots + slot);
}

// A block merges the partial moments of a row. It is small, as there are few parts unless there are few rows.
__global__ void __launch_bounds__(MERGING_THREADS) merge_parts(const __grid_constant__ Rows plan) {
    __shared__ Shelf<MERGING_THREADS> shelf;
    const int64 in_tile = plan.tile_lags * plan.tile_pairs, slots = plan.tiles * in_tile, slot = blockIdx.x;
    const Address row = row_of(plan, slot / in_tile, slot % in_tile);
    if (row.lag >= plan.n_lags || row.member >= plan.n_members) return;
    Moments sums = {};
    for (int64 part = threadIdx.x; part < plan.parts; part += MERGING_THREADS) {
        const char* place = partial_of(plan.partial, slots, part, slot);
        const Two low = get<Two>(place), high = get<Two>(place + 16);
        const int64 left = plan.length - part * plan.span;
        const double n = static_cast<double>(min(left, plan.span));
        sums = merged(sums, {n, low.first, low.second, high.first, high.second});
    }
    sums = folded(shelf, sums);
    if (threadIdx.x > 0) return;
    Place out = plan.out + row.out;
    put(out, sums.mean);
    put(out + plan.out_part, sums.m2);
    put(out + 2 * plan.out_part, sums.m3);
    put(out + 3 * plan.out_part, sums.m4);
}

// -- scores -----------------------------------------------------------------------------------------------------------

struct Scores {
    Transport from;
    Place given;                          // frequencies (trials, blocks, axes), or null
    Place pairs, lags, partial;           // as in Rows
    int64 start, length, span, parts, tiles;
    int64 blocks, even_blocks;
};

// A function of its own, or its registers and its stack would be those of the loop.
__device__ __attribute__((noinline)) Two cos_sin_of_large(double u) { return {cos(u), sin(u)}; }

#define LARGEST_REDUCED 1099511627776.0  // 2^40

// Cos and sin of a phase: quarters of a turn are taken out of it, exactly up to 2^40.
INLINE Two cos_sin(double u) {
    const double quarters = u * 0.6366197723675814;
    const double low = fma(u, -3.935735335036497e-17, fma(u, 0.6366197723675814, -quarters));
    const double whole = quarters + SHIFT;
    Two turned;
    cos_sin_of_quarters((quarters - (whole - SHIFT)) + low, whole, turned.first, turned.second);
    return turned;
}

struct Turned {
    Two even, odd;
};

// Side by side, so that both share the constants, and with one branch for both
INLINE Turned cos_sin(Pair phase) {
    Turned turned = {cos_sin(phase.even), cos_sin(phase.odd)};
    const bool small = fabs(phase.even) <= LARGEST_REDUCED, small_too = fabs(phase.odd) <= LARGEST_REDUCED;
    if (!(small && small_too)) {  // NaN too
        if (!small) turned.even = cos_sin_of_large(phase.even);
        if (!small_too) turned.odd = cos_sin_of_large(phase.odd);
    }
    return turned;
}

// Phases of blocks 2 pair and 2 pair + 1 at some lags, summed over the axes in their order
template <int LAW, int LAGS, class Table>
INLINE void phases(const Scores& plan, const Table& table, const char* lags, int64 trial, int pair, Pair* phase) {
    const Transport& from = plan.from;
    const uint32 stream = static_cast<uint32>(plan.start + trial), number = static_cast<uint32>(pair);
    const Pair radii = LAW == GIVEN ? Pair{1.0, 1.0} : drawn_radius(from, number, stream);
    const char* given = plan.given + 8 * (trial * plan.blocks + 2 * pair) * from.axes;
    const int64 second = 2 * pair + 1 < plan.blocks ? 8 * from.axes : 0;  // the block of zeros has none of its own
#pragma unroll
    for (int lag = 0; lag < LAGS; ++lag) phase[lag] = {0.0, 0.0};
#pragma unroll 1
    for (int axis = 0; axis < static_cast<int>(from.axes); ++axis) {
        Pair w;
        if (LAW == GIVEN) {
            w = {get<double>(given), get<double>(given + second)};
            given += 8;
        } else {
            w = frequency<LAW>(from, table, number, axis, stream, radii);
        }
#pragma unroll
        for (int lag = 0; lag < LAGS; ++lag) {
            const double p = get<double>(lags + 8 * lag);
            phase[lag].even += p * w.even;
            phase[lag].odd += p * w.odd;
        }
        lags += 8 * LAGS;
    }
}

// Partial moments of a part of the trials at a tile of rows, as (parts, tiles, rows) of {mean, m2, m3, m4}
template <int LAW, int LAGS, int PAIRS>
__global__ void __launch_bounds__(THREADS, LAGS * PAIRS == 1 ? 3 : 2) score_sums(const __grid_constant__ Scores plan) {
    __shared__ union {
        Two near[LAW == TABLE ? 3 * NEAR : 1];
        Shelf<THREADS> shelf;
    } room;
    const Near table = {{plan.from.table}, room.near};
    if (LAW == TABLE) {
#pragma unroll 1
        for (int i = threadIdx.x; i < 3 * NEAR; i += THREADS) {
            room.near[i] = get<Two>(table.far.rows + (SIDE - NEAR) * ROW_BYTES + 16 * i);
        }
        __syncthreads();
    }
    const uint32 parts = static_cast<uint32>(plan.parts);
    const int64 part = blockIdx.x % parts, tile = blockIdx.x / parts;
    const char* lags = plan.lags + 8 * tile * plan.from.axes * LAGS;
    const char* pairs_of_tile = plan.pairs + 16 * tile * plan.even_blocks * (LAGS * PAIRS);
    const int64 stop = min((part + 1) * plan.span, plan.length);
    Moments sums[LAGS * PAIRS] = {};
    double n = 0.0;
#pragma unroll 1
    for (int64 trial = part * plan.span + threadIdx.x; trial < stop; trial += THREADS) {
        double scores[LAGS * PAIRS] = {};
        const char* pairs = pairs_of_tile;
#pragma unroll 1
        for (int pair = 0; 2 * pair < static_cast<int>(plan.even_blocks); ++pair) {
            Pair phase[LAGS];
            Turned turned;
            phases<LAW, LAGS>(plan, table, lags, trial, pair, phase);
#pragma unroll
            for (int i = 0; i < LAGS * PAIRS; ++i) {
                if (i % PAIRS == 0) turned = cos_sin(phase[i / PAIRS]);
                const Two even = get<Two>(pairs + 16 * i), odd = get<Two>(pairs + 16 * (LAGS * PAIRS + i));
                scores[i] = fma(even.first, turned.even.first, fma(even.second, turned.even.second, scores[i]));
                scores[i] = fma(odd.first, turned.odd.first, fma(odd.second, turned.odd.second, scores[i]));
            }
            pairs += 32 * LAGS * PAIRS;
        }
        n += 1.0;
        const double inverse = 1.0 / n;
#pragma unroll
        for (int i = 0; i < LAGS * PAIRS; ++i) add(sums[i], scores[i], n, inverse);
    }
#pragma unroll
    for (int i = 0; i < LAGS * PAIRS; ++i) {
        sums[i].n = n;
        const Moments all = folded(room.shelf, sums[i]);
        if (threadIdx.x > 0) continue;
        Place place = partial_of(plan.partial, plan.tiles * (LAGS * PAIRS), part, tile * (LAGS * PAIRS) + i);
        put(place, Two{all.mean, all.m2});
        put(place + 16, Two{all.m3, all.m4});
    }
}

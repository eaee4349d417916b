// Sums of cos and sin over many frequencies at many lags on a CUDA device, in two steps whose order is fixed: every
// block of threads sums a part of the frequencies at some lags, then the parts of a lag are merged one after another.
//
// Threads of a block are lanes of lags times groups of frequencies; neighbours are neighbouring lags, so that a warp
// reads one frequency at a time. How the work is cut is in the plan, made by cuda_sums.py from shapes alone.
//
// Cosines come from p = sin(pi r), r a fraction of a turn: cos(2 pi r) = 1 - 2 p^2. That takes one polynomial where
// quarter turns take two, and keeps all digits of 1 - cos near lag 0, where the variance is made of nothing else.

#include "common.cuh"

enum { THREADS = 256, HEAD_AXES = 6, TURNS = 512, RUN = 256 };
enum Quantity { MEAN, COS, SIN };  // mean of cos; mean and squares of cos; mean and squares of sin

struct HeadAxis {
    int64 length, frequencies, lags;
};

struct Sums {
    Place frequencies, lags, parts;                            // partial means and squares: (heads, parts, lags, 2)
    int64 frequency_step, frequency_axis, lag_step, lag_axis;  // in bytes
    double factor;                                             // of the lags
    int64 axes, n_frequencies, n_lags;
    int64 lanes, tiles, n_parts, part;                         // lanes and blocks of lags; parts, and how long one is
    int64 again, head_axes;
    HeadAxis heads[HEAD_AXES];                                 // leading axes; the last varies fastest
};

// -- running moments --------------------------------------------------------------------------------------------------

struct Moments {
    double count, mean, squares;  // squares of the deviations from the mean
};

// Those of two disjoint sets together (Chan et al. 1983)
INLINE Moments merged(Moments a, Moments b) {
    if (b.count == 0.0) return a;
    if (a.count == 0.0) return b;
    const double count = a.count + b.count, step = b.mean - a.mean, share = b.count / count;
    return {count, a.mean + step * share, a.squares + b.squares + step * step * (a.count * share)};
}

// A short run of values relative to one of them, so that a small spread beside a large mean is kept
template <int QUANTITY>
struct Run {
    double pivot, sum, squares;

    INLINE void start(double first) {
        pivot = QUANTITY == MEAN ? 0.0 : first;
        sum = squares = 0.0;
    }

    INLINE void add(double value) {
        const double deviation = QUANTITY == MEAN ? value : value - pivot;
        sum += deviation;
        if (QUANTITY != MEAN) squares = fma(deviation, deviation, squares);
    }

    INLINE Moments moments(int count) const {
        const double step = sum / count, rest = squares - sum * step;
        return {static_cast<double>(count), pivot + step, rest < 0.0 ? 0.0 : rest};
    }
};

// -- one frequency at one lag -----------------------------------------------------------------------------------------

// sin(pi x) for |x| <= 1/2 and a little beyond, to 2 units in the last place: sin(pi x)/x as a polynomial in x^2,
// interpolated at Chebyshev's points in mpmath (tests/cuda/test_sums.py)
INLINE double sin_half_turns(double x) {
    const double square = x * x;
    double p = fma(square, 7.697582256098178e-07, -2.190347413816568e-05);
    p = fma(square, p, 0.00046629980748787305);
    p = fma(square, p, -0.007370430504206572);
    p = fma(square, p, 0.08214588657291776);
    p = fma(square, p, -0.5992645293189339);
    p = fma(square, p, 2.5501640398773002);
    p = fma(square, p, -5.167712780049969);
    return fma(square, p, 3.141592653589793) * x;
}

// What is summed: cos/2, (1 - cos)/2 or sin of r turns, |r| <= 1/2 or so
template <int QUANTITY>
INLINE double value_of(double r) {
    if (QUANTITY == SIN) return sin_half_turns(2.0 * (fabs(r) > 0.25 ? copysign(0.5, r) - r : r));
    const double p = sin_half_turns(r);
    return QUANTITY == MEAN ? fma(-p, p, 0.5) : p * p;
}

// The same from a phase in radians too large for turns to hold its fraction, as generic code has it; NaN of infinity
template <int QUANTITY>
INLINE double far_value(double radians) {
    if (QUANTITY == SIN) return sin(radians);
    const double half = 0.5 * cos(radians);
    return QUANTITY == MEAN ? half : 0.5 - half;
}

// Upper half of the bits of a magnitude, which integer units compare while others are busy
INLINE uint32 size_of(double x) { return static_cast<uint32>(__double_as_longlong(x) >> 32) & 0x7FFFFFFFu; }

#define SMALL 0x42700000u  // of 2^40: what is left of such a product, beside its rounded value, is below 2^-12
#define FAR 0x45600000u    // of 2^87: turns in two floats do not hold the fraction of such a product; NaN is larger

// Turns of a frequency times a lag, added up over the axes; `reach` becomes the size of the largest product.
INLINE Turns with_axis(Turns phase, bool first, double lag, Turns turns, uint32& reach) {
    const double product = lag * turns.high;
    reach = max(reach, size_of(product));
    if (!first) return add_turns(phase, lag, turns);
    return {product - rint(product), fma(lag, turns.low, fma(lag, turns.high, -product))};
}

// What is beyond whole turns, from -1/2 to 1/2
INLINE double fraction(Turns phase) {
    const double low = phase.low - rint(phase.low);
    return (phase.high - rint(phase.high + low)) + low;
}

// Fractions of a turn of one frequency at some lags
template <int AXES, int LAGS>
INLINE void fractions(const Turns* turns, const double (&lags)[LAGS][AXES], double (&out)[LAGS], uint32& largest) {
    Turns phases[LAGS];
    uint32 reach = 0;
#pragma unroll
    for (int j = 0; j < LAGS; ++j)
#pragma unroll
        for (int axis = 0; axis < AXES; ++axis)
            phases[j] = with_axis(phases[j], axis == 0, lags[j][axis], turns[axis], reach);
    largest = max(largest, reach);
    const bool reduced = AXES == 1 && reach < SMALL;  // to half a turn or so already
#pragma unroll
    for (int j = 0; j < LAGS; ++j) out[j] = reduced ? phases[j].high + phases[j].low : fraction(phases[j]);
}

// -- sums -------------------------------------------------------------------------------------------------------------

// Where a thread is: at some lags, at a part of the frequencies, and of these at every so many
struct Spot {
    const char *frequencies, *lags;  // of its head
    Place out;                       // of its head and part
    int64 index, begin, end;         // index: of its first lag; the next is `lanes` further
    uint32 group, groups, lanes;
};

INLINE Spot spot_of(const Sums& plan, int lags) {
    Spot here;
    here.lanes = static_cast<uint32>(plan.lanes);
    here.groups = THREADS / here.lanes;
    here.group = threadIdx.x / here.lanes;
    const uint32 n_parts = static_cast<uint32>(plan.n_parts), tiles = static_cast<uint32>(plan.tiles);
    const uint32 part = blockIdx.x % n_parts, head = blockIdx.x / n_parts / tiles;
    here.index = blockIdx.x / n_parts % tiles * (plan.lanes * lags) + threadIdx.x % here.lanes;
    here.begin = part * plan.part;
    here.end = min(here.begin + plan.part, plan.n_frequencies);
    here.frequencies = plan.frequencies;
    here.lags = plan.lags;
    uint32 rest = head;
    for (int axis = static_cast<int>(plan.head_axes) - 1; axis >= 0; --axis) {
        const uint32 length = static_cast<uint32>(plan.heads[axis].length), along = rest % length;
        here.frequencies += along * plan.heads[axis].frequencies;
        here.lags += along * plan.heads[axis].lags;
        rest /= length;
    }
    here.out = plan.parts + (static_cast<int64>(head) * n_parts + part) * plan.n_lags * 16;
    return here;
}

// Lags beyond the last repeat it, and are not written.
INLINE const char* lag_place(const Sums& plan, const Spot& here, int64 index) {
    return here.lags + min(index, plan.n_lags - 1) * plan.lag_step;
}

// Merge what the groups of a block have found at a lag, by halves, and write it. All threads of the block are here.
INLINE void gather(const Sums& plan, const Spot& here, int64 index, Moments total, bool wanted) {
    __shared__ Moments shared[THREADS];
    shared[threadIdx.x] = total;
    for (uint32 half = here.groups / 2; half > 0; half /= 2) {
        __syncthreads();
        if (here.group < half)
            shared[threadIdx.x] = merged(shared[threadIdx.x], shared[threadIdx.x + half * here.lanes]);
    }
    if (here.group > 0 || index >= plan.n_lags || !wanted) return;
    put(here.out + index * 16, shared[threadIdx.x].mean);
    put(here.out + index * 16 + 8, shared[threadIdx.x].squares);
}

// For a few axes, whose turns the threads of a block share. Squares are NaN where a phase was larger than turns can
// hold: sum_any is to do these again.
template <int QUANTITY, int AXES, int LAGS>
__global__ void __launch_bounds__(THREADS, LAGS == 1 ? 3 : 2) sum_few(const __grid_constant__ Sums plan) {
    enum { TILE = AXES == 3 ? 128 : TURNS / AXES };
    __shared__ Turns tile[TILE * AXES];
    const Spot here = spot_of(plan, LAGS);
    double lags[LAGS][AXES], values[LAGS];
    for (int j = 0; j < LAGS; ++j)
        for (int axis = 0; axis < AXES; ++axis)
            lags[j][axis] = plan.factor *
                            get<double>(lag_place(plan, here, here.index + j * here.lanes) + axis * plan.lag_axis);
    const int group = static_cast<int>(here.group), groups = static_cast<int>(here.groups);
    Moments totals[LAGS];
    Run<QUANTITY> runs[LAGS];
    for (int j = 0; j < LAGS; ++j) totals[j] = {0.0, 0.0, 0.0};
    int count = 0;
    uint32 largest = 0;
    for (int64 start = here.begin; start < here.end; start += TILE) {
        const int size = static_cast<int>(min(static_cast<int64>(TILE), here.end - start));
        __syncthreads();  // all have read the tile before
        for (int i = threadIdx.x; i < size; i += THREADS) {
            const char* place = here.frequencies + (start + i) * plan.frequency_step;
            for (int axis = 0; axis < AXES; ++axis)
                tile[i * AXES + axis] = turns_of(get<double>(place + axis * plan.frequency_axis));
        }
        __syncthreads();
        if (group >= size) continue;
        if (count == 0) {
            fractions(tile + group * AXES, lags, values, largest);
            for (int j = 0; j < LAGS; ++j) runs[j].start(value_of<QUANTITY>(values[j]));
        }
#pragma unroll 1
        for (int i = group; i < size; i += groups) {
            fractions(tile + i * AXES, lags, values, largest);
#pragma unroll
            for (int j = 0; j < LAGS; ++j) runs[j].add(value_of<QUANTITY>(values[j]));
        }
        count += (size - group + groups - 1) / groups;
        if (count < RUN && start + TILE < here.end) continue;
        for (int j = 0; j < LAGS; ++j) totals[j] = merged(totals[j], runs[j].moments(count));
        count = 0;
    }
    for (int j = 0; j < LAGS; ++j) {
        if (count) totals[j] = merged(totals[j], runs[j].moments(count));
        if (largest >= FAR) totals[j].squares = __longlong_as_double(0x7FF8000000000000ll);
        if (j) __syncthreads();
        gather(plan, here, here.index + j * here.lanes, totals[j], true);
    }
}

// For any number of axes and phases of any size: turns are formed anew for every frequency. If the plan says `again`,
// sums without NaN are kept as they are.
template <int QUANTITY>
__global__ void __launch_bounds__(THREADS, 2) sum_any(const __grid_constant__ Sums plan) {
    const Spot here = spot_of(plan, 1);
    const char* const lags = lag_place(plan, here, here.index);
    const bool kept = plan.again && !(here.index < plan.n_lags && isnan(get<double>(here.out + here.index * 16 + 8)));
    Moments total = {0.0, 0.0, 0.0};
    Run<QUANTITY> run;
    int count = 0;
    for (int64 i = here.begin + here.group; i < here.end && !kept; i += here.groups) {
        const char* place = here.frequencies + i * plan.frequency_step;
        Turns phase = {0.0, 0.0};
        double radians = 0.0;
        uint32 reach = 0;
        for (int axis = 0; axis < static_cast<int>(plan.axes); ++axis) {
            const double lag = plan.factor * get<double>(lags + axis * plan.lag_axis);
            const double frequency = get<double>(place + axis * plan.frequency_axis);
            phase = with_axis(phase, axis == 0, lag, turns_of(frequency), reach);
            radians += lag * frequency;
        }
        const double value = reach < FAR ? value_of<QUANTITY>(fraction(phase)) : far_value<QUANTITY>(radians);
        if (count == 0) run.start(value);
        run.add(value);
        if (++count < RUN) continue;
        total = merged(total, run.moments(count));
        count = 0;
    }
    if (count) total = merged(total, run.moments(count));
    gather(plan, here, here.index, total, !kept);
}

// Merge the parts of every lag, in their order.
struct Parts {
    Place parts, mean, squares;  // squares null where they are not asked for
    int64 n_frequencies, n_lags, n_parts, part, threads;
};

template <int QUANTITY>
__global__ void __launch_bounds__(THREADS) merge_parts(const __grid_constant__ Parts plan) {
    const int64 index = blockIdx.x * static_cast<int64>(THREADS) + threadIdx.x;  // of a lag of a head
    if (index >= plan.threads) return;
    const int64 head = index / plan.n_lags, lag = index - head * plan.n_lags;
    const char* place = plan.parts + (head * plan.n_parts * plan.n_lags + lag) * 16;
    Moments total = {0.0, 0.0, 0.0};
    for (int64 part = 0; part < plan.n_parts; ++part) {
        const int64 count = min(plan.part, plan.n_frequencies - part * plan.part);
        total = merged(total, {static_cast<double>(count), get<double>(place), get<double>(place + 8)});
        place += plan.n_lags * 16;
    }
    if (QUANTITY == MEAN) total.mean *= 2.0;
    if (QUANTITY == COS) {
        total.mean = fma(-2.0, total.mean, 1.0);
        total.squares *= 4.0;
    }
    put(plan.mean + index * 8, total.mean);
    if (plan.squares) put(plan.squares + index * 8, total.squares);
}

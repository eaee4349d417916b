// CUDA C++ for g++: the words that the kernels use, with the threads of a block run in turn on one thread of the CPU.
//
// It finds mistakes of indexing, masking, strides and barriers; not races inside a warp, and nothing of the hardware.

#include <math.h>
#include <string.h>
#include <ucontext.h>

#include <memory>
#include <vector>

struct Index {
    unsigned x, y, z;
};
static thread_local Index threadIdx, blockIdx, blockDim, gridDim;

#define __global__ static
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static thread_local

template <class T>
static inline T min(T a, T b) {
    return a < b ? a : b;
}
template <class T>
static inline T max(T a, T b) {
    return a > b ? a : b;
}

template <class To, class From>
static inline To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    memcpy(&to, &from, sizeof(to));
    return to;
}
static inline long long __double_as_longlong(double x) { return bits_as<long long>(x); }
static inline double __longlong_as_double(long long x) { return bits_as<double>(x); }
static inline unsigned __float_as_uint(float x) { return bits_as<unsigned>(x); }
static inline float __uint_as_float(unsigned x) { return bits_as<float>(x); }
static inline float half_to_float(unsigned short bits) { return bits_as<_Float16>(bits); }
static inline unsigned short float_to_half(float x) { return bits_as<unsigned short>(static_cast<_Float16>(x)); }

namespace emulated {

constexpr size_t STACK = 1 << 16;

struct Fiber {
    ucontext_t context;
    std::unique_ptr<char[]> stack{new char[STACK]};
    bool waits = false, done = false;
};

static thread_local ucontext_t scheduler;
static thread_local Fiber* running = nullptr;
static thread_local void (*body)(const void*) = nullptr;
static thread_local const void* argument = nullptr;

static void enter() {
    body(argument);
    running->done = true;
}

// Run all threads of a block until each waits at a barrier, again and again. Returns 0, or 1 if only some came to one.
static int run_block(unsigned threads, bool backward, std::vector<Fiber>& fibers) {
    while (fibers.size() < threads) fibers.emplace_back();
    for (unsigned t = 0; t < threads; ++t) {
        Fiber& fiber = fibers[t];
        fiber.done = false;
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.get();
        fiber.context.uc_stack.ss_size = STACK;
        fiber.context.uc_link = &scheduler;
        makecontext(&fiber.context, enter, 0);
    }
    for (;;) {
        unsigned waiting = 0, done = 0;
        for (unsigned i = 0; i < threads; ++i) {
            const unsigned t = backward ? threads - 1 - i : i;
            running = &fibers[t];
            running->waits = false;
            threadIdx = {t, 0, 0};
            swapcontext(&scheduler, &running->context);
            waiting += running->waits;
            done += running->done;
        }
        running = nullptr;
        if (done == threads) return 0;
        if (waiting != threads) return 1;
    }
}

// Run a grid. With barriers each thread has a stack of its own. Blocks and threads go in order, or backwards.
static int run(void (*kernel)(const void*), const void* plan, unsigned blocks, unsigned threads, int barriers,
               int backward) {
    static thread_local std::vector<Fiber> fibers;
    body = kernel;
    argument = plan;
    blockDim = {threads, 1, 1};
    gridDim = {blocks, 1, 1};
    for (unsigned i = 0; i < blocks; ++i) {
        blockIdx = {backward ? blocks - 1 - i : i, 0, 0};
        if (barriers) {
            if (run_block(threads, backward, fibers)) return 1;
            continue;
        }
        for (unsigned j = 0; j < threads; ++j) {
            threadIdx = {backward ? threads - 1 - j : j, 0, 0};
            kernel(plan);
        }
    }
    return 0;
}

}  // namespace emulated

static inline void __syncthreads() {
    emulated::Fiber* self = emulated::running;
    self->waits = true;
    swapcontext(&self->context, &emulated::scheduler);
}

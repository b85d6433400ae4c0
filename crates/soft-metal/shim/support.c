// Part of every library: the way into the run time, atomics, and conversions that the compiler calls by name.
//
// Plain C, never instrumented. `sm_init` must be called before any kernel.

typedef struct {
    void* meet;
    void* simdgroup_barrier;
    void* threadgroup_barrier;
    void* thread_index;
    void* access;
    void* copy_16;
    void* end_copies;
    void* wait_copies;
    void* any_at_barrier;
    void* wait_for_inputs;
    void* start_product;
    void* end_products;
    void* wait_products;
} SmRuntime;

__attribute__((visibility("hidden"))) SmRuntime sm_runtime;

// Where the linker has put the library.
extern __attribute__((visibility("hidden"))) char __ehdr_start[], _end[];

__attribute__((visibility("default"))) void sm_init(const SmRuntime* runtime, char** image) {
    sm_runtime = *runtime;
    image[0] = __ehdr_start;
    image[1] = _end;
}

// The run time tells call sites apart by their return address, so these jump instead of calling, with the address as the
// next argument.
#define SM_ENTRY(name, offset, site)                                                                                   \
    __attribute__((naked, visibility("hidden"))) void name(void) {                                                     \
        __asm__("movq (%rsp), %" site "\n\tjmpq *sm_runtime+" offset "(%rip)");                                        \
    }
SM_ENTRY(sm_meet, "0", "rdx")
SM_ENTRY(sm_simdgroup_barrier, "8", "rsi")
SM_ENTRY(sm_threadgroup_barrier, "16", "rsi")
SM_ENTRY(sm_thread_index, "24", "rdi")
SM_ENTRY(sm_copy_16, "40", "rdx")
SM_ENTRY(sm_end_copies, "48", "rdi")
SM_ENTRY(sm_wait_copies, "56", "rsi")
SM_ENTRY(sm_any_at_barrier, "64", "rcx")
SM_ENTRY(sm_wait_for_inputs, "72", "rdi")
SM_ENTRY(sm_start_product, "80", "rcx")
SM_ENTRY(sm_end_products, "88", "rdi")
SM_ENTRY(sm_wait_products, "96", "rsi")

#if defined(SM_RACES)
// kind: 0 read, 1 write, 2 atomic.
typedef void (*SmAccess)(const void* address, unsigned long bytes, unsigned kind, const void* site);
#define SM_ACCESS(address, bytes, kind)                                                                                \
    ((SmAccess)sm_runtime.access)(address, bytes, kind, __builtin_return_address(0))
#else
#define SM_ACCESS(address, bytes, kind) ((void)0)
#endif

enum { LOAD, STORE, EXCHANGE, ADD, SUB, MIN, MAX, AND, OR, XOR };

#define SM_HIDDEN __attribute__((visibility("hidden")))
#define SM_INTEGER_ATOMIC(name, T)                                                                                     \
    SM_HIDDEN T name(unsigned what, T* p, T x) {                                                                       \
        SM_ACCESS(p, 4, 2);                                                                                            \
        switch (what) {                                                                                                \
        case LOAD: return __atomic_load_n(p, __ATOMIC_RELAXED);                                                        \
        case STORE: __atomic_store_n(p, x, __ATOMIC_RELAXED); return x;                                                \
        case EXCHANGE: return __atomic_exchange_n(p, x, __ATOMIC_RELAXED);                                             \
        case ADD: return __atomic_fetch_add(p, x, __ATOMIC_RELAXED);                                                   \
        case SUB: return __atomic_fetch_sub(p, x, __ATOMIC_RELAXED);                                                   \
        case MIN: return __atomic_fetch_min(p, x, __ATOMIC_RELAXED);                                                   \
        case MAX: return __atomic_fetch_max(p, x, __ATOMIC_RELAXED);                                                   \
        case AND: return __atomic_fetch_and(p, x, __ATOMIC_RELAXED);                                                   \
        case OR: return __atomic_fetch_or(p, x, __ATOMIC_RELAXED);                                                     \
        case XOR: return __atomic_fetch_xor(p, x, __ATOMIC_RELAXED);                                                   \
        }                                                                                                              \
        __builtin_trap();                                                                                              \
    }
SM_INTEGER_ATOMIC(sm_atomic_u32, unsigned)
SM_INTEGER_ATOMIC(sm_atomic_i32, int)

SM_HIDDEN unsigned sm_atomic_cas(unsigned* p, unsigned expected, unsigned desired) {
    SM_ACCESS(p, 4, 2);
    __atomic_compare_exchange_n(p, &expected, desired, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    return expected;
}

SM_HIDDEN float sm_atomic_f32(unsigned what, float* p, float x) {
    SM_ACCESS(p, 4, 2);
    unsigned* bits = (unsigned*)p;
    unsigned found = __atomic_load_n(bits, __ATOMIC_RELAXED);
    for (;;) {
        float old = __builtin_bit_cast(float, found), new;
        switch (what) {
        case LOAD: return old;
        case STORE:
        case EXCHANGE: new = x; break;
        case ADD: new = old + x; break;
        case SUB: new = old - x; break;
        case MIN: new = __builtin_fminf(old, x); break;
        case MAX: new = __builtin_fmaxf(old, x); break;
        default: __builtin_trap();
        }
        unsigned wanted = __builtin_bit_cast(unsigned, new);
        if (__atomic_compare_exchange_n(bits, &found, wanted, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) return old;
    }
}

// float to bfloat, to nearest, ties to even; NaNs stay NaNs.
SM_HIDDEN __bf16 __truncsfbf2(float x) {
    unsigned bits = __builtin_bit_cast(unsigned, x);
    unsigned short high = (bits & 0x7fffffffu) > 0x7f800000u ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    return __builtin_bit_cast(__bf16, high);
}

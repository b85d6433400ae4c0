// What a kernel's entry makes of its parameters, and who the thread is.
//
// Lanes are hardware lanes, a SIMD-group is a warp, a threadgroup a block; threadgroup memory is the dynamic shared memory
// that the host gives each launch. All functions are inlined, so none of these structs ever lies in memory.
#pragma once

struct SmLaunch {
    ulong buffers[32];
    uint threadgroups[3];
    uint threads;
};

struct SmThread {
    uint lane;
    uint simdgroup;
    uint index;
    uint simdgroups;
    uint group[3];
    const SmLaunch* launch;
    __local uchar* arena;
};

// How much of the arena a kernel uses stands in the assembly as a comment, where src/ptx.rs looks for it.
#define SM_ARENA_USED(bytes) __asm__ volatile("// sm_arena %0" : : "n"(bytes))

// Told by a kernel's attribute: how many threads a threadgroup has at most, so that each gets few enough registers.
#define SM_THREADS(most) __asm__ volatile("// sm_threads %0" : : "n"(most))

// Told by a kernel: it gets no more registers for a thread than so many.
template <uint Count>
SM_INLINE void limit_registers() {
    __asm__ volatile("// sm_registers %0" : : "n"(Count));
}

// A function constant: a name that the host replaces by the value.
#define SM_FUNCTION_CONSTANT(T, name, index)                                                                           \
    static inline __attribute__((always_inline)) T sm_constant_##name() {                                              \
        uint value;                                                                                                    \
        __asm__("mov.b32 %0, SM_CONSTANT_" #index ";" : "=r"(value));                                                  \
        return (T)value;                                                                                               \
    }

// Kernels after this one may be started: they wait before they touch what it writes.
#define SM_STARTED __asm__ volatile("griddepcontrol.launch_dependents;" : : : "memory")

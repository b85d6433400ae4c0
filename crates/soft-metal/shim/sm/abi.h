// What compiled kernels and the run time (src/abi.rs) share. Both sides must agree to the byte.
#pragma once

// One launch, the same for all of its threads.
struct SmLaunch {
    ulong buffers[32];
    uint threadgroups[3];
    uint threads;
};

// One thread of a threadgroup.
struct SmThread {
    uint lane;
    uint simdgroup;
    uint index;
    uint simdgroups;
    uint group[3];
    uint reserved;
    const SmLaunch* launch;
    // Threadgroup memory, and where the kernel says how much of it it uses.
    ulong arena;
    uint* arena_used;
};

// Where a SIMD-group's values meet: slot i holds what lane i brought, if bit i of `mask` is set. The first lane that
// runs on may put a result behind the slots and set `done`.
struct SmArea {
    uint mask;
    uint done;
    uint reserved[14];
    uchar slots[32 * 1024];
    uchar result[16 * 1024];
};

struct SmMeeting {
    SmArea* area;
    ulong lane;
};

// The kernel whose thread this is uses so much of the arena.
#define SM_ARENA_USED(bytes) *sm_thread.arena_used = bytes

// One parameter of a kernel, for the host's checks.
struct SmParameter {
    uint kind;     // sm::Kind
    uint index;    // buffer index
    uint space;    // 1 device, 2 constant
    uint is_const;
    uint element;  // sm::Element
    uint bytes;    // size of the element
};

// The run time knows a call by the address it returns to, so no two calls may become one.
#define SM_CALL __attribute__((convergent, nomerge))
extern "C" {
// Brings `bytes` bytes of this lane, waits for the SIMD-group, returns what all lanes brought.
SmMeeting sm_meet(const void* value, uint bytes) SM_CALL;
void sm_simdgroup_barrier(uint flags) SM_CALL;
void sm_threadgroup_barrier(uint flags) SM_CALL;
// Index of the calling thread in its threadgroup.
uint sm_thread_index(void);

// From here on this thread may touch what kernels before this one write.
void sm_wait_for_inputs(void);
// Puts 16 bytes in threadgroup memory, at once or at the latest when this thread waits for the batch that they end up in.
void sm_copy_16(ulong to, const void* value) SM_CALL;
// What this thread has put there since the last time is a batch.
void sm_end_copies(void);
// Waits until at most so many of this thread's batches are under way.
void sm_wait_copies(uint under_way);
// Does `run` with a copy of so many bytes, at once or at the latest when this thread waits for the batch that it ends up in. The
// first of them are a pointer to what it adds to.
void sm_start_product(void (*run)(const void* operands), const void* operands, uint bytes);
// What this thread has started since the last time is a batch.
void sm_end_products(void);
// Waits until at most so many of this thread's batches are under way.
void sm_wait_products(uint under_way);
// Waits for so many threads at barrier `id`; whether any of them says so.
uint sm_any_at_barrier(uint id, uint threads, uint says) SM_CALL;

// Atomic operations, relaxed. `what` is one of the SM_ATOMIC constants.
uint sm_atomic_u32(uint what, void* address, uint value);
int sm_atomic_i32(uint what, void* address, int value);
float sm_atomic_f32(uint what, void* address, float value);
// Stores `desired` if `*address == *expected`; returns what was there.
uint sm_atomic_cas(void* address, uint expected, uint desired);
}

#define SM_ATOMIC_LOAD 0
#define SM_ATOMIC_STORE 1
#define SM_ATOMIC_EXCHANGE 2
#define SM_ATOMIC_ADD 3
#define SM_ATOMIC_SUB 4
#define SM_ATOMIC_MIN 5
#define SM_ATOMIC_MAX 6
#define SM_ATOMIC_AND 7
#define SM_ATOMIC_OR 8
#define SM_ATOMIC_XOR 9

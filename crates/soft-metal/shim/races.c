// Entries of clang's thread sanitiser, which hand every memory access to the run time. Plain C, never instrumented.

typedef struct {
    void* entries[4];
    // kind: 0 read, 1 write, 2 atomic.
    void (*access)(const void* address, unsigned long bytes, unsigned kind, const void* site);
} SmRuntime;
extern __attribute__((visibility("hidden"))) SmRuntime sm_runtime;

#define SM_HIDDEN __attribute__((visibility("hidden")))
#define SM_REPORT(address, bytes, kind) sm_runtime.access(address, bytes, kind, __builtin_return_address(0))
#define SM_ACCESSES(n)                                                                                                 \
    SM_HIDDEN void __tsan_read##n(void* p) { SM_REPORT(p, n, 0); }                                                     \
    SM_HIDDEN void __tsan_write##n(void* p) { SM_REPORT(p, n, 1); }                                                    \
    SM_HIDDEN void __tsan_unaligned_read##n(void* p) { SM_REPORT(p, n, 0); }                                           \
    SM_HIDDEN void __tsan_unaligned_write##n(void* p) { SM_REPORT(p, n, 1); }                                          \
    SM_HIDDEN void __tsan_read_write##n(void* p) {                                                                     \
        SM_REPORT(p, n, 0);                                                                                            \
        SM_REPORT(p, n, 1);                                                                                            \
    }                                                                                                                  \
    SM_HIDDEN void __tsan_unaligned_read_write##n(void* p) {                                                           \
        SM_REPORT(p, n, 0);                                                                                            \
        SM_REPORT(p, n, 1);                                                                                            \
    }
SM_ACCESSES(1)
SM_ACCESSES(2)
SM_ACCESSES(4)
SM_ACCESSES(8)
SM_ACCESSES(16)

SM_HIDDEN void __tsan_init(void) {}
SM_HIDDEN void __tsan_func_entry(void* site) {}
SM_HIDDEN void __tsan_func_exit(void) {}

SM_HIDDEN void* __tsan_memset(void* to, int value, unsigned long bytes) {
    SM_REPORT(to, bytes, 1);
    return __builtin_memset(to, value, bytes);
}
SM_HIDDEN void* __tsan_memcpy(void* to, const void* from, unsigned long bytes) {
    SM_REPORT(from, bytes, 0);
    SM_REPORT(to, bytes, 1);
    return __builtin_memcpy(to, from, bytes);
}
SM_HIDDEN void* __tsan_memmove(void* to, const void* from, unsigned long bytes) {
    SM_REPORT(from, bytes, 0);
    SM_REPORT(to, bytes, 1);
    return __builtin_memmove(to, from, bytes);
}

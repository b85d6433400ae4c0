// From an entry's parameters to a thread of a launch.
#pragma once
#include "launch.h"

namespace sm {

// Addresses of an entry's buffers; the last one is unused, because the argument struct is a parameter of its own.
template <int N>
struct Buffers {
    ulong address[N];
};

template <class P>
using arguments_t = remove_cv_t<remove_addrspace_t<remove_cv_t<typename pointee<P>::type>>>;

template <int N, class Args>
SM_INLINE void enter(SmLaunch& launch, SmThread& who, const Buffers<N>& buffers, const Args* args, __local uchar* arena) {
#pragma clang loop unroll(full)
    for (int i = 0; i < N - 1; i++) launch.buffers[i] = buffers.address[i];
    launch.buffers[N - 1] = (ulong)args;
    launch.threadgroups[0] = __nvvm_read_ptx_sreg_nctaid_x();
    launch.threadgroups[1] = __nvvm_read_ptx_sreg_nctaid_y();
    launch.threadgroups[2] = __nvvm_read_ptx_sreg_nctaid_z();
    launch.threads = __nvvm_read_ptx_sreg_ntid_x();
    who.index = __nvvm_read_ptx_sreg_tid_x();
    who.lane = who.index & 31;
    who.simdgroup = who.index >> 5;
    who.simdgroups = launch.threads >> 5;
    who.group[0] = __nvvm_read_ptx_sreg_ctaid_x();
    who.group[1] = __nvvm_read_ptx_sreg_ctaid_y();
    who.group[2] = __nvvm_read_ptx_sreg_ctaid_z();
    who.launch = &launch;
    who.arena = arena;
}

} // namespace sm

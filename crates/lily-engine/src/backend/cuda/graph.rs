//! Plans as the driver takes them: launches with their parameters, and graphs of launches.
//!
//! A graph's edges are the plan's dependencies and nothing else, so that what may overlap does. A kernel that
//! has something to do before it needs what others write starts while they run, and waits itself (`wait_for_inputs`): at once
//! if others of the plan write state of the session that it would touch early (`library`). Every kernel waits, so that one which has
//! waited has waited for all before it. A graph's launches hold the addresses of
//! some sessions' states; when other sessions come, those launches are told.

use super::driver::{Context, Function, Memory as Area, Stream, check};
use super::memory::Memory;
use super::refused;
use crate::backend::BackendError;
use crate::backend::gpu::encode::{EncodeList, Encoded};
use crate::backend::gpu::layout::Place;
use crate::backend::gpu::nvidia;
use crate::plan::{Plan, stages::edges};
use cudarc::driver::sys;
use std::ffi::c_void;
use std::sync::{Arc, Weak};

/// Where an edge leaves a kernel that lets the next one start early (CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC).
const PORT_PROGRAMMATIC: u8 = 1;

/// One launch.
pub(super) struct Launch {
    pub kernel: &'static str,
    function: Function,
    grid: [u32; 3],
    threads: u32,
    /// Buffer addresses, and one word for the place of the argument struct, which is a parameter of its own.
    buffers: Vec<u64>,
    args: Vec<u64>,
    /// Which buffers lie in the session's state.
    state: Vec<(usize, Place)>,
}

impl Launch {
    pub fn new(
        encoded: &Encoded,
        kernel: &'static str,
        function: Function,
        memory: &Memory,
        states: &[Arc<Vec<Area>>],
    ) -> Self {
        let mut buffers: Vec<u64> = encoded.buffers.iter().map(|place| memory.address(states, *place)).collect();
        buffers.push(0);
        let in_state = |(_, place): &(usize, Place)| matches!(place, Place::State { .. });
        let mut args = vec![0; encoded.args.len().div_ceil(8)];
        bytemuck::cast_slice_mut::<u64, u8>(&mut args)[..encoded.args.len()].copy_from_slice(&encoded.args);
        Self {
            kernel,
            function,
            grid: nvidia::grid(kernel, encoded.threadgroups),
            threads: encoded.threads,
            buffers,
            args,
            state: encoded.buffers.iter().copied().enumerate().filter(in_state).collect(),
        }
    }

    /// Points it at other sessions' states; whether that changes anything.
    fn bind(&mut self, memory: &Memory, states: &[Arc<Vec<Area>>]) -> bool {
        self.state.iter().for_each(|(i, place)| self.buffers[*i] = memory.address(states, *place));
        !self.state.is_empty()
    }

    /// Addresses of its two parameters.
    fn parameters(&self) -> [*mut c_void; 2] {
        [self.buffers.as_ptr().cast_mut().cast(), self.args.as_ptr().cast_mut().cast()]
    }

    fn node(&self, parameters: &mut [*mut c_void; 2]) -> sys::CUDA_KERNEL_NODE_PARAMS {
        sys::CUDA_KERNEL_NODE_PARAMS {
            func: self.function.raw,
            gridDimX: self.grid[0],
            gridDimY: self.grid[1],
            gridDimZ: self.grid[2],
            blockDimX: self.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: self.function.shared_bytes,
            kernelParams: parameters.as_mut_ptr(),
            extra: std::ptr::null_mut(),
            kern: std::ptr::null_mut(),
            ctx: std::ptr::null_mut(),
        }
    }

    /// Puts it into a stream.
    pub fn start(&self, stream: &Stream) -> Result<(), String> {
        let ([x, y, z], mut parameters) = (self.grid, self.parameters());
        // SAFETY: the parameters have the sizes and the order of the entry's (crates/msl), and are copied by the call.
        check(unsafe {
            sys::cuLaunchKernel(
                self.function.raw,
                x,
                y,
                z,
                self.threads,
                1,
                1,
                self.function.shared_bytes,
                stream.raw(),
                parameters.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        })
    }
}

/// A plan that can be started with one call.
pub(super) struct Graph {
    context: Arc<Context>,
    launches: Vec<Launch>,
    nodes: Vec<sys::CUgraphNode>,
    graph: sys::CUgraph,
    ready: sys::CUgraphExec,
    /// Whose states the launches point at.
    bound: Vec<Weak<Vec<Area>>>,
}

// SAFETY: graphs may be used from any thread, one at a time, and this has one owner.
unsafe impl Send for Graph {}

impl Graph {
    /// A graph of `launches`, which are those of `list` in its order and point at `states`.
    pub fn new(
        context: &Arc<Context>,
        plan: &Plan,
        list: &EncodeList,
        launches: Vec<Launch>,
        states: &[Arc<Vec<Area>>],
    ) -> Result<Self, BackendError> {
        context.enter()?;
        let mut graph = Self {
            context: Arc::clone(context),
            launches,
            nodes: Vec::new(),
            graph: std::ptr::null_mut(),
            ready: std::ptr::null_mut(),
            bound: states.iter().map(Arc::downgrade).collect(),
        };
        // SAFETY: live variables; every node is of this graph and made before it is named; parameters are copied.
        unsafe {
            check(sys::cuGraphCreate(&mut graph.graph, 0)).map_err(refused("a graph"))?;
            let mut node_of = vec![std::ptr::null_mut(); plan.dispatches.len()];
            for ((_, encoded), launch) in list.dispatches().zip(&graph.launches) {
                let (mut node, mut parameters) = (std::ptr::null_mut(), launch.parameters());
                let (nothing, params) = (std::ptr::null(), launch.node(&mut parameters));
                let added = sys::cuGraphAddKernelNode_v2(&mut node, graph.graph, nothing, 0, &params);
                let failed = |message| BackendError::Compile { kernel: launch.kernel.to_owned(), message };
                check(added).map_err(failed)?;
                node_of[encoded.dispatch] = node;
                graph.nodes.push(node);
            }
            let whole: sys::CUgraphEdgeData = std::mem::zeroed();
            let type_ = sys::CUgraphDependencyType_enum::CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC as u8;
            let early = sys::CUgraphEdgeData { from_port: PORT_PROGRAMMATIC, type_, ..whole };
            let (mut from, mut to, mut data) = (Vec::new(), Vec::new(), Vec::new());
            let before = edges(plan);
            for ((_, encoded), launch) in list.dispatches().zip(&graph.launches) {
                from.extend(before[encoded.dispatch].iter().map(|i| node_of[*i]));
                to.resize(from.len(), node_of[encoded.dispatch]);
                data.resize(from.len(), if launch.function.early { early } else { whole });
            }
            let joined =
                sys::cuGraphAddDependencies_v2(graph.graph, from.as_ptr(), to.as_ptr(), data.as_ptr(), from.len());
            check(joined).map_err(refused("a graph's edges"))?;
            check(sys::cuGraphInstantiateWithFlags(&mut graph.ready, graph.graph, 0)).map_err(refused("a graph"))?;
        }
        Ok(graph)
    }

    /// Starts it on these sessions' states.
    pub fn start(&mut self, memory: &Memory, states: &[Arc<Vec<Area>>], stream: &Stream) -> Result<(), String> {
        let same =
            |(bound, state): (&Weak<Vec<Area>>, &Arc<Vec<Area>>)| std::ptr::eq(bound.as_ptr(), Arc::as_ptr(state));
        if !self.bound.iter().zip(states).all(same) {
            for (launch, node) in self.launches.iter_mut().zip(&self.nodes) {
                if launch.bind(memory, states) {
                    let mut parameters = launch.parameters();
                    // SAFETY: the node is of this graph, its function stays; parameters are copied.
                    check(unsafe {
                        sys::cuGraphExecKernelNodeSetParams_v2(self.ready, *node, &launch.node(&mut parameters))
                    })?;
                }
            }
            // A weak reference keeps the address from being given to another state.
            self.bound = states.iter().map(Arc::downgrade).collect();
        }
        // SAFETY: a graph that was made ready, a live stream.
        check(unsafe { sys::cuGraphLaunch(self.ready, stream.raw()) })
    }

    /// Kernels in it.
    pub fn len(&self) -> usize {
        self.launches.len()
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let _ = self.context.enter();
        // SAFETY: made by this value; a graph that is still running is destroyed when it has ended.
        unsafe {
            if !self.ready.is_null() {
                let _ = sys::cuGraphExecDestroy(self.ready);
            }
            if !self.graph.is_null() {
                let _ = sys::cuGraphDestroy(self.graph);
            }
        }
    }
}

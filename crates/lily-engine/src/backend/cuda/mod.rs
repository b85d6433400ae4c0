//! The CUDA backend: NVIDIA GPUs, by the driver's own interface.
//!
//! Kernels are those of every GPU, `kernels/*.metal`, which the build turns into PTX (crates/msl). A plan that is kept becomes a
//! graph whose edges are the plan's dependencies, so that a decode step costs the host one call; any other plan is
//! put into the stream launch by launch. The host waits for nothing that it does not read.

mod driver;
mod graph;
mod kept;
mod library;
mod memory;

use super::gpu::encode::EncodeList;
use super::{Backend, BackendError, Device, DeviceMemory, Program, State};
use crate::checkpoint::Checkpoint;
use crate::kernel::launch;
use crate::model::Traits;
use crate::plan::{BufferTable, Plan, Slot};
use crate::shape::Shape;
use driver::{Context, Event, Memory as Area, Stream};
use graph::{Graph, Launch};
use library::Library;
use memory::{CudaState, Memory};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

/// The compute capability that the kernels are compiled for: Hopper.
const CAPABILITY: (i32, i32) = (9, 0);

/// Names a mode in which every launch is waited for, so that an error names its kernel.
const STEPWISE_VARIABLE: &str = "LILY_CUDA_STEPWISE";

/// An NVIDIA GPU without a model.
pub struct CudaDevice {
    context: Arc<Context>,
}

impl CudaDevice {
    /// The first GPU of this machine.
    ///
    /// # Errors
    /// If there is no driver, or no GPU that the kernels were compiled for.
    pub fn open() -> Result<Self, BackendError> {
        let context = Context::open().map_err(|message| BackendError::NoCuda { message })?;
        let facts = &context.facts;
        if facts.capability != CAPABILITY {
            let ((major, minor), (found_major, found_minor)) = (CAPABILITY, facts.capability);
            let message = format!(
                "its kernels are compiled for compute capability {major}.{minor}, {} has {found_major}.{found_minor}",
                facts.name
            );
            return Err(BackendError::NoCuda { message });
        }
        Ok(Self { context })
    }
}

impl Device for CudaDevice {
    fn traits(&self) -> Traits {
        // Every GPU of this compute capability has 114 multiprocessors or more.
        Traits::WIDE_GPU
    }

    fn memory(&self) -> Option<DeviceMemory> {
        Some(DeviceMemory { bytes: self.context.free_bytes().ok()?, limit: "free memory of the GPU" })
    }

    fn check(&self, shape: &Shape) -> Result<(), BackendError> {
        Ok(launch::check(shape)?)
    }

    fn load(
        self: Box<Self>,
        checkpoint: Arc<Checkpoint>,
        table: &BufferTable,
    ) -> Result<Box<dyn Backend>, BackendError> {
        let stream = Arc::new(Stream::new(&self.context)?);
        let memory = Memory::new(&self.context, &stream, &checkpoint, table)?;
        let facts = &self.context.facts;
        let (driver, (major, minor)) = (facts.driver, facts.capability);
        Ok(Box::new(Cuda {
            description: format!(
                "{} (CUDA {}.{}, compute capability {major}.{minor})",
                facts.name,
                driver / 1000,
                driver % 1000 / 10
            ),
            stepwise: std::env::var_os(STEPWISE_VARIABLE).is_some_and(|v| !v.is_empty()),
            library: Library::new(Arc::clone(&self.context)),
            flights: VecDeque::new(),
            context: self.context,
            stream,
            memory,
        }))
    }
}

/// A submission under way, with what it uses.
struct Flight {
    end: Event,
    kernels: usize,
    _states: Vec<Arc<Vec<Area>>>,
}

/// A plan made ready; its graph is made when the first session comes.
struct Ready {
    list: EncodeList,
    graph: Mutex<Option<Graph>>,
}

/// An NVIDIA GPU with a model.
pub struct Cuda {
    description: String,
    stepwise: bool,
    context: Arc<Context>,
    library: Library,
    // Before the memory: what is under way must end before buffers go.
    flights: VecDeque<Flight>,
    stream: Arc<Stream>,
    memory: Memory,
}

impl Cuda {
    /// Encodes a plan, and compiles its kernels.
    fn list(&self, plan: &Plan) -> Result<EncodeList, BackendError> {
        self.context.enter()?;
        let list = EncodeList::new(plan, self.memory.layout())?;
        for (_, encoded) in list.dispatches() {
            self.library.function(&list.pipelines[encoded.pipeline], encoded)?;
        }
        Ok(list)
    }

    fn launches(&self, list: &EncodeList, states: &[Arc<Vec<Area>>]) -> Result<Vec<Launch>, BackendError> {
        list.dispatches()
            .map(|(_, encoded)| {
                let key = &list.pipelines[encoded.pipeline];
                let function = self.library.function(key, encoded)?;
                Ok(Launch::new(encoded, key.entry, function, &self.memory, states))
            })
            .collect()
    }

    /// Puts launches into the stream one after another.
    fn start(&mut self, launches: &[Launch], states: Vec<Arc<Vec<Area>>>) -> Result<(), BackendError> {
        self.context.enter()?;
        for (i, launch) in launches.iter().enumerate() {
            let waited = |()| if self.stepwise { self.stream.wait() } else { Ok(()) };
            launch.start(&self.stream).and_then(waited).map_err(|message| BackendError::Fault {
                kernel: format!("kernel `{}`", launch.kernel),
                stage: i + 1,
                stages: launches.len(),
                message,
            })?;
        }
        self.took_off(launches.len(), states)
    }

    /// Remembers that something was submitted.
    fn took_off(&mut self, kernels: usize, states: Vec<Arc<Vec<Area>>>) -> Result<(), BackendError> {
        let end = Event::record(&self.context, &self.stream).map_err(|message| fault(kernels, message))?;
        self.flights.push_back(Flight { end, kernels, _states: states });
        Ok(())
    }
}

impl Backend for Cuda {
    fn describe(&self) -> String {
        self.description.clone()
    }

    fn new_state(&self) -> Result<Box<dyn State>, BackendError> {
        Ok(Box::new(self.memory.new_state()?))
    }

    fn prepare(&mut self, plan: Plan) -> Result<Program, BackendError> {
        let list = self.list(&plan)?;
        Ok(Program::new(plan, Ready { list, graph: Mutex::new(None) }))
    }

    fn submit(&mut self, program: &Program, states: &mut [&mut dyn State]) -> Result<(), BackendError> {
        let (ready, areas) = (program.ready::<Ready>(), areas(states));
        if self.stepwise {
            let launches = self.launches(&ready.list, &areas)?;
            return self.start(&launches, areas);
        }
        let mut graph = ready.graph.lock().unwrap_or_else(|held| held.into_inner());
        let graph = match &mut *graph {
            Some(graph) => graph,
            none => {
                let launches = self.launches(&ready.list, &areas)?;
                none.insert(Graph::new(&self.context, program.plan(), &ready.list, launches, &areas)?)
            }
        };
        self.context.enter()?;
        let started = graph.start(&self.memory, &areas, &self.stream);
        started.map_err(|message| fault(graph.len(), message))?;
        let kernels = graph.len();
        self.took_off(kernels, areas)
    }

    fn wait_until(&mut self, under_way: usize) -> Result<(), BackendError> {
        self.context.enter()?;
        let mut result = Ok(());
        while self.flights.len() > under_way {
            let flight = self.flights.pop_front().expect("not empty");
            let ended = flight.end.wait().map_err(|message| fault(flight.kernels, message));
            result = result.and(ended);
        }
        result
    }

    fn run(&mut self, plan: &Plan, states: &mut [&mut dyn State]) -> Result<(), BackendError> {
        let (list, areas) = (self.list(plan)?, areas(states));
        let launches = self.launches(&list, &areas)?;
        self.start(&launches, areas)?;
        self.wait()
    }

    fn time(&mut self, plan: &Plan, states: &mut [&mut dyn State]) -> Result<Option<Vec<f64>>, BackendError> {
        self.wait()?;
        let (list, areas) = (self.list(plan)?, areas(states));
        let launches = self.launches(&list, &areas)?;
        let mark = || Event::timed(&self.context, &self.stream).map_err(refused("a point in time"));
        let start = |launch: &Launch| launch.start(&self.stream).map_err(|message| fault(launches.len(), message));
        let mut marks = vec![mark()?];
        let started = launches.iter().try_for_each(|launch| {
            start(launch)?;
            marks.push(mark()?);
            Ok(())
        });
        // Also after an error: what was started uses the states.
        let ended = self.stream.wait().map_err(|message| fault(launches.len(), message));
        started.and(ended)?;
        let mut seconds = vec![0.0; plan.dispatches.len()];
        for ((_, encoded), marks) in list.dispatches().zip(marks.windows(2)) {
            seconds[encoded.dispatch] =
                marks[1].seconds_since(&marks[0]).map_err(refused("the time between two points"))?;
        }
        Ok(Some(seconds))
    }

    fn bandwidth(&mut self) -> Result<Option<f64>, BackendError> {
        self.wait()?;
        driver::copy_bandwidth(&self.context, &self.stream).map(Some)
    }

    fn write(&mut self, slot: Slot, bytes: &[u8]) {
        self.memory.put(slot, bytes).unwrap_or_else(|error| panic!("{error}"));
    }

    fn read(&self, slot: Slot, out: &mut [u8]) {
        self.memory.get(slot, out, false).unwrap_or_else(|error| panic!("{error}"));
    }

    fn peek(&self, slot: Slot, out: &mut [u8]) {
        self.memory.get(slot, out, true).unwrap_or_else(|error| panic!("{error}"));
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        let _ = self.wait(); // nobody is left to be told of an error
    }
}

/// The areas of sessions' states.
fn areas(states: &mut [&mut dyn State]) -> Vec<Arc<Vec<Area>>> {
    let areas = states.iter_mut().map(|state| {
        let state = state.as_any_mut().downcast_mut::<CudaState>().expect("a state that this backend made");
        Arc::clone(state.areas())
    });
    areas.collect()
}

/// The error of a submission of several kernels. The driver gives a context up after a fault, so that none can be run again.
fn fault(kernels: usize, message: String) -> BackendError {
    BackendError::Fault {
        kernel: format!("one of {kernels} kernels ({STEPWISE_VARIABLE}=1 finds out which)"),
        stage: 1,
        stages: 1,
        message,
    }
}

/// An error of the driver at something that was asked of it.
fn refused(what: &'static str) -> impl Fn(String) -> BackendError {
    move |message| BackendError::Refused { what, message }
}

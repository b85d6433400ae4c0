//! The scheduler and the prefix cache under thousands of interleavings: clients that come, leave, edit and branch, a
//! device that fails, restarts over one cache directory, on a virtual clock.
//!
//! Everything but the device and the thread around the scheduler (`worker.rs`) is the real thing. After every turn: budgets
//! hold, nobody who has a session has waited longer than the turns allow, nobody was overtaken in the queue, the cache is what it says. At every job's end: the answer is that of a lone cold run. At the end: nothing is
//! left over. `LILY_SIM_SEEDS` is the number of seeds to run.

mod clients;
mod device;
mod trace;

use super::core::Core;
use super::job::{Job, JobId, Refused, Sink};
use super::queue::{Limits, Queue};
use crate::cache::CacheOptions;
use crate::cache::tests::Random;
use crate::checkpoint::Checkpoint;
use crate::engine::{Engine, EngineOptions};
use crate::model::Traits;
use clients::{Client, Whim};
use device::{CHUNK, CHUNK_TOKEN, STEP, Trouble, World, scripted};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, SystemTime};
use tempfile::TempDir;
use trace::Trace;

/// Seeds that every run of the tests tries.
const SEEDS: u64 = 300;
/// Of them, those that are run once more, to see that they tell the same story.
const REPLAYED: u64 = 100;
const TURNS: usize = 150;
const CONTEXT: usize = 192;
const CHUNK_TOKENS: usize = 16;

/// How one simulation is set up.
struct Setup {
    sessions: usize,
    queue_jobs: usize,
    cache_bytes: usize,
    dir: Option<TempDir>,
    chooses_tokens: bool,
}

impl Setup {
    fn draw(random: &mut Random) -> Self {
        Self {
            sessions: 1 + random.below(4),
            queue_jobs: 1 + random.below(4),
            // States take 35 kB: none, a few, or many.
            cache_bytes: [0, 200_000, 1_000_000][random.below(3)],
            dir: (random.below(4) == 0).then(|| TempDir::new().unwrap()),
            chooses_tokens: random.below(2) == 0,
        }
    }

    fn core(&self, world: &Arc<World>) -> (Core, Limits) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/checkpoints/mlx/experts-q8g32");
        let dir = self.dir.as_ref().map(|dir| dir.path().to_owned());
        let options = EngineOptions {
            context_tokens: CONTEXT,
            chunk_tokens: Some(CHUNK_TOKENS),
            sessions: self.sessions,
            cache: CacheOptions { bytes: self.cache_bytes, dir, dir_bytes: 400_000 },
            ..EngineOptions::for_this_machine()
        };
        let traits = Traits { chooses_tokens: self.chooses_tokens, ..Traits::CPU };
        let device = scripted(Arc::clone(world), traits);
        let mut engine = Engine::on(Box::new(device), Checkpoint::open(&path).unwrap(), &options).unwrap();
        let limits = Limits::of(&engine, self.queue_jobs);
        let files = Arc::clone(world);
        engine.make_cache_repeatable(move || SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 30) + files.now());
        let clock = Arc::clone(world);
        (Core::new(engine, Box::new(move || clock.now())), limits)
    }
}

/// What all simulations together saw, so that one that sees nothing does not pass.
#[derive(Debug, Default)]
struct Seen {
    answers: usize,
    failures: usize,
    refused: usize,
    restarts: usize,
    memory_tokens: usize,
    disk_tokens: usize,
    session_tokens: usize,
    batched: usize,
    chosen_together: usize,
    evictions: u64,
}

struct Simulation {
    random: Random,
    setup: Setup,
    world: Arc<World>,
    core: Core,
    queue: Queue,
    clients: Vec<Client>,
    /// Jobs are started in this order.
    waiting: Vec<JobId>,
    seen: Seen,
    trace: Trace,
}

impl Simulation {
    fn new(seed: u64, trace: Trace) -> Self {
        let mut random = Random(seed);
        let setup = Setup::draw(&mut random);
        let world = Arc::<World>::default();
        let (core, limits) = setup.core(&world);
        let clients = (0..2 + random.below(5)).map(|name| Client::new(name, trace.clone())).collect();
        let (queue, waiting) = (Queue::new(limits), Vec::new());
        Self { random, setup, world, core, queue, clients, waiting, seen: Seen::default(), trace }
    }

    fn run(mut self) -> Seen {
        for _ in 0..TURNS {
            self.world.pass(Duration::from_micros(self.random.below(100) as u64));
            self.arrive();
            self.leave();
            self.start();
            self.turn();
            if self.setup.dir.is_some() && self.random.below(40) == 0 {
                self.restart();
            }
        }
        while !self.core.is_idle() || self.queue.len() > 0 {
            self.start();
            self.turn();
        }
        assert!(self.clients.iter().all(|client| client.order.is_none()), "a client that was told no end");
        let sessions = self.core.audit();
        assert_eq!(self.world.states.load(SeqCst), sessions, "states without a session");
        self.seen.evictions += self.core.status().cache.evictions;
        self.seen.batched += self.world.batched.load(SeqCst);
        self.seen.chosen_together += self.world.chosen_together.load(SeqCst);
        drop(self.core);
        assert_eq!(self.world.states.load(SeqCst), 0);
        self.seen
    }

    /// Clients without a job may submit one; now and then one takes up another's conversation.
    fn arrive(&mut self) {
        for index in 0..self.clients.len() {
            if self.clients[index].order.is_some() || self.random.below(6) > 0 {
                continue;
            }
            if self.random.below(8) == 0 {
                let other = self.clients[self.random.below(self.clients.len())].talk();
                self.clients[index].take_up(other);
            }
            let (job, sink, mut order) = self.clients[index].next_job(&mut self.random, CONTEXT);
            match self.submit(job, sink) {
                Ok(id) => {
                    order.id = id;
                    order.moved = (0, self.world.now());
                    self.waiting.push(id);
                    self.clients[index].order = Some(order);
                }
                Err(refused) => {
                    let limit = self.setup.queue_jobs;
                    assert_eq!(refused, Refused::QueueFull { waiting: limit, limit });
                    self.seen.refused += 1;
                }
            }
        }
    }

    fn submit(&mut self, job: Job, sink: Sink) -> Result<JobId, Refused> {
        self.queue.limits.check(&job).unwrap();
        self.queue.push(job, sink, self.world.now())
    }

    /// Clients cancel jobs, wherever those are.
    fn leave(&mut self) {
        for index in 0..self.clients.len() {
            let Some(order) = &self.clients[index].order else { continue };
            if order.whim == Whim::Cancels && self.random.below(10) == 0 {
                let id = order.id;
                match self.queue.remove(id) {
                    Some(waiting) => {
                        self.waiting.retain(|&other| other != id);
                        self.core.dismiss(waiting);
                    }
                    None => self.core.cancel(id),
                }
                self.check_ends();
            }
        }
    }

    fn start(&mut self) {
        while self.core.room() > 0
            && let Some(waiting) = self.queue.pop()
        {
            assert_eq!(self.waiting.remove(0), waiting.id, "first come, first served");
            self.core.start(waiting);
        }
        self.check_ends();
    }

    fn turn(&mut self) {
        let trouble = match self.random.below(60) {
            0 => Some(Trouble::Fails),
            1 => Some(Trouble::NotANumber),
            _ => None,
        };
        *self.world.trouble.lock().unwrap() = trouble;
        let patience = self.random.below(12);
        let asked = std::cell::Cell::new(0);
        self.core.turn(&|| asked.replace(asked.get() + 1) >= patience);
        self.world.trouble.lock().unwrap().take();
        self.check_ends();
        // Now and then files are still being written when the next turn comes.
        if self.setup.dir.is_some() && self.random.below(4) > 0 {
            self.core.settle();
        }
        self.check_budgets();
        self.check_patience();
        self.trace.note(|| format!("{:?}: {} wait, {:?}", self.world.now(), self.queue.len(), self.core.status()));
    }

    /// Checks jobs that have ended.
    fn check_ends(&mut self) {
        for client in &mut self.clients {
            let ended = |order: &clients::Order| order.record.lock().unwrap().end.is_some();
            let Some(order) = client.order.take_if(|order| ended(order)) else { continue };
            order.check(&self.world.faults);
            assert_eq!(Arc::strong_count(&order.record), 1, "the sink lives on");
            match order.record.lock().unwrap().end.as_ref() {
                Some(Ok(summary)) => {
                    self.seen.answers += 1;
                    self.seen.memory_tokens += summary.reuse.memory_tokens;
                    self.seen.disk_tokens += summary.reuse.disk_tokens;
                    self.seen.session_tokens += summary.reuse.session_tokens;
                }
                _ => self.seen.failures += 1,
            }
            client.hear(&order, &mut self.random);
        }
    }

    fn check_budgets(&self) {
        let status = self.core.status();
        assert!(self.queue.len() <= self.setup.queue_jobs);
        assert!(status.running <= self.setup.sessions && status.cache.bytes <= self.setup.cache_bytes);
        assert!(status.kv_tokens <= status.kv_limit_tokens && status.cache.disk_bytes <= 400_000);
        assert_eq!(self.world.states.load(SeqCst), self.core.audit());
    }

    /// No stream stands still for longer than a chunk and a round of steps, no prompt for longer than the others take.
    fn check_patience(&mut self) {
        let now = self.world.now();
        let chunk = CHUNK + CHUNK_TOKEN * CHUNK_TOKENS as u32;
        let stream = chunk + STEP * (3 * self.setup.sessions as u32 + 2);
        let prompt = (chunk * 2 + stream) * (CONTEXT / CHUNK_TOKENS * self.setup.sessions) as u32;
        for order in self.clients.iter_mut().filter_map(|client| client.order.as_mut()) {
            let record = order.record.lock().unwrap();
            if record.events > order.moved.0 || !record.started {
                order.moved = (record.events, now);
            }
            let most = if record.tokens.is_empty() { prompt } else { stream };
            let stood = now - order.moved.1;
            assert!(stood <= most, "job {} stood still for {stood:?}; {most:?} are allowed", order.id);
        }
    }

    /// Ends everything and starts again over the same directory.
    fn restart(&mut self) {
        self.core.abandon();
        self.core.settle();
        for client in &mut self.clients {
            client.order = None;
        }
        self.waiting.clear();
        let (core, limits) = self.setup.core(&self.world);
        self.core = core;
        self.queue = Queue::new(limits);
        self.seen.restarts += 1;
    }
}

/// Says which seed failed.
struct Seed(u64);

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the simulation failed with seed {}", self.0);
        }
    }
}

#[test]
fn nothing_leaks_nobody_starves_budgets_hold_and_answers_are_right() {
    let asked = std::env::var("LILY_SIM_SEEDS").ok().map(|seeds| seeds.parse().expect("LILY_SIM_SEEDS is a number"));
    let seeds: u64 = asked.unwrap_or(SEEDS);
    let mut all = Seen::default();
    for seed in 0..seeds {
        let _told = Seed(seed);
        let seen = Simulation::new(seed, Trace::default()).run();
        all.answers += seen.answers;
        all.failures += seen.failures;
        all.refused += seen.refused;
        all.restarts += seen.restarts;
        all.memory_tokens += seen.memory_tokens;
        all.disk_tokens += seen.disk_tokens;
        all.session_tokens += seen.session_tokens;
        all.evictions += seen.evictions;
        all.batched += seen.batched;
        all.chosen_together += seen.chosen_together;
    }
    eprintln!("{seeds} seeds: {all:?}");
    let each = seeds as usize;
    assert!(all.answers > 5 * each && all.failures > each / 4 && all.refused > each / 4, "{all:?}");
    assert!(all.memory_tokens > 10 * each && all.session_tokens > 10 * each && all.evictions > seeds, "{all:?}");
    assert!(all.disk_tokens > each && all.restarts > each / 4 && all.batched > 10 * each, "{all:?}");
    assert!(all.chosen_together > 2 * each, "{all:?}");
}

#[test]
fn a_seed_tells_the_same_story_every_time() {
    let mut both = Seen::default();
    for seed in 0..REPLAYED {
        let _told = Seed(seed);
        let [first, second] = [(), ()].map(|()| {
            let trace = Trace::kept();
            let seen = Simulation::new(seed, trace.clone()).run();
            both.restarts += seen.restarts;
            both.disk_tokens += seen.disk_tokens;
            trace.lines()
        });
        assert!(first.len() > TURNS, "{} lines", first.len());
        if let Some(line) = first.iter().zip(&second).position(|(one, other)| one != other) {
            panic!("line {line} was\n{}\nand then\n{}", first[line], second[line]);
        }
        assert_eq!(first.len(), second.len());
    }
    // What a directory keeps over a restart is where runs would part first.
    assert!(both.restarts > 10 && both.disk_tokens > 100, "{both:?}");
}

//! The thread that writes and removes files of the cache directory, so that nobody who computes waits for a disk.
//!
//! Files appear whole: they are written beside their place and renamed. What was asked for is done in order.

use super::file::{Draft, Id, file_bytes};
use super::state::StateLayout;
use std::fs::{self, File};
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::SystemTime;

enum Order {
    Write { path: PathBuf, draft: Box<Draft>, used: SystemTime },
    Remove(PathBuf),
    Settle(Sender<()>),
}

/// How a file that was to be written went.
pub(super) struct Written {
    pub id: Id,
    /// Whether it is there now.
    pub done: bool,
}

pub(super) struct Writer {
    orders: Option<Sender<Order>>,
    written: Receiver<Written>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    pub fn start(layout: StateLayout) -> io::Result<Self> {
        let (orders, inbox) = channel();
        let (outbox, written) = channel();
        let thread = std::thread::Builder::new().name("lily-cache".into()).spawn(move || {
            for order in inbox {
                match order {
                    Order::Write { path, draft, used } => {
                        let done = write(&path, &layout, &draft, used).is_ok();
                        let _ = outbox.send(Written { id: draft.id, done }); // nobody asks any more: the cache is gone
                    }
                    // One that is gone already is what was asked for.
                    Order::Remove(path) => drop(fs::remove_file(path)),
                    Order::Settle(done) => drop(done),
                }
            }
        })?;
        Ok(Self { orders: Some(orders), written, thread: Some(thread) })
    }

    /// Has a file written; `used` is when it was used last.
    pub fn write(&self, path: PathBuf, draft: Draft, used: SystemTime) {
        self.send(Order::Write { path, draft: Box::new(draft), used });
    }

    pub fn remove(&self, path: PathBuf) {
        self.send(Order::Remove(path));
    }

    /// Files that were written, or not, since this was last asked.
    pub fn written(&self) -> impl Iterator<Item = Written> {
        self.written.try_iter()
    }

    /// Waits until everything asked for is done.
    pub fn settle(&self) {
        let (done, wait) = channel();
        self.send(Order::Settle(done));
        let _ = wait.recv(); // ends when the other side is dropped
    }

    fn send(&self, order: Order) {
        let orders = self.orders.as_ref().expect("open until it is dropped");
        let _ = orders.send(order); // a thread that is gone has lost the disk already
    }
}

impl Drop for Writer {
    /// What was asked for is still done.
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Ending of files that are being written.
pub(super) const PARTIAL: &str = "partial";

fn write(path: &Path, layout: &StateLayout, draft: &Draft, used: SystemTime) -> io::Result<()> {
    let partial = path.with_extension(format!("{}.{PARTIAL}", std::process::id()));
    let result = create(&partial).and_then(|file| {
        file.set_len(file_bytes(layout, draft.tokens.len()))?; // a full disk says so now
        draft.write(layout, BufWriter::with_capacity(1 << 20, &file))?;
        let _ = file.set_modified(used); // a system that keeps no times has the order in which files were written
        fs::rename(&partial, path)
    });
    if result.is_err() {
        let _ = fs::remove_file(&partial);
    }
    result
}

/// A new file for this user's eyes only: it tells what was talked about.
fn create(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

//! Memory with closed pages around it, so that an access outside is a fault and not a silent error.

use std::io;
use std::ptr::NonNull;

/// Size of a page.
pub const PAGE: usize = 4096;

/// Closed bytes on either side of a buffer: an index that is wrong by millions still does not reach another one.
const GUARD: usize = 16 << 20;

/// What the bytes between a buffer and its closed pages hold.
const CANARY: u8 = 0xa5;

/// Address space of which parts can be opened.
pub struct Region {
    start: NonNull<u8>,
    bytes: usize,
}

impl Region {
    /// Reserves whole pages; nothing of them can be accessed yet.
    ///
    /// # Errors
    /// What the system says.
    pub fn reserve(bytes: usize) -> io::Result<Self> {
        let bytes = bytes.max(1).next_multiple_of(PAGE);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new anonymous mapping touches no memory of anybody.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_NONE, flags, -1, 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(address as *mut u8).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { start, bytes })
    }

    /// Makes pages readable and writable.
    ///
    /// # Errors
    /// What the system says.
    pub fn open(&self, offset: usize, bytes: usize) -> io::Result<()> {
        assert!(offset + bytes <= self.bytes && offset.is_multiple_of(PAGE), "pages of the region");
        // SAFETY: the range lies inside this mapping, which nobody else changes.
        let result = unsafe {
            libc::mprotect(self.start.as_ptr().add(offset).cast(), bytes, libc::PROT_READ | libc::PROT_WRITE)
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// First address.
    pub fn start(&self) -> usize {
        self.start.as_ptr() as usize
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

// SAFETY: a region is a range of addresses; whoever accesses what is in it cares for order.
unsafe impl Send for Region {}

/// Memory of the device: what kernels get bound.
///
/// It ends right before closed pages (up to 15 bytes apart, because it starts on a multiple of 16), and starts after
/// some. Fresh memory is poison: NaN in every float type.
pub struct Buffer {
    /// The closed pages around it; `None` for memory that somebody else guards.
    region: Option<Region>,
    start: usize,
    bytes: usize,
}

impl Buffer {
    /// Takes memory filled with 0xff.
    ///
    /// # Errors
    /// What the system says.
    pub fn new(bytes: usize) -> io::Result<Self> {
        let buffer = Self::zeroed(bytes)?;
        // SAFETY: the bytes are open and this buffer's own.
        unsafe { std::ptr::write_bytes(buffer.address() as *mut u8, 0xff, bytes) };
        Ok(buffer)
    }

    /// Takes zeroed memory; pages never touched take none.
    ///
    /// # Errors
    /// What the system says.
    pub fn zeroed(bytes: usize) -> io::Result<Self> {
        let pages = bytes.max(1).next_multiple_of(PAGE);
        let region = Region::reserve(pages + 2 * GUARD)?;
        region.open(GUARD, pages)?;
        // SAFETY: the first and last bytes of the opened pages, which nobody knows yet.
        unsafe {
            let slack = pages - bytes;
            std::ptr::write_bytes((region.start() + GUARD) as *mut u8, CANARY, slack.min(PAGE));
            std::ptr::write_bytes((region.start() + GUARD + pages - 16) as *mut u8, CANARY, 16);
        }
        let start = region.start() + GUARD + pages - bytes.next_multiple_of(16).min(pages);
        let buffer = Self { region: Some(region), start, bytes };
        // SAFETY: bytes of the buffer that the canary at the end may have covered.
        unsafe { std::ptr::write_bytes((buffer.address() + bytes.saturating_sub(16)) as *mut u8, 0, bytes.min(16)) };
        Ok(buffer)
    }

    /// Takes memory that holds these bytes.
    ///
    /// # Errors
    /// What the system says.
    pub fn from_bytes(bytes: &[u8]) -> io::Result<Self> {
        let buffer = Self::zeroed(bytes.len())?;
        buffer.write(0, bytes);
        Ok(buffer)
    }

    /// Somebody else's memory, without closed pages around it: what a host's own buffers are.
    ///
    /// # Safety
    /// The memory must stay valid for as long as the buffer lives, and nobody else may use it while a kernel runs.
    pub unsafe fn over(start: NonNull<u8>, bytes: usize) -> Self {
        Self { region: None, start: start.as_ptr() as usize, bytes }
    }

    /// Size.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// First address.
    pub fn address(&self) -> usize {
        self.start
    }

    /// Copies bytes in.
    ///
    /// # Panics
    /// If they do not fit.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset <= self.bytes && bytes.len() <= self.bytes - offset, "bytes of the buffer");
        // SAFETY: the range is open and inside this buffer. No reference to it ever exists, and a buffer is used by one
        // thread at a time: kernels run only inside `Device::launch`, which returns when they are done.
        unsafe { std::ptr::copy(bytes.as_ptr(), (self.address() + offset) as *mut u8, bytes.len()) };
    }

    /// Copies bytes out.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn read(&self, offset: usize, out: &mut [u8]) {
        assert!(offset <= self.bytes && out.len() <= self.bytes - offset, "bytes of the buffer");
        // SAFETY: as in `write`.
        unsafe { std::ptr::copy((self.address() + offset) as *const u8, out.as_mut_ptr(), out.len()) };
    }

    /// Whether nobody has written to the bytes of its pages that are not its own.
    pub fn intact(&self) -> bool {
        let Some(region) = &self.region else { return true };
        let (first, end) = (region.start() + GUARD, self.address() + self.bytes);
        // SAFETY: open pages around the buffer's bytes, used by one thread at a time as in `write`.
        let (before, after) = unsafe {
            let before = std::slice::from_raw_parts(first as *const u8, self.address() - first);
            (before, std::slice::from_raw_parts(end as *const u8, end.next_multiple_of(16) - end))
        };
        before.iter().chain(after).all(|b| *b == CANARY)
    }

    /// All it holds.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.bytes];
        self.read(0, &mut bytes);
        bytes
    }
}

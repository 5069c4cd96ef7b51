//! Page-aligned memory of this process, zero until it is written.
//!
//! In: a size in bytes. Out: a [`Buffer`]. The system maps a page when it is first touched, so a KV cache for a long
//! context costs nothing until it is used.
//! Large pages, where the system has them, are read about a fifth faster and are mapped as a whole once touched.
//! Nothing here knows what the bytes mean.

use memmap2::MmapMut;

use crate::error::Error;

/// Bytes of a large page.
pub(crate) const LARGE_PAGE: usize = 2 << 20;

/// Some bytes.
#[derive(Debug)]
pub struct Buffer {
    map: MmapMut,
    len: usize,
}

impl Buffer {
    /// A buffer of this many zero bytes.
    ///
    /// # Errors
    /// [`Error::Memory`], where the system has no such memory.
    pub fn zeroed(len: usize) -> Result<Self, Error> {
        let map = MmapMut::map_anon(len.max(1));
        let (what, device) = ("a buffer".to_owned(), "this machine".to_owned());
        let refused = |_| Error::Memory { what, device, needed: len, free: None };
        Ok(Self { map: map.map_err(refused)?, len })
    }

    /// The same in large pages, where the system has them: for what is read from end to end again and again.
    #[must_use]
    pub fn in_large_pages(self) -> Self {
        // A refusal costs time and nothing else.
        #[cfg(target_os = "linux")]
        let _ = self.map.advise(memmap2::Advice::HugePage);
        self
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.map[..self.len]
    }

    /// The bytes, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.map[..self.len]
    }

    /// Where it starts, for code that was proven to stay inside. The address stays while the buffer lives.
    pub(crate) fn start(&mut self) -> *mut u8 {
        self.map.as_mut_ptr()
    }
}

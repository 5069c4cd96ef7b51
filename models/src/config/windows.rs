//! The pages of blocks with a window: how many there are, and which blocks have them.
//!
//! In: a config, and the KV cache of a session. Out: for blocks of which no token sees more than the last tokens, a KV
//! cache of these.
//!
//! ```text
//!  pages of a sequence, 64 tokens each          window of 1024 tokens, chunk of 512
//!
//!  all tokens      ████████████████████████████████████████████████████████████
//!  with a window                                     ░░██████████████████████████
//!                                                    │ └ the window, and the chunk that comes
//!                                                    └── so that a guess can be taken back
//! ```

use fusebox_runtime::session::engine::WindowPages;

use crate::config::attention::Window;
use crate::config::{Config, KvCache};

/// Pages of a sequence beside those of its window and of a chunk: the ones where both begin and end, and one before.
const SPARE: usize = 3;
/// Of this many pages one has a window page beside what sequences need, so that sequences can go back, and others can
/// begin alike.
const KEPT_SHARE: usize = 8;

impl Window {
    /// How many tokens a token sees at most, itself among them; nothing where it sees tokens that follow.
    fn reach(self) -> Option<usize> {
        match self {
            Self::Sliding(size) | Self::Chunk(size) => Some(size),
            Self::Around(_) => None,
        }
    }
}

impl Config {
    /// Whether the KV cache of a block is read through a window only, by itself and by blocks that share it.
    pub(crate) fn has_window_pages(&self, layer: usize) -> bool {
        self.windows.is_some() && self.reach(layer).is_some()
    }

    /// How many tokens the KV cache of a block is read by a token, if not all before it.
    fn reach(&self, layer: usize) -> Option<usize> {
        self.blocks[layer].mixer.heads().filter(|own| own.shares.is_none())?;
        let heads = self.blocks.iter().enumerate().filter_map(|(number, block)| {
            block.mixer.heads().filter(|own| number == layer || own.shares == Some(layer))
        });
        let reaches = heads.map(|own| own.window.filter(|_| own.is_causal)?.reach());
        reaches.collect::<Option<Vec<usize>>>()?.into_iter().max()
    }

    /// The pages of blocks with a window, of a session that prefills in steps of at most `chunk` tokens; none where a
    /// state goes from token to token, as sequences cannot go back there.
    pub(crate) fn window_pages(&self, cache: &KvCache, chunk: usize) -> Option<WindowPages> {
        if self.is_recurrent() {
            return None;
        }
        let reach = (0..self.n_layers()).filter_map(|layer| self.reach(layer)).max()?;
        let of_sequence = cache.pages_of(reach + chunk) + SPARE;
        let wanted = cache.n_sequences * of_sequence + cache.n_pages / KEPT_SHARE;
        Some(WindowPages { reach, n_pages: wanted.min(cache.n_pages) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::attention::Grouped;
    use crate::config::network::Dense;
    use crate::config::{Block, Mixer, Network};

    /// Blocks with these windows; a block may read the KV cache of another.
    fn config(blocks: &[(Option<Window>, Option<usize>)]) -> Config {
        let block = |(window, shares): &(Option<Window>, Option<usize>)| {
            let heads = Grouped { window: *window, shares: *shares, ..Grouped::new(8, 4, 256) };
            Block::new(Mixer::Grouped(heads), Network::Dense(Dense::swiglu(64)))
        };
        let config = Config::new(blocks.iter().map(block).collect(), 64, 64, 1 << 15);
        Config { windows: Some(WindowPages { reach: 0, n_pages: 0 }), ..config }
    }

    #[test]
    fn what_no_window_reaches_has_no_page() {
        // As Gemma 3 4B: every sixth block of 34 sees all.
        let blocks: Vec<_> =
            (1..=34).map(|n| ((n % 6 != 0).then_some(Window::Sliding(1024)), None)).collect();
        let n_windowed = blocks.iter().filter(|(window, _)| window.is_some()).count();
        let windows = config(&blocks).window_pages(&KvCache::of_one(1 << 15), 512).unwrap();
        assert_eq!(windows, WindowPages { reach: 1024, n_pages: 24 + 3 + 64 });
        let share = |n_windowed: usize| {
            ((34 - n_windowed) * 512 + n_windowed * windows.n_pages) as f64 / (34.0 * 512.0)
        };
        assert!((share(n_windowed) - 0.299).abs() < 1e-3, "{}", share(n_windowed));
        // Never more than there are.
        let short = config(&blocks).window_pages(&KvCache::of_one(512), 512);
        assert_eq!(short.map(|windows| windows.n_pages), Some(8));
        assert_eq!(config(&[(None, None)]).window_pages(&KvCache::of_one(512), 512), None);
    }

    #[test]
    fn a_block_that_another_reads_without_a_window_keeps_all() {
        let window = Some(Window::Sliding(16));
        let own = config(&[(window, None), (window, None), (None, None), (None, Some(0)), (window, Some(1))]);
        let found = [0, 1, 2, 3, 4].map(|layer| own.has_window_pages(layer));
        assert_eq!(found, [false, true, false, false, false]);
    }
}

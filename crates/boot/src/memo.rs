//! What the usual node boots, remembered where its MAC is found: whether a selector speaks of a node
//! is read from all over its record, and in a storm every such read comes from main memory.

use std::sync::OnceLock;

use hoist_model::NodeId;

use crate::skeleton::Seed;

/// Seats in one piece. Pieces are made when a node in them asks: most tables of a site that is being
/// changed answer a few questions only.
const PIECE: usize = 256;

/// By the seats of a roster. Every entry is made once.
#[derive(Debug)]
pub(crate) struct Memo(Box<[OnceLock<Piece>]>);

type Piece = Box<[OnceLock<Remembered>]>;

/// A node that boots a configuration whenever it has no boot state and there is no BSS record.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Remembered {
    pub(crate) node: NodeId,
    /// Its place in the table.
    pub(crate) config: usize,
    /// Where the node finds its documents, if the configuration leaves that to the provider.
    pub(crate) seed: Option<Seed>,
}

impl Memo {
    pub(crate) fn new(seats: usize) -> Self {
        Self(std::iter::repeat_with(OnceLock::new).take(seats.div_ceil(PIECE)).collect())
    }

    pub(crate) fn get(&self, seat: usize) -> Option<&Remembered> {
        self.0.get(seat / PIECE)?.get()?[seat % PIECE].get()
    }

    pub(crate) fn remember(&self, seat: usize, what: Remembered) {
        let Some(piece) = self.0.get(seat / PIECE) else { return };
        let piece =
            piece.get_or_init(|| std::iter::repeat_with(OnceLock::new).take(PIECE).collect());
        // Somebody else may have come to the same.
        let _ = piece[seat % PIECE].set(what);
    }
}

//! From an empty disk to a system that boots: what shall be, what is there, and what is to be done
//! about the difference.
//!
//! Deciding is apart from doing. A document says what a person wants, [`facts`] say what a machine
//! has, and everything that follows from the two (which disk is meant, what its table becomes, what
//! is refused) is a function of values: the same document and the same facts give the same answer,
//! on the node, on the controller and on paper. What touches devices only carries out what was
//! decided, inside the ranges that were decided.
//!
//! Must never know: the store, the inventory, boot scripts, metadata, HTTP routes, an async runtime.

pub mod actions;
pub mod bind;
pub mod claim;
pub mod device;
pub mod diagnostic;
pub mod document;
pub mod driver;
pub mod facts;
pub mod fat;
pub mod images;
pub mod layout;
pub mod pipeline;

//! The inventory over real sockets and real stores: a whole controller, asked as its users ask it.

#[path = "../support/whole.rs"]
mod site;

mod bulk;
mod contract;
mod groups;
mod import;
mod lists;
mod nodes;
mod reach;
mod rights;
mod special;
mod survival;
mod tags;
mod watch;

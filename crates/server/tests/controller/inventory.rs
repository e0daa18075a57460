//! The inventory over real sockets and real stores: a whole controller, asked as its users ask it.

mod bulk;
mod contract;
mod first_start;
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

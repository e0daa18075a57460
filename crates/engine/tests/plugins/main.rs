//! Plug-ins: the examples, and misbehaving ones.

mod confined;
mod examples;
mod hostile;
mod stage;

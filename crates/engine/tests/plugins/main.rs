//! Plug-ins: the examples, and those that do what they should not.

mod confined;
mod examples;
mod hostile;
mod stage;

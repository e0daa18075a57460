//! A run, event by event: what starts, what waits and why, and what a person can do about it.

mod anything;
mod carry;
mod limits;
mod persons;
mod site;
mod undo;

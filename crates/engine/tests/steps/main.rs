//! A run, event by event: starts, waits with their reasons, and commands of a person.

mod anything;
mod carry;
mod limits;
mod persons;
mod site;
mod undo;

//! Fuel's real tasks: their expansion by Fuel's own rules, and the compiled import.

mod compiled;
mod expansion;
mod generations;
mod import;

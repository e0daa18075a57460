//! Fuel's real tasks: what they expand to by Fuel's own rules, and what hoist makes of them.

mod compiled;
mod expansion;
mod generations;
mod import;

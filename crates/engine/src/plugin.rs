//! Executables of others that are actions.

//! What tasks can do on a machine.

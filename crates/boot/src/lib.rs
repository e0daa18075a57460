//! What a machine boots: selection of its boot configuration, the iPXE script, boot state,
//! artifacts, and the BSS v1 view of all that.
//!
//! Selection and rendering are functions of a roster and a request; they never wait, lock or touch
//! a disk. HTTP, tokens and command lines do not belong here.

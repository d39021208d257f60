//! The shared-memory segment of an okdb root.

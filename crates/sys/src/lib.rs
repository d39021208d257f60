//! Thin safe wrappers over processes, descriptors and signals.
